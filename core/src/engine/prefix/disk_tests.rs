//! What comes back from a file of prefixes, and which files are not used.

use std::os::unix::fs::PermissionsExt;

use super::super::tests::{SIZE, counted, held, limits, scope, take, text};
use super::*;

fn keeper(folder: &Path) -> Keeper {
    Keeper { file: folder.join("prefixes.bin"), made_by: "these tests".to_owned() }
}

fn full() -> Prefixes {
    let mut all = Prefixes::new(limits(10));
    let under = Scope { owner: "me".to_owned(), adapter: Some("a".repeat(64)) };
    for (scope, n, shared, blocks) in
        [(&scope("me"), 1, 0, 3), (&scope("me"), 2, 2, 4), (&under, 1, 0, 2), (&scope("you"), 1, 0, 5)]
    {
        assert!(take(&mut all, scope, &text(n, shared, blocks)));
    }
    assert!(take(&mut all, &scope("within a block"), &text(3, 0, 2)[..100]));
    all
}

#[test]
fn everything_comes_back_and_the_unused_still_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, mut all) = (keeper(dir.path()), full());
    // The first one is used again: now the second is the oldest.
    let prompt = |n, shared, blocks| [text(n, shared, blocks), vec![9]].concat();
    assert_eq!(held(&mut all, &scope("me"), &prompt(1, 0, 3)), 192);
    keeper.save(&all).unwrap();
    let mode = fs::metadata(&keeper.file).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, fs::read_dir(dir.path()).unwrap().count()), (0o600, 1));
    let mut back = keeper.load(limits(10), SIZE).unwrap().unwrap();
    assert_eq!((back.len(), back.bytes()), (all.len(), all.bytes()));
    assert_eq!(counted(&back), back.bytes());
    let under = Scope { owner: "me".to_owned(), adapter: Some("a".repeat(64)) };
    for (scope, n, shared, blocks) in
        [(&scope("me"), 1, 0, 3), (&scope("me"), 2, 2, 4), (&under, 1, 0, 2), (&scope("you"), 1, 0, 5)]
    {
        let prompt = prompt(n, shared, blocks);
        let (was, is) = (all.find(scope, &prompt), back.find(scope, &prompt));
        assert_eq!((is.held, is.held), (was.held, blocks * CUT_TOKENS));
        let (was, is) = (all.kept(was.node.unwrap()), back.kept(is.node.unwrap()));
        assert_eq!((is.blocks, is.state), (was.blocks, was.state));
    }
    let found = back.find(&scope("within a block"), &text(3, 0, 2));
    assert_eq!((found.held, back.kept(found.node.unwrap()).tokens), (100, 100));
    // Less room than there was: what was not used for longest goes.
    let one = (SIZE.block + super::super::NODE_BYTES) as u64;
    let less = PrefixLimits { bytes_max: all.bytes() - one, ..limits(10) };
    let mut fewer = keeper.load(less, SIZE).unwrap().unwrap();
    assert!(fewer.bytes() <= less.bytes_max && counted(&fewer) == fewer.bytes());
    assert_eq!(held(&mut fewer, &scope("me"), &prompt(2, 2, 4)), 0);
    assert_eq!(held(&mut fewer, &scope("me"), &prompt(1, 0, 3)), 192);
}

#[test]
fn another_maker_a_cut_and_a_changed_byte_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = keeper(dir.path());
    assert!(keeper.load(limits(10), SIZE).unwrap().is_none());
    keeper.save(&full()).unwrap();
    let other = Keeper { made_by: "another".to_owned(), ..keeper.clone() };
    let why = |keeper: &Keeper| keeper.load(limits(10), SIZE).map(|_| ()).unwrap_err().to_string();
    assert!(why(&other).contains("another model"));
    let whole = fs::read(&keeper.file).unwrap();
    for cut in [0, 7, 30, whole.len() / 2, whole.len() - 1] {
        fs::write(&keeper.file, &whole[..cut]).unwrap();
        assert!(keeper.load(limits(10), SIZE).is_err(), "{cut}");
    }
    for at in (0..whole.len()).step_by(97) {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        fs::write(&keeper.file, changed).unwrap();
        assert!(keeper.load(limits(10), SIZE).is_err(), "byte {at}");
    }
    fs::write(&keeper.file, &whole).unwrap();
    fs::write(dir.path().join("prefixes.part"), "half").unwrap();
    assert!(keeper.load(limits(10), SIZE).unwrap().is_some());
    assert!(!dir.path().join("prefixes.part").exists(), "left over by an engine that was killed");
    // Nothing is kept: no file says so.
    keeper.save(&Prefixes::new(limits(10))).unwrap();
    assert!(!keeper.file.exists());
    discard(&keeper.file).unwrap();
}
