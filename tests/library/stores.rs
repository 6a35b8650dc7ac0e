//! Whether the stores of docs/examples are some.

use std::fs;

use bantam::session::{LineStore, check_store};

use crate::Test;
use crate::programs::Place;
use crate::sqlite::Sqlite;
use crate::store::Folder;

pub const TESTS: &[Test] = &[
    ("stores::a_folder_of_json_is_one", a_folder_of_json_is_one),
    ("stores::sqlite_is_one", sqlite_is_one),
];

fn a_folder_of_json_is_one() {
    let place = Place::new();
    fs::create_dir(place.path("kept")).unwrap();
    let store = std::sync::Arc::new(LineStore::new(Folder(place.path("kept"))));
    check_store(|| store.clone());
}

fn sqlite_is_one() {
    let place = Place::new();
    // Each is opened as by another process.
    check_store(|| LineStore::new(Sqlite::open(place.path("kept")).unwrap()));
}
