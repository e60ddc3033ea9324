//! Collections on a disk: what is kept, found, shared and removed, and what a kill leaves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;
use crate::embed::nearest::Code;

const PRINT: [u8; 32] = [1; 32];

/// A document of this text, whose passages have directions by how often they have an `x`.
fn draft(principal: &str, name: &str, text: &str) -> Draft {
    let mut draft = Draft::read(name, None, text.as_bytes(), Path::new("none")).unwrap();
    let rows: Vec<Vec<f32>> = draft.passages().iter().map(|text| direction(text)).collect();
    draft.vectors = Some(Vectors::new(PRINT, 2, &rows));
    Draft { principal: principal.to_owned(), ..draft }
}

fn direction(text: &str) -> Vec<f32> {
    if text.contains("xx") { vec![1.0, 0.0] } else { vec![0.0, 1.0] }
}

fn id(n: usize) -> DocumentId {
    DocumentId(format!("document-{n}"))
}

fn add(documents: &Documents, n: usize, draft: Draft) -> Added {
    documents.add(draft, id(n), CollectionId(format!("collection-{n}")), n as i64).unwrap()
}

fn find(documents: &Documents, principal: &str, text: &str) -> Vec<Found> {
    let code = Code::of(&direction(text));
    let query =
        Query { text, vector: Some((&code, PRINT)), k: 10, sought: Sought::Fused, vectors_weight: MODEL_WEIGHT };
    documents.search(principal, None, query).unwrap()
}

/// Names of the documents whose passages have words of the question, best first.
fn by_words(documents: &Documents, principal: &str, text: &str) -> Vec<String> {
    let query = Query { text, vector: None, k: 10, sought: Sought::Fused, vectors_weight: MODEL_WEIGHT };
    let found = documents.search(principal, None, query).unwrap();
    found.iter().map(|found| found.document.name.clone()).collect()
}

/// Does some file under a folder hold a word?
fn holds(folder: &Path, word: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
        true => holds(&path, word),
        false => {
            path.to_string_lossy().contains(word) || String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(word)
        }
    })
}

/// Does the index of a collection know a word?
fn indexed(documents: &Documents, collection: &CollectionId, word: &str) -> bool {
    documents.terms(collection).iter().any(|term| term == word)
}

#[test]
fn passages_are_found_by_words_and_by_direction_with_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let documents = Documents::open(dir.path());
    add(&documents, 1, draft("ada", "house.md", "# House\n\nThe boiler is from 1987.\n\n# Garden\n\nxx roses.\n"));
    add(&documents, 2, draft("ada", "b/list.csv", "name,phone\nPlumber Noor,4711\n"));
    let found = find(&documents, "ada", "when were the boilers made");
    let best = &found[0];
    assert_eq!((best.document.name.as_str(), best.text.as_str()), ("house.md", "# House\n\nThe boiler is from 1987."));
    assert_eq!(best.words.map(|rank| rank.rank), Some(1), "by the stem of a word");
    let place = &best.document.chunks[best.chunk];
    assert_eq!((place.line, place.line_end, place.heading.as_str()), (1, 3, "House"));
    // By direction alone: no word of the question is in it.
    let found = find(&documents, "ada", "xx");
    assert_eq!(found[0].document.chunks[found[0].chunk].heading, "Garden");
    let by_dense = found.iter().filter(|found| found.words.is_none()).count();
    assert!(found[0].dense.is_some_and(|rank| rank.rank == 1 && rank.score > 0.99) && by_dense > 0);
    // A row is found by its column's name.
    assert_eq!(by_words(&documents, "ada", "Noor phone")[0], "b/list.csv");
    assert_eq!(by_words(&documents, "ada", "tractor"), Vec::<String>::new());
    let wrong = Query { text: "x", vector: None, k: 5, sought: Sought::Fused, vectors_weight: MODEL_WEIGHT };
    let none = documents.search("ada", Some(&["nope".to_owned()]), wrong).unwrap_err();
    assert_eq!(none, DocumentError::NoCollection("nope".to_owned()));
}

#[test]
fn each_language_is_found_by_its_own_stems() {
    let dir = tempfile::tempdir().unwrap();
    let documents = Documents::open(dir.path());
    for (n, (name, text)) in [
        ("fr.txt", "La chaudière se trouve dans la cave, et les clés sont accrochées derrière la porte."),
        ("de.txt", "Die Heizungen werden im Oktober eingeschaltet, und die Schlüssel hängen hinter der Tür."),
        ("en.txt", "The heating is switched on in October, and the keys are hanging behind the door."),
    ]
    .into_iter()
    .enumerate()
    {
        add(&documents, n, draft("ada", name, text));
    }
    for (question, name) in [
        ("Où sont les chaudières ?", "fr.txt"),
        ("ou est la cle", "fr.txt"),
        ("Wann wird die Heizung eingeschaltet?", "de.txt"),
        ("where does the key hang", "en.txt"),
    ] {
        assert_eq!(by_words(&documents, "ada", question).first().map(String::as_str), Some(name), "{question}");
    }
}

#[test]
fn what_is_removed_is_gone_from_every_file_and_the_rest_is_found_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let documents = Documents::open(dir.path());
    for n in 1..=6 {
        add(
            &documents,
            n,
            draft("ada", &format!("{n}.txt"), &format!("secret{n} word{n} stands here with plain words")),
        );
    }
    let folder = dir.path().join(FOLDER);
    let collection = documents.list()[0].1.id.clone();
    assert!(holds(&folder, "secret3") && holds(&folder, "document-3") && indexed(&documents, &collection, "secret3"));
    documents.remove(&id(3)).unwrap();
    assert!(!indexed(&documents, &collection, "secret3") && indexed(&documents, &collection, "secret4"));
    assert!(!holds(&folder, "secret3") && !holds(&folder, "word3") && !holds(&folder, "document-3"));
    assert_eq!(by_words(&documents, "ada", "secret3"), Vec::<String>::new());
    assert_eq!(by_words(&documents, "ada", "secret4"), ["4.txt"]);
    assert_eq!(documents.remove(&id(3)), Err(DocumentError::Unknown("document-3".to_owned())));
    // A new file of the same name takes the old one's place.
    let new = add(&documents, 9, draft("ada", "4.txt", "other words"));
    assert_eq!((new.replaced, new.unchanged), (Some(id(4)), false));
    assert!(!holds(&folder, "secret4") && !holds(&folder, "word4") && !indexed(&documents, &collection, "secret4"));
    let same = add(&documents, 10, draft("ada", "4.txt", "other words"));
    assert_eq!((same.document.id.clone(), same.unchanged), (id(9), true));
    assert_eq!(documents.counts().0, 5);
    // And a collection goes whole.
    assert_eq!(same.collection.id, collection);
    assert_eq!(documents.remove_collection(&collection), Ok(5));
    assert!(!holds(&folder, "secret") && !holds(&folder, "document-") && !holds(&folder, "collection-"));
    assert!(documents.terms(&collection).is_empty());
    assert!(documents.collections(None).is_empty());
}

#[test]
fn only_readers_find_a_collection_and_nobody_elses_changes_a_score() {
    let dir = tempfile::tempdir().unwrap();
    let documents = Documents::open(dir.path());
    add(&documents, 1, draft("bob", "bob.txt", "The boiler of the house is old.\n\nThe xx garden is new."));
    let before = find(&documents, "bob", "boiler house garden");
    for n in 2..30 {
        add(&documents, n, draft("ada", &format!("{n}.txt"), "boiler boiler house xx garden of ada"));
    }
    assert_eq!(find(&documents, "bob", "boiler house garden"), before);
    assert!(find(&documents, "ada", "boiler").iter().all(|found| found.collection.principal == "ada"));
    let shared = |readers: &[&str]| {
        let readers = readers.iter().map(|name| (*name).to_owned()).collect();
        documents.share("ada", DEFAULT_COLLECTION, readers, CollectionId("new".into()), 0).unwrap()
    };
    let whose = |principal: &str| -> BTreeSet<String> {
        find(&documents, principal, "boiler").iter().map(|found| found.collection.principal.clone()).collect()
    };
    let (ada, bob) = ("ada".to_owned(), "bob".to_owned());
    shared(&["bob"]);
    assert_eq!((whose("bob"), whose("eve")), (BTreeSet::from([ada.clone(), bob.clone()]), BTreeSet::new()));
    shared(&[EVERYBODY]);
    assert_eq!(whose("eve"), BTreeSet::from([ada]));
    shared(&[]);
    assert_eq!((whose("bob"), whose("eve")), (BTreeSet::from([bob]), BTreeSet::new()));
}

#[test]
fn a_restart_finds_all_and_removes_what_a_kill_left() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(FOLDER);
    let documents = Documents::open(dir.path());
    add(&documents, 1, draft("ada", "1.txt", "first words"));
    add(&documents, 2, draft("ada", "2.txt", "second words"));
    add(&documents, 3, draft("eve", "3.txt", "third words"));
    let before = find(&documents, "ada", "words");
    drop(documents);
    let documents = Documents::open(dir.path());
    assert_eq!(find(&documents, "ada", "words"), before);
    drop(documents);
    // Killed after the file went, before its vectors did.
    fs::remove_file(folder.join("document-2.document")).unwrap();
    // Killed while a file was written aside, and between a document and the one that it replaces.
    fs::write(folder.join(".document-7.document.1-0"), "half").unwrap();
    let (text, known) = ("first words again", fs::read_to_string(folder.join("document-1.document")).unwrap());
    let mut document: Document = serde_json::from_str(known.lines().nth(1).unwrap()).unwrap();
    (document.id, document.replaces, document.chunks[0].end) = (id(8), Some(id(1)), text.len() as u64);
    super::file::write(&folder.join("document-8.document"), &document, text).unwrap();
    // Killed after a collection went, before its documents did.
    let list = folder.join("collections.json");
    let mut left: serde_json::Value = serde_json::from_str(&fs::read_to_string(&list).unwrap()).unwrap();
    left["collections"].as_array_mut().unwrap().retain(|collection| collection["principal"] != "eve");
    fs::write(&list, left.to_string()).unwrap();
    let documents = Documents::open(dir.path());
    documents.prepare();
    assert_eq!(by_words(&documents, "ada", "words first second third"), ["1.txt"]);
    assert_eq!(find(&documents, "ada", "words")[0].text, text);
    let names: BTreeSet<String> = documents.list().iter().map(|(document, _)| document.id.0.clone()).collect();
    assert_eq!(names, BTreeSet::from(["document-8".to_owned()]));
    assert!(!holds(&folder, "second") && !holds(&folder, "third") && !holds(&folder, "half"));
    assert_eq!(documents.without_vectors(PRINT), [id(8)]);
    documents.set_vectors(&id(8), Vectors::new(PRINT, 2, &[vec![1.0, 0.0]])).unwrap();
    assert!(documents.without_vectors(PRINT).is_empty() && documents.without_vectors([2; 32]).len() == 1);
}

#[test]
fn a_damaged_file_costs_itself_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(FOLDER);
    let documents = Documents::open(dir.path());
    add(&documents, 1, draft("ada", "1.txt", "first words"));
    add(&documents, 2, draft("ada", "2.txt", "second words"));
    drop(documents);
    let path = folder.join("document-1.document");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 2;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let documents = Documents::open(dir.path());
    assert_eq!(by_words(&documents, "ada", "first second words"), ["2.txt"]);
    let damaged = documents.status()["damaged"].clone();
    assert_eq!((&damaged[0]["id"], damaged.as_array().unwrap().len()), (&serde_json::json!("document-1"), 1));
    documents.remove(&id(1)).unwrap();
    assert!(!path.exists() && documents.status()["damaged"].as_array().unwrap().is_empty());
    // Without the list nobody knows whose the documents are: nothing is removed and nothing is kept.
    fs::rename(folder.join("collections.json"), folder.join("away")).unwrap();
    let closed = Documents::open(dir.path());
    let why = closed.remove(&id(2)).unwrap_err().to_string();
    assert!(why.contains("collections.json is missing") && folder.join("document-2.document").exists(), "{why}");
    fs::write(folder.join("collections.json"), r#"{"format": 2, "collections": []}"#).unwrap();
    let why = Documents::open(dir.path()).remove(&id(2)).unwrap_err().to_string();
    assert!(why.contains("format 2"), "{why}");
}

#[test]
fn names_and_room_have_limits() {
    let dir = tempfile::tempdir().unwrap();
    let documents = Documents::open(dir.path());
    let refused = |draft: Draft| match documents.add(draft, id(1), CollectionId("c".into()), 0) {
        Err(DocumentError::Invalid { param, .. }) => param.to_owned(),
        Err(other) => other.to_string(),
        Ok(_) => panic!("it was kept"),
    };
    let plain = draft("ada", "a.txt", "words");
    assert_eq!(refused(Draft { name: "a".repeat(NAME_CHARS_MAX + 1), ..plain.clone() }), "name");
    for name in ["", " ", "a/b", "*", "a\nb", &"a".repeat(COLLECTION_CHARS_MAX + 1)] {
        assert_eq!(refused(Draft { collection: Some(name.to_owned()), ..plain.clone() }), "collection", "{name}");
    }
    let many = vec![plain.chunks[0].clone(); CHUNKS_MAX / SHARE_OF_ONE + 1];
    let why = refused(Draft { chunks: many.clone(), vectors: None, ..plain.clone() });
    assert!(why.contains("of one key have at most 50000 passages"), "{why}");
    let why = refused(Draft { chunks: vec![many[0].clone(); CHUNKS_MAX + 1], by_owner: true, ..plain });
    assert!(why.contains("all documents together have at most 200000 passages"), "{why}");
    assert_eq!(documents.counts(), (0, 0));
}
