//! The `branch` step of a file: two lists of hidden steps, and the condition that decides between them.

use serde::Deserialize;

use super::program::{Program, ProgramStep, ProgramWork, RawStep, check_name};
use crate::intent::check_word;
use crate::turn::Condition;

/// Words that a condition may hold.
const WORDS_MAX: usize = 256;

/// A branch, as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawBranch {
    name: Option<String>,
    when: Condition,
    #[serde(default)]
    steps: Vec<RawStep>,
    #[serde(default)]
    otherwise: Vec<RawStep>,
}

impl RawBranch {
    /// The step number `at` of a program, behind what it has so far.
    pub(super) fn checked(self, before: &Program, at: usize) -> Result<ProgramStep, String> {
        let RawBranch { name, when, steps, otherwise } = self;
        let name = name.unwrap_or_else(|| format!("step{}", at + 1));
        check_name(&name)?;
        check_condition(&when, before)?;
        if steps.is_empty() && otherwise.is_empty() {
            return Err("is a `branch` with no steps on either side".to_owned());
        }
        let first = steps.len();
        let steps = side(steps, "steps", &name, 1, before, at)?;
        let otherwise = side(otherwise, "otherwise", &name, first + 1, before, at)?;
        Ok(ProgramStep { name, work: ProgramWork::Branch(when, steps, otherwise) })
    }
}

/// One side of a branch. Its steps see what was before the branch and each other, and not the other side.
fn side(
    raw: Vec<RawStep>,
    field: &str,
    branch: &str,
    number: usize,
    before: &Program,
    at: usize,
) -> Result<Vec<ProgramStep>, String> {
    let mut known = before.clone();
    for (n, raw) in raw.into_iter().enumerate() {
        let within = |message: String| format!("{field}[{n}] {message}");
        let RawStep::Generate(mut raw) = raw else {
            return Err(within("is not `generate`: a branch holds hidden `generate` steps alone".to_owned()));
        };
        raw.name.get_or_insert_with(|| format!("{branch}_{}", number + n));
        // What comes behind it is the program's.
        let step = known.generate(raw, at, usize::MAX).map_err(within)?;
        known.push(step).map_err(within)?;
    }
    Ok(known.steps.split_off(before.steps.len()))
}

fn check_condition(when: &Condition, before: &Program) -> Result<(), String> {
    let Condition { tiers, words_min, asks, step, says } = when;
    if tiers.is_empty() && words_min.is_none() && asks.is_empty() && step.is_none() && says.is_empty() {
        return Err("has a `when` that asks nothing: tiers, words_min, asks, or a step and what it says".to_owned());
    }
    if *words_min == Some(0) {
        return Err("has words_min 0, which every question has".to_owned());
    }
    match step {
        Some(_) if says.is_empty() => return Err("has a `when` with a step, but without what it `says`".to_owned()),
        Some(step) if !before.hidden(step) => {
            return Err(format!("asks the step `{step}`, which is no hidden step before it"));
        }
        None if !says.is_empty() => {
            return Err("has a `when` with `says`, but without the step that says it".to_owned());
        }
        _ => {}
    }
    for (field, words) in [("asks", asks), ("says", says)] {
        if words.len() > WORDS_MAX {
            return Err(format!("has more than {WORDS_MAX} words in `{field}`"));
        }
        for word in words {
            check_word(word).map_err(|why| format!("has {word:?} in `{field}`: {why}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::pipeline::{Pipeline, Program};

    fn read(steps: &str) -> Result<Program, String> {
        let text = format!("name: code\nversion: 1\nfollow_model: true\nsteps: {steps}\n");
        let read = Pipeline::parse(&text, "code.yaml", "code", false);
        read.map(|pipeline| pipeline.program).map_err(|error| error.to_string())
    }

    #[test]
    fn a_branch_costs_what_its_dearer_side_costs() {
        let program = read(
            "[{branch: {when: {tiers: [ultra]}, steps: [{generate: {name: a, max_tokens: 10}}, {generate: {}}], \
             otherwise: [{generate: {max_tokens: 5}}]}}, {generate: {instruction: '{{a}} {{step1_2}} {{step1_3}}'}}]",
        )
        .unwrap();
        assert_eq!(program.hidden_tokens(), 10 + 512);
        let names: Vec<&str> = program.all().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["step1", "a", "step1_2", "step1_3", "answer"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place_and_the_reason() {
        let hidden = "{generate: {}}";
        let asked = |when: &str| format!("[{{branch: {{when: {when}, steps: [{hidden}]}}}}, {hidden}]");
        let sides = |sides: &str| {
            format!("[{{generate: {{name: a}}}}, {{branch: {{name: b, when: {{words_min: 1}}, {sides}}}}}, {hidden}]")
        };
        let many = vec!["word"; 257].join(", ");
        for (steps, words) in [
            (asked("{}"), "[0] has a `when` that asks nothing"),
            (asked("{words_min: 0}"), "[0] has words_min 0"),
            (asked("{step: a, says: [b]}"), "[0] asks the step `a`, which is no hidden step before it"),
            (asked("{says: [b]}"), "without the step that says it"),
            (asked("{step: a}"), "without what it `says`"),
            (asked("{asks: ['']}"), "[0] has \"\" in `asks`: words must not be empty"),
            (asked("{asks: ['a*']}"), "needs three letters beside it"),
            (asked("{asks: [\"\\u0301\"]}"), "beside its accents"),
            (asked(&format!("{{asks: [{many}]}}")), "more than 256 words in `asks`"),
            (asked("{tiers: [best]}"), "unknown variant `best`"),
            (asked("{route: code}"), "route"),
            (sides("steps: [], otherwise: []"), "[1] is a `branch` with no steps on either side"),
            (sides("steps: [{judge: {}}]"), "[1] steps[0] is not `generate`"),
            (sides("otherwise: [{branch: {when: {words_min: 1}}}]"), "[1] otherwise[0] is not `generate`"),
            (sides("steps: [{generate: {hidden: false}}]"), "[1] steps[0] is not hidden"),
            (sides("steps: [{generate: {name: a}}]"), "[1] steps[0] is called `a` as an earlier step is"),
            (sides("steps: [{generate: {name: b}}]"), "[1] is called `b` as an earlier step is"),
            (
                sides("steps: [{generate: {name: c}}], otherwise: [{generate: {name: c}}]"),
                "[1] is called `c` as an earlier step is",
            ),
            (
                sides("steps: [{generate: {name: c}}], otherwise: [{generate: {instruction: '{{c}}'}}]"),
                "[1] otherwise[0] names `{{c}}`, which is no hidden step before it",
            ),
            (sides("steps: [{generate: {max_tokens: 16384}}]"), "16896 hidden tokens"),
            (sides(&format!("steps: [{}]", vec![hidden; 14].join(", "))), "holds more than 16 steps"),
            (
                format!("[{hidden}, {{branch: {{when: {{words_min: 1}}, steps: [{hidden}]}}}}]"),
                "[1] is `branch` behind the answer",
            ),
        ] {
            let error = read(&steps).unwrap_err();
            assert!(error.contains(words), "{steps}: {error}");
        }
        read(&sides(&format!("steps: [{}]", vec![hidden; 13].join(", ")))).unwrap();
    }
}
