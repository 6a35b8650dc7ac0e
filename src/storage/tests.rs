//! Images of directories after crashes, for tests of journals.

use std::collections::BTreeMap;
use std::path::Path;

/// Files of a directory, by name.
pub(crate) type Image = BTreeMap<String, Vec<u8>>;

pub(crate) fn read_dir(dir: &Path) -> Image {
    let files = fs_err::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file());
    files
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs_err::read(path).unwrap(),
            )
        })
        .collect()
}

pub(crate) fn restore_dir(dir: &Path, files: &Image) {
    for name in read_dir(dir).into_keys() {
        fs_err::remove_file(dir.join(name)).unwrap();
    }
    for (name, bytes) in files {
        fs_err::write(dir.join(name), bytes).unwrap();
    }
}

/// Returns the directory after each step of a compaction of the journal `name`, from the images before and after it.
pub(crate) fn replace_steps(name: &str, before: &Image, after: &Image) -> Vec<Image> {
    let new = &after[name];
    let successor = format!("{name}.new");
    let mut states = Vec::new();
    for cut in (0..=new.len())
        .step_by(new.len().div_ceil(10))
        .chain([new.len()])
    {
        let mut state = before.clone();
        state.insert(successor.clone(), new[..cut].to_vec());
        states.push(state);
    }
    states
}
