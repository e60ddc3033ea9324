//! Generations: the way on disk, damage, interruption at every point, the number that is kept.

use super::*;
use crate::night::inspect::tests::{BASE, adapter};
use crate::night::inspect::{hash_file, inspect};
use crate::night::manifest::AdapterFile;
use crate::night::manifest::tests::manifest;

const NOWHERE: Points = &|_| Ok(());

struct Place {
    dir: tempfile::TempDir,
    generations: Generations,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let generations = Generations::open(dir.path()).unwrap();
        Place { dir, generations }
    }

    fn candidate(&self, fill: f32) -> PathBuf {
        let path = self.dir.path().join("candidate.gguf");
        adapter(&path, BASE, 2, 2, fill);
        path
    }

    /// A manifest that fits the candidate.
    fn manifest(&self, number: u64, candidate: &Path) -> Manifest {
        let facts = inspect(candidate, BASE).unwrap();
        let file = AdapterFile {
            bytes: facts.bytes,
            sha256: facts.sha256,
            rank: facts.rank,
            alpha: facts.alpha,
            targets: facts.targets,
        };
        Manifest { adapter: file, base_hash: BASE.to_owned(), ..manifest(number) }
    }

    fn build(&self, number: u64) {
        let candidate = self.candidate(number as f32 * 0.01);
        self.generations.build(&candidate, &self.manifest(number, &candidate), NOWHERE).unwrap();
    }
}

#[test]
fn the_same_inputs_give_the_same_generation() {
    let (one, two) = (Place::new(), Place::new());
    fs::copy(one.dir.path().join("night.key"), two.dir.path().join("night.key")).unwrap();
    let two = Place { generations: Generations::open(two.dir.path()).unwrap(), ..two };
    for place in [&one, &two] {
        place.build(1);
    }
    for name in [ADAPTER, MANIFEST, SIGNATURE] {
        let hash = |p: &Place| hash_file(&p.dir.path().join("generations/1").join(name)).unwrap();
        assert_eq!(hash(&one), hash(&two), "{name}");
    }
}

#[test]
fn any_flipped_bit_of_the_adapter_is_refused() {
    let place = Place::new();
    place.build(1);
    place.generations.verify(1, BASE).unwrap();
    let path = place.generations.adapter(1);
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, flipped).unwrap();
        assert!(matches!(place.generations.verify(1, BASE), Err(GenerationError::Adapter(1))), "bit {bit}");
    }
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(place.generations.verify(1, BASE).is_err(), "cut short");
    fs::write(&path, &whole).unwrap();
    assert!(matches!(place.generations.verify(1, "other"), Err(GenerationError::Base { .. })));
    // A whole and signed generation under another number.
    fs::rename(place.dir.path().join("generations/1"), place.dir.path().join("generations/2")).unwrap();
    assert!(matches!(place.generations.verify(2, BASE), Err(GenerationError::Number { found: 1, .. })));
    assert!(matches!(place.generations.verify(1, BASE), Err(GenerationError::Absent(1))));
}

#[test]
fn a_damaged_champion_falls_back_to_the_newest_verified_one() {
    let place = Place::new();
    (1..=3).for_each(|n| place.build(n));
    let canary = Canary { generation: 3, stage: 0, percent: 5, began_ms: 0, stage_ms: 0 };
    let pointer = Pointer { champion: 2, previous: 1, canary: Some(canary), ..Pointer::base() };
    place.generations.point(BASE, &pointer).unwrap();
    assert_eq!(place.generations.servable(BASE), (pointer, None));
    let damage = |n: u64| fs::write(place.generations.adapter(n), "x").unwrap();
    damage(3);
    let (found, why) = place.generations.servable(BASE);
    assert_eq!((found.champion, found.canary), (2, None));
    assert!(why.unwrap().contains("generation 3"));
    damage(2);
    assert_eq!(place.generations.servable(BASE).0.champion, 1);
    damage(1);
    assert_eq!(place.generations.servable(BASE).0.champion, 0);
    fs::write(place.dir.path().join("served.json"), "{").unwrap();
    let why = place.generations.servable(BASE).1.unwrap();
    assert!(why.contains("/served.json is damaged: ") && why.contains("`chimere rollback N`"), "{why}");
}

#[test]
fn a_pointer_waits_while_another_base_model_serves() {
    let place = Place::new();
    (1..=3).for_each(|n| place.build(n));
    let back = Pointer { champion: 1, previous: 0, ..Pointer::base() };
    // As a version that knew one base model wrote it.
    fs::write(place.dir.path().join("served.json"), serde_json::to_vec(&back).unwrap()).unwrap();
    assert_eq!(place.generations.servable(BASE), (back, None));
    let other = "another";
    assert_eq!(place.generations.servable(other).0, Pointer::base(), "its generations are not of this model");
    let own = Pointer { champion: 4, ..Pointer::base() };
    place.generations.point(other, &own).unwrap();
    assert_eq!(place.generations.pointer(other).unwrap(), Some(own));
    // Generation 3 is newer, but it was rolled back.
    assert_eq!(place.generations.servable(BASE), (back, None));
    place.generations.point(BASE, &Pointer { champion: 2, ..back }).unwrap();
    assert_eq!(place.generations.pointer(other).unwrap(), Some(own));
    assert_eq!(place.generations.servable(BASE).0.champion, 2);
    assert_eq!(place.generations.pointer("a third").unwrap(), None);
    assert!(learned(place.dir.path()).unwrap());
}

#[test]
fn a_build_that_breaks_anywhere_leaves_all_or_nothing() {
    for point in ["promote.adapter", "promote.signed", "promote.renamed"] {
        let place = Place::new();
        place.build(1);
        let candidate = place.candidate(0.2);
        let manifest = place.manifest(2, &candidate);
        let break_there = |at: &'static str| if at == point { Err(io::Error::other("disk full")) } else { Ok(()) };
        assert!(place.generations.build(&candidate, &manifest, &break_there).is_err());
        let after = Generations::open(place.dir.path()).unwrap();
        let there = after.numbers().unwrap().contains(&2);
        assert_eq!(there, point == "promote.renamed", "{point}");
        assert_eq!(after.verify(2, BASE).is_ok(), there);
        // Again, to the end.
        after.build(&candidate, &manifest, NOWHERE).unwrap();
        after.verify(2, BASE).unwrap();
    }
}

#[test]
fn what_a_killed_process_left_aside_is_removed() {
    let place = Place::new();
    let aside = place.dir.path().join("generations/.new-7");
    fs::create_dir(&aside).unwrap();
    fs::write(aside.join(ADAPTER), "half").unwrap();
    Generations::open(place.dir.path()).unwrap();
    assert!(!aside.exists());
}

#[test]
fn fourteen_are_kept_and_what_is_served_stays() {
    let place = Place::new();
    (1..=18).for_each(|n| place.build(n));
    let pointer = Pointer { champion: 18, previous: 2, ..Pointer::base() };
    assert_eq!(place.generations.next_number(&pointer).unwrap(), 19);
    assert_eq!(place.generations.prune(&pointer).unwrap(), [1, 3, 4, 5]);
    assert_eq!(place.generations.numbers().unwrap().len(), KEPT);
    assert!(place.generations.prune(&pointer).unwrap().is_empty());
    assert!(place.generations.verify(2, BASE).is_ok() && place.generations.verify(18, BASE).is_ok());
}
