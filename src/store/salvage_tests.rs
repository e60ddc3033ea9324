//! Damage everywhere in the turn log's files: the log opens, what is sound is kept, what was forgotten stays away.

use std::collections::BTreeMap;

use super::super::TurnStore;
use super::super::fixture::turn;
use super::super::record::pack;
use super::super::sectors;
use super::*;
use crate::service::{Session, TurnFilter};
use crate::turn::{ChoiceJudgement, Feedback, Judgement, Turn, Vote};

const BYTES_MAX: u64 = 1 << 28;

/// The numbers of a run, the same at every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// When something was said of a turn: of no other one at the same time.
fn at(life: i64, n: i64) -> i64 {
    100 * life + n
}

/// The session that has come to a turn.
fn session(id: &TurnId) -> Session {
    let name = id.0.replace("turn-", "s");
    Session { principal: "p".to_owned(), name, turn: id.clone(), created_ms: 1, updated_ms: 2 }
}

/// The sessions of a log that has lived, by name.
fn sessions(turns: &[Turn]) -> BTreeMap<String, Session> {
    let has_one = |turn: &&Turn| turn.id.0.ends_with('1');
    turns.iter().filter(has_one).map(|turn| session(&turn.id)).map(|own| (own.name.clone(), own)).collect()
}

/// A log that has lived: turns small and large, feedback, judgements, sessions, forgotten turns, several openings.
fn lived(folder: &Path) -> Vec<Turn> {
    let mut dice = Dice(1);
    let mut kept = Vec::new();
    for life in 0..4 {
        let log = SledTurns::open(folder, BYTES_MAX).unwrap();
        for n in 0..40 {
            let mut turn = turn(&format!("turn-{life}{n:02}"), if n % 5 == 0 { "gone" } else { "p" });
            let ids = if n % 13 == 0 { 60_000 } else { dice.below(2_000) };
            turn.prompt_ids = (0..ids as u32).collect();
            log.append(&turn).unwrap();
            if n % 3 == 0 {
                let vote = Feedback {
                    time_ms: at(life, n),
                    principal: "p".to_owned(),
                    vote: Some(Vote::Up),
                    correction: None,
                    judgement: None,
                };
                log.add_feedback(&turn.id, &vote).unwrap();
                turn.feedback.push(vote);
            }
            if n % 2 == 0 {
                let choice = ChoiceJudgement { index: 0, verdict: 4, p: 0.9, thought_steps: 0, steps: vec![0.9] };
                let judgement = Judgement { time_ms: at(life, n), judge: "j".to_owned(), choices: vec![choice] };
                log.add_judgement(&turn.id, &judgement).unwrap();
                (turn.verdict, turn.judgement) = (judgement.verdict(), Some(judgement));
            }
            if n % 10 == 1 {
                log.put_session(&session(&turn.id)).unwrap();
            }
            kept.push(turn);
        }
        let gone = TurnFilter { principal: Some("gone".to_owned()), ..TurnFilter::default() };
        assert_eq!(log.forget(&gone).unwrap(), 8);
        kept.retain(|turn| turn.principal == "p");
        close(log, folder);
    }
    kept
}

/// Returns once sled writes no more: it does for a moment after its last handle is gone.
fn close(log: SledTurns, folder: &Path) {
    log.flush_now().unwrap();
    drop(log);
    assert!(hold(folder).unwrap().is_some());
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_of(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files_of(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

/// Damages one file, the log itself most of the time; says how.
fn damage_one(folder: &Path, dice: &mut Dice) -> String {
    let files = files_of(folder);
    let file = if dice.below(3) > 0 { folder.join("db") } else { files[dice.below(files.len())].clone() };
    let mut bytes = fs::read(&file).unwrap();
    let at = dice.below(bytes.len());
    let kind = dice.below(8);
    match kind {
        0..=2 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
        3 if !bytes.is_empty() => bytes[at] = !bytes[at],
        4 => bytes.iter_mut().skip(at & !4_095).take(4_096).for_each(|byte| *byte = 0),
        5 => bytes.iter_mut().skip(at).take(64).for_each(|byte| *byte = dice.below(256) as u8),
        6 => bytes.truncate(at),
        _ if dice.below(4) == 0 => {
            fs::remove_file(&file).unwrap();
            return format!("{} removed", file.display());
        }
        _ => bytes.iter_mut().skip(at).take(70_000).for_each(|byte| *byte = dice.below(256) as u8),
    }
    fs::write(&file, bytes).unwrap();
    format!("{}: kind {kind} at {at}", file.display())
}

/// As it was appended: without what was kept beside it later.
fn record(turn: &Turn) -> Vec<u8> {
    pack(&Turn { feedback: Vec::new(), verdict: None, judgement: None, ..turn.clone() }).unwrap()
}

/// Whether the record of each turn is somewhere in the files, whole.
fn sound_in(folder: &Path, turns: &[Turn]) -> BTreeMap<String, bool> {
    let contents: Vec<Vec<u8>> = files_of(folder).iter().map(|file| fs::read(file).unwrap()).collect();
    let mut heads: HashMap<[u8; HEAD_BYTES], Vec<(usize, usize)>> = HashMap::new();
    for (file, bytes) in contents.iter().enumerate() {
        for (at, window) in bytes.windows(HEAD_BYTES + 1).enumerate() {
            if is_format(window[0]) && window[HEAD_BYTES] == b'{' {
                heads.entry(window[..HEAD_BYTES].try_into().unwrap()).or_default().push((file, at));
            }
        }
    }
    let sound = |turn: &Turn| {
        let record = record(turn);
        let head: [u8; HEAD_BYTES] = record[..HEAD_BYTES].try_into().unwrap();
        let mut places = heads.get(&head).into_iter().flatten();
        places.any(|(file, at)| contents[*file][*at..].starts_with(&record))
    };
    turns.iter().map(|turn| (turn.id.0.clone(), sound(turn))).collect()
}

/// What one damaged copy of a log came to.
#[derive(Default)]
struct Outcome {
    salvaged: bool,
    /// Votes and judgements of the turns that are kept, and how many of them are kept.
    beside: usize,
    beside_kept: usize,
    sessions: usize,
    sessions_kept: usize,
    /// What is not as it must be.
    wrong: Vec<String>,
}

fn corruption(whole: &Path, folder: &Path, turns: &[Turn], seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    copy(whole, folder);
    let how = damage_one(folder, &mut Dice(seed * 7_919 + 17));
    let sound = sound_in(folder, turns);
    let log = match open(folder, BYTES_MAX, &rebuild) {
        Ok(log) => log,
        Err(error) => return Outcome { wrong: vec![format!("{how}: {error}")], ..outcome },
    };
    let list = TurnFilter { limit: Some(1_000), ..TurnFilter::default() };
    let kept: BTreeMap<String, Turn> =
        log.list(&list).unwrap().into_iter().map(|turn| (turn.id.0.clone(), turn)).collect();
    // Of what lies beside turns and is lost.
    let mut silent = 0;
    for turn in turns {
        let id = &turn.id.0;
        match kept.get(id) {
            Some(read) if record(read) != record(turn) => outcome.wrong.push(format!("{how}: {id} is another")),
            Some(read) => {
                outcome.beside += turn.feedback.len() + usize::from(turn.judgement.is_some());
                outcome.beside_kept += read.feedback.len() + usize::from(read.judgement.is_some());
                // What is kept beside a turn was said of it, once and in these words.
                let said = read.feedback.iter().all(|own| turn.feedback.contains(own));
                let judged = read.judgement.is_none() || read.judgement == turn.judgement;
                if !said || !judged || read.feedback.len() > turn.feedback.len() {
                    outcome.wrong.push(format!("{how}: {id} has {:?} {:?}", read.feedback, read.judgement));
                }
                silent += turn.feedback.len() - read.feedback.len().min(turn.feedback.len());
                silent += usize::from(turn.judgement.is_some() && read.judgement.is_none());
            }
            None if sound[id] => outcome.wrong.push(format!("{how}: {id} is sound and not kept")),
            None => {}
        }
    }
    let expected = sessions(turns);
    let found = log.sessions("p").unwrap();
    (outcome.sessions, outcome.sessions_kept) = (expected.len(), found.len());
    silent += expected.len().saturating_sub(found.len());
    let strange = found.iter().find(|own| expected.get(&own.name) != Some(*own)).cloned();
    let told = log.salvaged();
    outcome.salvaged = told.is_some();
    let mut demand = |holds: bool, what: String| {
        if !holds {
            outcome.wrong.push(format!("{how}: {what}"));
        }
    };
    demand(kept.values().all(|turn| turn.principal == "p"), "a forgotten turn is back".to_owned());
    demand(strange.is_none(), format!("the session {strange:?} was never there"));
    let said = told.is_some_and(|told| !told.damage.is_empty());
    demand(silent == 0 || said, format!("{silent} votes, judgements and sessions are lost, unsaid"));
    let lost = turns.len().saturating_sub(kept.len());
    demand(lost == 0 || said, format!("{lost} are lost, unsaid"));
    demand(log.counts().unwrap().turns == kept.len() as u64, "the counts are wrong".to_owned());
    // It serves: what is said is kept, and nothing of it is damaged.
    log.append(&turn("turn-new", "p")).unwrap();
    close(log, folder);
    demand(damage(folder).unwrap().is_none(), format!("it is damaged afterwards: {:?}", damage(folder).unwrap()));
    let again = SledTurns::open(folder, BYTES_MAX).unwrap();
    demand(again.counts().unwrap().turns == kept.len() as u64 + 1, "what was said is gone".to_owned());
    outcome
}

fn corruptions(seeds: impl Iterator<Item = u64>) {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let turns = lived(&whole);
    assert_eq!(damage(&whole).unwrap(), None, "a log that has lived is sound");
    assert!(sound_in(&whole, &turns).values().all(|sound| *sound));
    let mut all = Outcome::default();
    for seed in seeds {
        let folder = dir.path().join(format!("turns-{seed}"));
        let outcome = corruption(&whole, &folder, &turns, seed);
        all.salvaged |= outcome.salvaged;
        (all.beside, all.beside_kept) = (all.beside + outcome.beside, all.beside_kept + outcome.beside_kept);
        all.sessions += outcome.sessions;
        all.sessions_kept += outcome.sessions_kept;
        all.wrong.extend(outcome.wrong.into_iter().map(|wrong| format!("{seed}: {wrong}")));
        fs::remove_dir_all(&folder).unwrap();
        discard_damaged(&folder).unwrap();
    }
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    assert!(all.salvaged);
    let (kept, of) = (all.beside_kept, all.beside);
    // How many is a matter of where the damage falls: a lost page of votes costs those of several turns.
    assert!(kept * 100 >= of * 85, "{kept} of {of} votes and judgements of kept turns are kept");
    // The sessions of a log lie on few pages: a page that is lost takes all of them.
    let (kept, of) = (all.sessions_kept, all.sessions);
    assert!(kept * 100 >= of * 70, "{kept} of {of} sessions are kept");
}

#[test]
fn damage_anywhere_costs_what_is_damaged_alone() {
    // The last one leaves of many turns only what a segment held before it was filled again.
    corruptions((0..12).chain([48]));
}

/// Cells of the disk that give nothing any more, in the log, in a blob, in the small files.
#[test]
fn what_the_disk_cannot_read_costs_what_lies_there_alone() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let turns = lived(&whole);
    let blob = files_of(&whole.join("blobs")).into_iter().next().unwrap();
    for (n, (file, at)) in [(whole.join("db"), 0), (whole.join("db"), 64 << 10), (blob, 4_096), (whole.join("conf"), 0)]
        .into_iter()
        .enumerate()
    {
        let folder = dir.path().join(format!("turns-{n}"));
        copy(&whole, &folder);
        let file = folder.join(file.strip_prefix(&whole).unwrap());
        let mut bytes = fs::read(&file).unwrap();
        let block = at..bytes.len().min(at + 4_096);
        bytes[block].fill(0);
        // What may be kept is what is sound in the rest.
        fs::write(&file, &bytes).unwrap();
        let sound = sound_in(&folder, &turns);
        sectors::LOST.replace(vec![(bytes.len() as u64, at as u64)]);
        let log = open(&folder, BYTES_MAX, &rebuild);
        sectors::LOST.replace(Vec::new());
        let log = log.unwrap();
        let told = log.salvaged().unwrap();
        assert!(told.told().contains("damage") && !told.set_aside, "{}", told.told());
        let list = TurnFilter { limit: Some(1_000), ..TurnFilter::default() };
        let kept: BTreeSet<String> = log.list(&list).unwrap().into_iter().map(|turn| turn.id.0).collect();
        let lost: Vec<&String> =
            sound.iter().filter(|(id, sound)| **sound && !kept.contains(*id)).map(|(id, _)| id).collect();
        assert!(lost.is_empty(), "{}: {lost:?}", file.display());
        println!("{} at {at}: {}", file.display(), told.told());
    }
}

#[test]
fn a_second_damage_leaves_the_first_set_aside_log_and_no_removal_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("turns");
    let mut told = Vec::new();
    for n in 0..DAMAGED_MAX + 2 {
        let log = SledTurns::open(&folder, BYTES_MAX).unwrap();
        log.append(&turn(&format!("turn-{n}"), "p")).unwrap();
        close(log, &folder);
        fs::write(folder.join("conf"), "no").unwrap();
        let log = open(&folder, BYTES_MAX, &rebuild).unwrap();
        told.push(log.salvaged().unwrap());
        drop(log);
    }
    let names: Vec<String> =
        told.iter().map(|told| told.damaged.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names[..3], ["turns.damaged", "turns.damaged.2", "turns.damaged.3"]);
    let there: Vec<bool> = told.iter().map(|told| told.damaged.join("db").exists()).collect();
    assert_eq!(there, [false, false, true, true, true]);
    assert_eq!(told[3].removed, [told[0].damaged.clone()]);
    assert!(told[4].told().contains("turns.damaged.2 was removed"), "{}", told[4].told());
    discard_damaged(&folder).unwrap();
    assert!(damaged(&folder).unwrap().is_empty() && folder.exists(), "what is forgotten lies nowhere");
}

#[test]
fn a_damaged_blob_is_seen_whether_its_page_was_replaced_or_not() {
    let dir = tempfile::tempdir().unwrap();
    lived(dir.path());
    let blobs: Vec<PathBuf> = files_of(&dir.path().join("blobs"));
    assert!(!blobs.is_empty());
    let named: HashSet<i64> = Found::read(dir.path(), Forgotten::read(dir.path())).unwrap().blobs;
    for path in blobs {
        let bytes = fs::read(&path).unwrap();
        let number: i64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(damage(dir.path()).unwrap().is_some(), named.contains(&number), "{}", path.display());
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(damage(dir.path()).unwrap(), None);
}

#[test]
#[ignore = "200 damaged logs: minutes"]
fn two_hundred_corruptions_cost_what_is_damaged_alone() {
    corruptions(0..200);
}

#[test]
fn a_log_that_was_not_closed_is_sound_or_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (live, cut) = (dir.path().join("live"), dir.path().join("cut"));
    let log = SledTurns::open(&live, BYTES_MAX).unwrap();
    for n in 0..60 {
        log.append(&turn(&format!("turn-{n:03}"), "p")).unwrap();
        if n % 20 == 19 {
            log.flush_now().unwrap();
            copy(&live, &cut);
            let opened = open(&cut, BYTES_MAX, &rebuild).unwrap();
            assert_eq!(opened.counts().unwrap().turns, n + 1);
            assert_eq!(opened.salvaged(), None, "files of a killed daemon are not damaged");
            drop(opened);
            fs::remove_dir_all(&cut).unwrap();
        }
    }
}

#[test]
fn what_nothing_can_be_made_of_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("turns");
    lived(&folder);
    fs::write(folder.join("conf"), "no").unwrap();
    let dies = |_: &Path, _: &Path, _: u64| Err(StoreError::Broken("it was killed".to_owned()));
    let log = open(&folder, BYTES_MAX, &dies).unwrap();
    let told = log.salvaged().unwrap();
    assert!(told.set_aside && told.damage.contains("it was killed"), "{told:?}");
    log.append(&turn("turn-new", "p")).unwrap();
    assert!(beside(&folder, "damaged").join("db").exists());
    assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
    assert!(!beside(&folder, "damaged").exists(), "what is forgotten lies nowhere");
    // A disk that is full is no damage: later is another chance.
    fs::write(folder.join("conf"), "no").unwrap();
    drop(log);
    let full = |_: &Path, _: &Path, _: u64| Err(StoreError::Disk("full".to_owned()));
    assert!(matches!(open(&folder, BYTES_MAX, &full), Err(StoreError::Disk(_))));
    assert!(open(&folder, BYTES_MAX, &rebuild).is_ok());
}

#[test]
fn a_salvage_that_is_ended_from_outside_is_tried_again_and_loses_nothing() {
    use std::process::Command;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("turns");
    let turns = lived(&folder);
    fs::write(folder.join("conf"), "no").unwrap();
    let by = |script: &str| {
        let program = dir.path().join("program");
        // By a process of its own: a child of another test that is forked meanwhile would hold the file open for writing.
        let made = format!("printf '#!/bin/sh\\n%s\\n' '{script}' > program && chmod 700 program");
        assert!(Command::new("/bin/sh").args(["-c", &made]).current_dir(dir.path()).status().unwrap().success());
        open(&folder, BYTES_MAX, &|from, to, bytes_max| rebuild_apart(&program, from, to, bytes_max))
    };
    // Whoever starts a test in the background may have it ignore the others.
    for signal in ["TERM", "KILL"] {
        let error = by(&format!("kill -{signal} $$")).err().expect("it was ended");
        assert!(matches!(&error, StoreError::Disk(why) if why.contains("was ended")), "{signal}: {error}");
        assert!(folder.join("db").exists() && !beside(&folder, "damaged").exists(), "{signal}");
    }
    let log = open(&folder, BYTES_MAX, &rebuild).unwrap();
    assert_eq!(log.counts().unwrap().turns, turns.len() as u64);
    drop(log);
    // One that fails by itself will fail again.
    fs::write(folder.join("conf"), "no").unwrap();
    assert!(by("exit 101").unwrap().salvaged().unwrap().set_aside);
}

#[test]
fn a_log_that_is_still_open_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("turns");
    let turns = lived(&folder);
    let log = SledTurns::open(&folder, BYTES_MAX).unwrap();
    fs::write(folder.join("conf"), "no").unwrap();
    assert!(matches!(open(&folder, BYTES_MAX, &rebuild), Err(StoreError::Disk(why)) if why.contains("still open")));
    log.append(&turn("turn-new", "p")).unwrap();
    close(log, &folder);
    let log = open(&folder, BYTES_MAX, &rebuild).unwrap();
    assert_eq!(log.counts().unwrap().turns, turns.len() as u64 + 1);
}

/// sled uses the places of segments again: what the last one held before lies behind its end.
#[test]
fn a_log_whose_places_are_used_again_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let (mut dice, mut again, mut latest) = (Dice(7), 0, None);
    for life in 0..12 {
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        for n in 0..50 {
            let mut turn = turn(&format!("turn-{life:02}{n:02}"), "p");
            turn.prompt_ids = (0..dice.below(8_000) as u32).collect();
            log.append(&turn).unwrap();
        }
        close(log, dir.path());
        assert_eq!(damage(dir.path()).unwrap(), None, "life {life}");
        let mut last = None;
        sled_files::segments(dir.path(), |segment| {
            last = std::mem::take(&mut last).into_iter().chain([segment]).max_by_key(|segment| segment.number);
        })
        .unwrap();
        let (last, db) = (last.unwrap(), dir.path().join("db"));
        again += u32::from(last.bytes[last.messages.last().unwrap().body.end..].iter().any(|byte| *byte != 0));
        // The end of the last message is lost: that is still seen.
        let mut bytes = fs::read(&db).unwrap();
        let at = last.place as usize + last.messages.last().unwrap().body.end - 1;
        bytes[at] ^= 1;
        let damaged = tempfile::tempdir().unwrap();
        copy(dir.path(), damaged.path());
        fs::write(damaged.path().join("db"), bytes).unwrap();
        assert!(damage(damaged.path()).unwrap().is_some(), "life {life}");
        if last.bytes[last.older.clone()].iter().any(|byte| *byte != 0) {
            latest = Some((last, fs::read(&db).unwrap(), damaged));
        }
    }
    // So is one wrong byte in the head of the last message, though older messages lie behind it.
    let (last, whole, damaged) = latest.unwrap();
    let (db, begins) = (damaged.path().join("db"), last.place as usize);
    let message = last.messages.last().unwrap();
    for at in begins + (message.number - last.number) as usize..begins + message.body.start {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&db, bytes).unwrap();
        assert!(damage(damaged.path()).unwrap().is_some(), "byte {} of the head", at - begins);
    }
    assert!(again > 2, "{again} last segments lay where others had lain");
}
