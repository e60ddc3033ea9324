//! The gate judged by what it lets through: single rules, and whole nights resampled from paired outcomes.

use super::*;
use std::io::BufRead;

/// A reproducible stream of numbers in 0 … 1 (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

const DOMAINS: [&str; 7] = ["arithmetic", "chat", "code", "cyber", "kine", "research", "tools"];

/// An exam of 2,100 items: each differs with probability `discordance`, so that the candidate's rate is higher
/// by `gain` on average.
fn exam(random: &mut Random, gain: f64, discordance: f64) -> Vec<Pair> {
    let win = (discordance + gain) / 2.0;
    let item = |n: usize| {
        let x = random.next();
        let (champion, candidate) = match x {
            x if x < win => (false, true),
            x if x < discordance => (true, false),
            x => (x < 0.7, x < 0.7),
        };
        Pair { id: format!("item-{n}"), domain: DOMAINS[n % DOMAINS.len()].to_owned(), champion, candidate }
    };
    (0..2_100).map(item).collect()
}

fn evidence(golden: Vec<Pair>, slice: Vec<Pair>) -> Evidence {
    Evidence {
        golden,
        slice,
        file_fault: None,
        kl: Some(0.01),
        update_rms: Some(0.001),
        speed: Some(Speed { ratio: 0.99, low: 0.97, high: 1.01, rounds: 4 }),
        first: false,
    }
}

fn night(seed: u64, gain: f64, discordance: f64) -> Verdict {
    let mut random = Random(seed);
    let golden = exam(&mut random, gain, discordance);
    let slice = if futile(&golden, &Limits::default()) { Vec::new() } else { exam(&mut random, gain, discordance) };
    judge(&evidence(golden, slice), &Limits::default())
}

/// 200 nights of each kind, at the discordance of small and of large updates.
#[test]
fn two_hundred_resampled_nights_go_as_they_should() {
    for discordance in [0.05, 0.10, 0.15] {
        let promoted = |gain: f64| (0..200).filter(|night_no| night(*night_no, gain, discordance).promote).count();
        let (worse, equal, better) = (promoted(-0.03), promoted(0.0), promoted(0.03));
        let (half, one) = (promoted(0.005), promoted(0.01));
        println!(
            "discordance {discordance}: promoted of 200: {worse} at -3 points, {equal} at 0, {half} at +0.5, {one} at +1, {better} at +3"
        );
        assert!(worse <= 10, "{worse} of 200 nights that lost 3 points were promoted");
        assert!(
            equal <= 10,
            "{equal} of 200 nights that changed nothing were promoted: seven nights at that rate are a coin"
        );
        assert!(better >= 160, "only {better} of 200 nights that gained 3 points were promoted");
        assert!(
            one > 4 * equal.max(5),
            "of nights that gained a point {one} of 200 were promoted, and {equal} that gained nothing"
        );
    }
}

/// The same with the real answers of nights that were lived, drawn again with replacement: as they were, with champion
/// and candidate changed over, and with each item's two answers in any order.
#[test]
fn nights_drawn_from_real_ones_go_as_they_should() {
    let nights = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/week/nights.jsonl.gz");
    let lines = crate::simulate::pool::open(nights.as_ref()).unwrap().lines();
    let lived: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let mut random = Random(11);
    for night in lived.iter().filter(|night| night["traffic"] == "domains in turn").take(2) {
        let exam = |name: &str| -> Vec<(usize, u32)> {
            let digits = |key: &str| night[name][key].as_str().unwrap().chars().filter_map(|c| c.to_digit(10));
            digits("domains").map(|d| d as usize).zip(digits("items")).collect()
        };
        let (golden, slice) = (exam("golden"), exam("slice"));
        let mut promoted = |turned: &dyn Fn(f64) -> bool| {
            let mut draw = |items: &[(usize, u32)]| -> Vec<Pair> {
                let one = |n: usize| {
                    let (domain, code) = items[(random.next() * items.len() as f64) as usize];
                    let (mut champion, mut candidate) = (code & 1 > 0, code & 2 > 0);
                    if turned(random.next()) {
                        std::mem::swap(&mut champion, &mut candidate);
                    }
                    Pair { id: n.to_string(), domain: DOMAINS[domain].to_owned(), champion, candidate }
                };
                (0..2_100).map(one).collect()
            };
            let nights = (0..200).filter(|_| judge(&evidence(draw(&golden), draw(&slice)), &Limits::default()).promote);
            nights.count()
        };
        let (worse, equal, better) = (promoted(&|_| true), promoted(&|x| x < 0.5), promoted(&|_| false));
        println!("{}: promoted of 200: {worse} turned, {equal} equal, {better} as it was", night["arm"]);
        assert!(worse <= 10 && equal <= 20 && better >= 160, "{worse} {equal} {better}");
    }
}

fn good() -> Evidence {
    let mut random = Random(3);
    evidence(exam(&mut random, 0.05, 0.1), exam(&mut random, 0.05, 0.1))
}

fn decided(change: impl FnOnce(&mut Evidence)) -> Verdict {
    let mut evidence = good();
    change(&mut evidence);
    judge(&evidence, &Limits::default())
}

#[test]
fn every_rule_alone_rejects_and_says_so() {
    let whole = decided(|_| {});
    assert!(whole.promote && whole.decided_by == Rule::All && whole.findings.len() == 7, "{whole:?}");
    let rules = [
        (decided(|e| e.file_fault = Some("it holds NaN".into())), Rule::File, "it holds NaN"),
        (decided(|e| e.update_rms = Some(0.5)), Rule::UpdateNorm, "more than 0.02"),
        (decided(|e| e.update_rms = Some(f64::NAN)), Rule::UpdateNorm, "more than"),
        (decided(|e| e.kl = Some(2.0)), Rule::Divergence, "more than 0.5"),
        (decided(|e| e.kl = None), Rule::Divergence, "was not measured"),
        (decided(|e| e.golden.truncate(100)), Rule::Overall, "at least 200 items"),
        (decided(|e| e.slice = Vec::new()), Rule::Improvement, "200 items of the slice"),
        (decided(|e| e.speed = None), Rule::Speed, "not measured"),
        (
            decided(|e| e.speed = Some(Speed { ratio: 0.75, low: 0.73, high: 0.77, rounds: 4 })),
            Rule::Speed,
            "under the limit (the champion has an adapter too, limit 0.9)",
        ),
    ];
    for (verdict, rule, words) in rules {
        assert!(!verdict.promote && verdict.decided_by == rule, "{verdict:?}");
        assert!(verdict.words.starts_with("rejected: ") && verdict.words.contains(words), "{}", verdict.words);
    }
}

#[test]
fn the_first_adapter_may_cost_more_than_those_after_it() {
    let at = |first: bool, ratio: f64, limits: &Limits| {
        let speed = Some(Speed { ratio, low: ratio - 0.01, high: ratio + 0.01, rounds: 6 });
        judge(&Evidence { speed, first, ..good() }, limits)
    };
    let shipped = Limits::default();
    for (first, ratio, promoted) in [(true, 0.6, true), (true, 0.4, false), (false, 0.85, false), (false, 0.95, true)] {
        let verdict = at(first, ratio, &shipped);
        let decided_by = if promoted { Rule::All } else { Rule::Speed };
        assert_eq!((verdict.promote, verdict.decided_by), (promoted, decided_by), "{first} {ratio}");
        let words = &verdict.findings[6].words;
        let why = ["(the champion has an adapter too, limit 0.9)", "paid once, limit 0.5)"][usize::from(first)];
        assert!(words.ends_with(why), "{words}");
    }
    // A file of before that asked for less asks the first adapter for no more.
    let low = Limits { speed_min: 0.3, ..Limits::default() };
    assert!(at(true, 0.4, &low).promote && at(false, 0.4, &low).promote);
}

#[test]
fn one_bad_domain_rejects_a_candidate_that_gains_overall() {
    let verdict = decided(|e| {
        for exam in [&mut e.golden, &mut e.slice] {
            for pair in exam.iter_mut().filter(|p| p.domain == "tools").take(40) {
                (pair.champion, pair.candidate) = (true, false);
            }
            for pair in exam.iter_mut().filter(|p| p.domain == "chat").take(80) {
                (pair.champion, pair.candidate) = (false, true);
            }
        }
    });
    assert_eq!(verdict.decided_by, Rule::Domains);
    assert!(verdict.words.contains("tools -") && verdict.words.contains("significant drop"), "{}", verdict.words);
}

#[test]
fn a_domain_of_few_items_is_not_judged_by_its_estimate() {
    let mut pairs = good().golden;
    let small = |n: usize| Pair { id: format!("s{n}"), domain: "small".into(), champion: n == 0, candidate: n == 1 };
    pairs.extend((0..3).map(small));
    pairs.push(Pair { id: "s3".into(), domain: "small".into(), champion: true, candidate: false });
    assert!(judge(&evidence(pairs, good().slice), &Limits::default()).promote);
}

#[test]
fn hope_ends_early_only_for_the_hopeless() {
    let lost = evidence(exam(&mut Random(9), -0.01, 0.1), Vec::new());
    let verdict = judge(&lost, &Limits { margin: 0.05, ..Limits::default() });
    assert!(
        futile(&lost.golden, &Limits::default()) && verdict.words.contains("the slice was not asked"),
        "{}",
        verdict.words
    );
    let limits = Limits::default();
    let first = |gain| exam(&mut Random(9), gain, 0.3).into_iter().take(600).collect::<Vec<_>>();
    assert!(hopeless(&first(-0.25), &limits));
    assert!(!hopeless(&first(-0.01), &limits) && !hopeless(&first(0.03), &limits));
    assert!(!hopeless(&first(-0.25)[..100], &limits), "too few items");
}
