//! Compiles `workspace-template/` into the program: `FILES`, a list of paths and texts.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?).join("workspace-template");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut code = String::from(
        "/// Paths and texts, in the order of their paths.\npub(crate) const FILES: &[(&str, &str)] = &[\n",
    );
    for path in files {
        let name = path.strip_prefix(&root).map_err(io::Error::other)?;
        code.push_str(&format!(
            "    ({:?}, include_str!({:?})),\n",
            name.display().to_string(),
            path.display().to_string()
        ));
    }
    code.push_str("];\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    fs::write(out.join("template.rs"), code)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
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
