//! Compiles files into the program: `workspace-template/` as `FILES`, a list of paths and texts, and `docs/` as `PAGES`, a list
//! of names and deflated texts.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Pages that are left out of the program.
const FOR_DEVELOPERS: [&str; 3] = ["architecture.md", "building.md", "figures.md"];

fn main() -> io::Result<()> {
    let root = directory("CARGO_MANIFEST_DIR")?;
    let out = directory("OUT_DIR")?;
    let template = root.join("workspace-template");
    let mut files = Vec::new();
    collect(&template, &mut files)?;
    list(
        "FILES: &[(&str, &str)]",
        "include_str",
        &template,
        files,
        &out.join("template.rs"),
    )?;

    let mut pages = Vec::new();
    collect(&root.join("docs"), &mut pages)?;
    let is_shown = |path: &Path| !FOR_DEVELOPERS.iter().any(|name| path.ends_with(name));
    pages.retain(|path| path.extension().is_some_and(|e| e == "md") && is_shown(path));
    let copies = out.join("docs");
    fs::create_dir_all(&copies)?;
    for page in &mut pages {
        let copy = copies.join(page.file_name().ok_or(io::ErrorKind::NotFound)?);
        let text = without_comments(&fs::read_to_string(&*page)?);
        fs::write(
            &copy,
            miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 9),
        )?;
        *page = copy;
    }
    list(
        "PAGES: &[(&str, &[u8])]",
        "include_bytes",
        &copies,
        pages,
        &out.join("docs.rs"),
    )
}

fn directory(variable: &str) -> io::Result<PathBuf> {
    Ok(PathBuf::from(
        env::var_os(variable).ok_or(io::ErrorKind::NotFound)?,
    ))
}

/// Removes comments that mark generated sections.
fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("<!--"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn list(
    item: &str,
    include: &str,
    root: &Path,
    mut files: Vec<PathBuf>,
    to: &Path,
) -> io::Result<()> {
    files.sort();
    let mut code = format!(
        "/// Paths and contents, in the order of their paths.\npub(crate) const {item} = &[\n"
    );
    for path in files {
        let name = path.strip_prefix(root).map_err(io::Error::other)?;
        code.push_str(&format!(
            "    ({:?}, {include}!({:?})),\n",
            name.display().to_string(),
            path.display().to_string()
        ));
    }
    code.push_str("];\n");
    fs::write(to, code)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", dir.display());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
