//! The table registry: which tables are in it, and for whom.

use super::fixtures::{PRINT, VOCAB, open, small, source};
use super::shelf::{self, Shelf};
use super::*;
use crate::night::manifest::{KEY_FILE, Seal};

#[test]
fn only_signed_tables_stand_on_the_shelf() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("engram");
    let signatures = Seal::open(&dir.path().join(KEY_FILE)).unwrap();
    let path = shelf::publish(&own, &small(), &signatures).unwrap();
    let shelf = Shelf::scan(None, &own, Some(&signatures));
    assert_eq!((shelf.tables.len(), shelf.refused.len()), (1, 0));
    assert_eq!(shelf.find("small", "anyone").unwrap().path, path);
    // Without the key, with another key, or with another content under the same name, nothing is served.
    assert_eq!(Shelf::scan(None, &own, None).tables, []);
    let stranger = Seal::open(&dir.path().join("stranger")).unwrap();
    assert_eq!(Shelf::scan(None, &own, Some(&stranger)).tables, []);
    assert_eq!(Shelf::scan(Some(&own), &dir.path().join("none"), Some(&signatures)).tables, [], "no shipped digest");
    let mut draft = Draft::of(&open(small()).unwrap()).unwrap();
    draft.revoke("bob");
    let changed = draft.finish("small", "a test", "none", None).unwrap();
    std::fs::write(&path, &changed).unwrap();
    let refused = Shelf::scan(None, &own, Some(&signatures));
    assert_eq!(refused.tables, []);
    assert!(refused.refused[0].message.contains("not signed"), "{:?}", refused.refused);
    // Published, it takes the other's place, and the other's signature goes.
    shelf::publish(&own, &changed, &signatures).unwrap();
    assert_eq!(Shelf::scan(None, &own, Some(&signatures)).tables.len(), 1);
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 2, "a table and its signature");
    // A packed copy is no table of this folder: it would outlive what is revoked.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &changed).unwrap();
    std::fs::write(own.join("small.engr.gz"), packed.finish().unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Shelf::scan(None, &own, Some(&signatures)), Shelf::default());
}

#[test]
fn a_private_table_is_for_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let signatures = Seal::open(&dir.path().join("key")).unwrap();
    let mut draft = Draft::new(PRINT, VOCAB).unwrap();
    let number = draft.source(source("ada", 5)).unwrap();
    draft.add(&[1], 2, 1, number).unwrap();
    let folder = dir.path().join("engram");
    shelf::publish(&folder, &draft.finish("hers", "", "", Some("ada")).unwrap(), &signatures).unwrap();
    let shelf = Shelf::scan(None, &folder, Some(&signatures));
    assert!(shelf.find("hers", "ada").is_some() && shelf.find("hers", "bob").is_none());
}

#[test]
fn the_shipped_tables_are_the_pinned_ones_and_small() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/engram");
    let shelf = Shelf::scan(Some(&folder), std::path::Path::new("/nonexistent"), None);
    let names: Vec<&str> = shelf.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!((names, shelf.refused), (vec!["code", "cyber", "general", "kine"], vec![]));
    assert!(shelf.tables.iter().all(|t| t.shipped && t.owner.is_none() && !t.licence.is_empty()));
    assert!(shelf.tables.iter().map(|t| t.bytes).sum::<usize>() <= 3_000_000);
}
