//! Whole tables: written, read, changed, damaged, poisoned.

use proptest::prelude::*;

use super::count::{Corpus, CountRules};
use super::draft::{DELETE_AFTER_S, HALVE_AFTER_S};
use super::fixtures::{PRINT, VOCAB, open, small, source};
use super::key::{Key, key};
use super::learned::{Learned, Record, learn};
use super::table::Run;
use super::*;

const DAY_S: i64 = 86_400;

fn next(table: &Table, context: &[u32]) -> Vec<(u32, u16)> {
    let run = table.view().find(key(context), context.len() + 1);
    run.into_iter().flat_map(Run::entries).map(|e| (if e.is_rest() { u32::MAX } else { e.token }, e.count)).collect()
}

#[test]
fn what_is_written_is_read_with_its_provenance() {
    let table = open(small()).unwrap();
    assert_eq!(next(&table, &[1, 2, 3]), [(50, 3)]);
    assert_eq!(next(&table, &[2, 3]), [(70, 1), (u32::MAX, 4)]);
    assert_eq!(next(&table, &[1, 2, 4]), []);
    assert_eq!(next(&table, &[3, 2, 1]), [], "the order of tokens counts");
    let run = table.view().find(key(&[1, 2, 3, 4, 5]), 6).unwrap();
    let entry = run.entries().next().unwrap();
    assert_eq!(table.sources()[entry.source as usize], source("ada", 10));
    let (keys, tokens): (Vec<_>, Vec<_>) = table.all().map(|(c, r)| (c.clone(), r.entries().count())).unzip();
    assert_eq!(keys.len(), table.contexts());
    assert_eq!(tokens.iter().sum::<usize>(), table.entries());
    assert_eq!(small(), small(), "the same contents give the same bytes");
    let error = Table::open(Bytes::Owned(small()), Some(&[8; 32])).unwrap_err();
    assert!(
        matches!(&error, EngramError::Tokenizer { .. }) && error.to_string().contains("this model has 080808080808")
    );
}

#[test]
fn the_check_rejects_another_context_in_the_same_place() {
    let table = open(small()).unwrap();
    let good = key(&[1, 2, 3]);
    assert!(table.view().find_unfiltered(good, 4).is_some());
    // The same place, as a collision of the keys would have it, with another check or another order.
    assert!(table.view().find_unfiltered(Key { check: good.check ^ 1, ..good }, 4).is_none());
    assert!(table.view().find_unfiltered(good, 5).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Any change of any byte is an error: the digest covers all of the file.
    #[test]
    fn a_changed_byte_is_refused(at in any::<prop::sample::Index>(), flip in 1u8..=255) {
        let mut bytes = small();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(open(bytes).is_err());
    }

    /// Behind a right digest too, wrong contents are an error or mean the same; never a panic.
    #[test]
    fn a_changed_byte_with_a_right_digest_is_refused_or_harmless(
        at in any::<prop::sample::Index>(), flip in 1u8..=255, history in prop::collection::vec(0u32..12, 0..7),
    ) {
        let mut bytes = small();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        super::format::reseal(&mut bytes);
        if let Ok(table) = Table::open(Bytes::Owned(bytes), None) {
            let _ = table.sources();
            let mut lookups = Lookups::default();
            let proposal = propose(&history, &[table.view()], None, &mut lookups);
            for (token, p) in proposal.into_iter().flat_map(|p| p.candidates) {
                prop_assert!(token < table.vocab() && p.is_finite());
            }
        }
    }

    #[test]
    fn any_bytes_and_any_length_return(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 0usize..2000) {
        prop_assert!(open(bytes).is_err());
        let mut short = small();
        short.truncate(cut.min(short.len() - 1));
        prop_assert!(open(short).is_err());
    }

    /// What a map holds can be found in the table, and nothing else.
    #[test]
    fn a_table_agrees_with_a_map(
        n_grams in prop::collection::vec((prop::collection::vec(0u32..30, 1..6), 0u32..30, 1u16..9), 1..200),
        asked in prop::collection::vec(prop::collection::vec(0u32..30, 1..6), 50),
    ) {
        let mut draft = Draft::new(PRINT, VOCAB).unwrap();
        let number = draft.source(source("ada", 1)).unwrap();
        let mut map: std::collections::HashMap<Vec<u32>, std::collections::BTreeMap<u32, u16>> = Default::default();
        for (context, token, count) in &n_grams {
            draft.add(context, *token, *count, number).unwrap();
            *map.entry(context.clone()).or_default().entry(*token).or_default() += count;
        }
        let table = open(draft.finish("t", "", "", None).unwrap()).unwrap();
        for context in map.keys().chain(&asked) {
            let mut found = next(&table, context);
            found.sort_unstable();
            let wanted: Vec<_> = map.get(context).into_iter().flatten().map(|(t, c)| (*t, *c)).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}

/// Version 1 had other bytes in its filter.
#[test]
fn a_table_of_version_1_answers_and_becomes_version_2() {
    let mut old = small();
    let filter = super::format::filter_of(&old);
    old[filter].fill(0);
    old[4] = 1;
    super::format::reseal(&mut old);
    let old = open(old).unwrap();
    assert_eq!(next(&old, &[1, 2, 3]), [(50, 3)]);
    assert_eq!(next(&old, &[1, 2, 4]), []);
    assert_eq!(Draft::of(&old).unwrap().finish("small", "a test", "none", None).unwrap(), small());
    for version in [0, 3] {
        let mut other = small();
        other[4] = version;
        assert!(matches!(open(other), Err(EngramError::Version(found)) if found == u32::from(version)));
    }
}

#[test]
fn merging_adds_and_keeps_who_said_what() {
    let table = open(small()).unwrap();
    let mut draft = Draft::of(&table).unwrap();
    assert_eq!(draft.finish("small", "a test", "none", None).unwrap(), small());
    let eve = draft.source(source("eve", 30)).unwrap();
    draft.add(&[1, 2, 3], 99, 1, eve).unwrap();
    let other = open(draft.finish("other", "", "", None).unwrap()).unwrap();
    draft.merge(&table).unwrap();
    let merged = open(draft.finish("merged", "", "", None).unwrap()).unwrap();
    assert_eq!(next(&other, &[1, 2, 3]), [(50, 3), (99, 1)]);
    assert_eq!(next(&merged, &[1, 2, 3]), [(50, 6), (99, 1)]);
    let foreign = Draft::new([9; 32], VOCAB).unwrap().finish("f", "", "", None).unwrap();
    assert!(matches!(
        draft.merge(&Table::open(Bytes::Owned(foreign), None).unwrap()),
        Err(EngramError::Tokenizer { .. })
    ));
}

#[test]
fn revoking_leaves_no_trace() {
    let table = open(small()).unwrap();
    let mut draft = Draft::of(&table).unwrap();
    let change = draft.revoke("bob");
    assert_eq!((change.sources, draft.revoke("bob")), (1, Change::default()));
    let bytes = draft.finish("small", "a test", "none", None).unwrap();
    assert!(!bytes.windows(3).any(|w| w == b"bob"), "not even the name");
    let table = open(bytes).unwrap();
    assert_eq!(next(&table, &[2, 3]), [], "a context of his alone is gone");
    assert_eq!(next(&table, &[1, 2, 3]), [(50, 3)]);
    assert_eq!(draft.revoke_origin("turn of ada").sources, 1);
    assert_eq!(draft.contexts(), 0);
}

#[test]
fn age_halves_once_and_then_deletes() {
    let mut draft = Draft::new(PRINT, VOCAB).unwrap();
    let now = 1000 * DAY_S;
    let ages = [("fresh", 1), ("old", 31), ("ancient", 91)];
    for (n, (who, days)) in ages.into_iter().enumerate() {
        let number = draft.source(source(who, now - days * DAY_S)).unwrap();
        draft.add(&[n as u32], 5, 4, number).unwrap();
    }
    let curated = draft.source(Source { time_s: 0, verdict: 0, ..source("", 0) }).unwrap();
    draft.add(&[9], 5, 100, curated).unwrap();
    assert_eq!(HALVE_AFTER_S * 3, DELETE_AFTER_S);
    draft.decay(now);
    let once = draft.finish("t", "", "", None).unwrap();
    assert_eq!(draft.decay(now), Change::default(), "a second night changes nothing");
    assert_eq!(draft.finish("t", "", "", None).unwrap(), once);
    let table = open(once).unwrap();
    let weight = |context: u32| {
        let run = table.view().find(key(&[context]), 2)?;
        run.entries().next().map(|e| table.view().weight(e))
    };
    assert_eq!([weight(0), weight(1), weight(2), weight(9)], [Some(4.0), Some(2.0), None, Some(100.0)]);
    draft.decay(now + 60 * DAY_S);
    assert_eq!(draft.contexts(), 2, "fresh is now old, old is gone");
}

#[test]
fn back_off_gives_a_distribution_that_trusts_long_matches() {
    let mut draft = Draft::new(PRINT, VOCAB).unwrap();
    let curated = draft.source(Source { time_s: 0, verdict: 0, ..source("", 0) }).unwrap();
    draft.add(&[3], 7, 90, curated).unwrap();
    draft.add(&[3], 8, 10, curated).unwrap();
    draft.add(&[1, 2, 3], 8, 20, curated).unwrap();
    let table = open(draft.finish("t", "", "", None).unwrap()).unwrap();
    let ask = |history: &[u32]| propose(history, &[table.view()], None, &mut Lookups::default());
    let short = ask(&[5, 5, 3]).unwrap();
    assert_eq!((short.order, short.candidates.len()), (2, 2));
    let long = ask(&[9, 1, 2, 3]).unwrap();
    assert_eq!(long.order, 4);
    let p = |p: &Proposal, token| p.candidates.iter().find(|c| c.0 == token).map_or(0.0, |c| c.1);
    // Witten–Bell by hand: p₂ = (90, 10)/102 up to the model's share; p₄(8) = (20 + p₂(8))/21.
    let (two7, two8) = (90.0 / 102.0, 10.0 / 102.0);
    let (four7, four8) = (two7 / 21.0, 20.0 / 21.0 + two8 / 21.0);
    assert!((p(&long, 8) - four8 / (four7 + four8)).abs() < 1e-5, "{long:?}");
    assert!((p(&short, 7) - 0.9).abs() < 1e-5);
    assert!(long.confidence > short.confidence);
    assert!((long.candidates.iter().map(|c| c.1).sum::<f32>() - 1.0).abs() < 1e-6);
    assert_eq!(ask(&[5, 5, 5]), None);
    assert_eq!(ask(&[]), None);
}

#[test]
fn passages_help_with_long_contexts_alone() {
    let dynamic = Dynamic::of(&[vec![1, 2, 3, 4, 5, 6], vec![9, 2, 3, 4, 8]]);
    let ask = |history: &[u32]| propose(history, &[], Some(&dynamic), &mut Lookups::default());
    assert_eq!(ask(&[7, 7, 4, 5]), None, "two tokens say too little");
    assert_eq!(ask(&[3, 4, 5]).unwrap().candidates, [(6, 1.0)]);
    let both: Vec<u32> = ask(&[2, 3, 4]).unwrap().candidates.iter().map(|c| c.0).collect();
    assert_eq!(both, [5, 8]);
    assert_eq!(ask(&[1, 2, 3, 4]).unwrap().order, 5);
}

#[test]
fn counting_keeps_what_several_documents_say_within_the_size() {
    let mut corpus = Corpus::new(VOCAB as usize);
    let mut draft = Draft::new(PRINT, VOCAB).unwrap();
    let number = draft.source(Source { time_s: 0, verdict: 0, ..source("", 0) }).unwrap();
    for document in 0..50u32 {
        let noise = |n: u32| 100 + (document * 37 + n * 11) % 800;
        let mut tokens: Vec<u32> = (0..20).map(noise).collect();
        tokens.extend([1, 2, 3, 4, 5, 6]);
        tokens.extend([900 + document % 3; 4]);
        corpus.add(tokens, number).unwrap();
    }
    // One document that says the same thing often is still one document.
    corpus.add([20, 21, 22, 23].repeat(30), number).unwrap();
    corpus.count_into(&mut draft, &CountRules::default()).unwrap();
    let table = open(draft.finish("t", "", "", None).unwrap()).unwrap();
    let expected = |history: &[u32]| propose(history, &[table.view()], None, &mut Lookups::default());
    let six = expected(&[1, 2, 3, 4, 5]).unwrap();
    assert!(six.order >= 3 && six.candidates == [(6, 1.0)], "{six:?}");
    assert_eq!(expected(&[20, 21, 22]), None);
    let mut small = Draft::new(PRINT, VOCAB).unwrap();
    small.source(source("", 0)).unwrap();
    corpus.count_into(&mut small, &CountRules { bytes_max: 4600, ..CountRules::default() }).unwrap();
    let bytes = small.finish("t", "", "", None).unwrap();
    assert!(small.contexts() > 3 && bytes.len() < 4600, "{} contexts, {} bytes", small.contexts(), bytes.len());
    assert!(corpus.add(vec![VOCAB], number).is_err());
}

fn record(principal: &str, tokens: &[u32]) -> Record {
    Record { tokens: tokens.to_vec(), principal: principal.into(), origin: "turn".into(), verdict: 5, time_s: 5 }
}

/// The table for everybody that comes of these.
fn shared(learned: &Learned, vocab: u32) -> Draft {
    let own: Vec<Table> =
        learned.own.values().map(|draft| open(draft.finish("own", "", "", None).unwrap()).unwrap()).collect();
    super::learned::shared(&own, PRINT, vocab).unwrap()
}

#[test]
fn the_shared_table_takes_only_what_several_have_said() {
    let common = [1, 2, 3, 4, 5, 6];
    let mut records = vec![record("ada", &common), record("bob", &common), record("eve", &[1, 2, 3, 4, 9, 9, 9])];
    records.push(Record { verdict: 2, ..record("zoe", &common) });
    let learned = learn(&records, PRINT, VOCAB).unwrap();
    assert_eq!(learned.left_out, 1);
    let shared = open(shared(&learned, VOCAB).finish("learned", "", "", None).unwrap()).unwrap();
    assert_eq!(next(&shared, &[1, 2, 3, 4]), [(5, 1), (5, 1)], "one from each of the two");
    assert_eq!(next(&shared, &[2, 3, 4, 5]), [(6, 1), (6, 1)]);
    let short: Vec<_> = shared.all().map(|(context, _)| context).filter(|c| c.len() < 4).collect();
    assert_eq!(short, [[1, 2, 3]], "a short context takes three, as eve makes of this one");
    let entries: Vec<_> = shared.all().flat_map(|(_, run)| run.entries()).collect();
    assert!(entries.iter().all(|e| e.token != 9), "what eve alone said stays hers");
    let eve = open(learned.own["eve"].finish("learned-eve", "", "", Some("eve")).unwrap()).unwrap();
    assert_eq!(next(&eve, &[1, 2, 3, 4]), [(9, 1)]);
    assert_eq!(eve.meta().owner.as_deref(), Some("eve"));
    assert!(!learned.own.contains_key("zoe"));
}

#[test]
fn a_shared_continuation_goes_with_the_last_but_one_who_said_it() {
    let common = [1, 2, 3, 4, 5, 6];
    let records: Vec<Record> = ["ada", "bob"].iter().map(|who| record(who, &common)).collect();
    let mut shared = shared(&learn(&records, PRINT, VOCAB).unwrap(), VOCAB);
    assert_eq!(shared.keep_supported(super::learned::principals_min), Change::default());
    shared.revoke("ada");
    assert!(shared.contexts() > 0);
    let change = shared.keep_supported(super::learned::principals_min);
    assert_eq!((shared.contexts(), change.sources), (0, 1), "bob alone is not enough");
}

/// Ten records whose author knows what others say most, against the answers of an exam: the worst case.
#[test]
fn ten_crafted_records_reach_nobody_elses_lookups() {
    let exam = std::fs::File::open(crate::installation().join("nano/golden/slice.jsonl.gz")).unwrap();
    let exam = std::io::read_to_string(flate2::read::GzDecoder::new(exam)).unwrap();
    let mut words = std::collections::HashMap::new();
    let mut text: Vec<u32> = Vec::new();
    for word in exam.split_whitespace().take(200_000) {
        let next = words.len() as u32;
        text.push(*words.entry(word.to_owned()).or_insert(next));
    }
    let vocab = words.len() as u32 + 1;
    let mut frequent: std::collections::HashMap<&[u32], usize> = Default::default();
    text.windows(6).for_each(|w| *frequent.entry(w).or_default() += 1);
    let mut frequent: Vec<_> = frequent.into_iter().collect();
    frequent.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let worst: Vec<u32> = frequent.iter().flat_map(|(w, _)| w.iter().copied().take(5).chain([vocab - 1])).collect();
    let crafted: Vec<Record> =
        worst.chunks(super::learned::RECORD_TOKENS_MAX).take(10).map(|t| record("eve", t)).collect();
    assert_eq!(crafted.len(), 10);
    let reach = |table: &Table| {
        let hit = |at: usize| table.view().look_up(&text[..at]).iter().any(Option::is_some);
        (1..text.len()).filter(|at| hit(*at)).count() as f64 / text.len() as f64
    };
    let learned = learn(&crafted, PRINT, vocab).unwrap();
    let shared = open(shared(&learned, vocab).finish("learned", "", "", None).unwrap()).unwrap();
    let own = open(learned.own["eve"].finish("own", "", "", Some("eve")).unwrap()).unwrap();
    assert!(reach(&own) > 0.05, "the records do hit what they were made for: {}", reach(&own));
    assert!(reach(&shared) <= 0.01, "{}", reach(&shared));
}
