//! A branch: a declared condition decides which hidden steps come next. It asks no model.

use super::Outcome;
use crate::intent::spoken;
use crate::reply::run::ReplyRun;
use crate::turn::{Branch, Condition, Role, StepOutcome};

pub(super) fn run(run: &mut ReplyRun<'_>, branch: &Branch) -> Outcome {
    let (next, because) = match holds(run, &branch.when) {
        Ok(because) => (&branch.steps, because),
        Err(because) => (&branch.otherwise, because),
    };
    next.iter().rev().for_each(|step| run.ahead.push_front(step.clone()));
    let names: Vec<&str> = next.iter().map(|step| step.name.as_str()).collect();
    let decided = if names.is_empty() { "nothing more".to_owned() } else { names.join(", ") };
    Outcome { decided: Some(decided), because: Some(because), ..Outcome::of(StepOutcome::Done) }
}

/// Everything of a condition that holds, or the first of it that does not. It quotes the pipeline file and neither
/// question nor hidden text.
fn holds(run: &ReplyRun<'_>, when: &Condition) -> Result<String, String> {
    let Condition { tiers, words_min, asks, step, says } = when;
    let mut good = Vec::new();
    if !tiers.is_empty() {
        let told = format!("the tier is {}", run.plan.tier.name());
        if !tiers.contains(&run.plan.tier) {
            return Err(told);
        }
        good.push(told);
    }
    let question = run.plan.messages.iter().rev().find(|message| message.role == Role::User);
    let question = question.map_or("", |message| message.content.as_str());
    if let Some(least) = words_min {
        let words = question.split_whitespace().count();
        if words < *least as usize {
            return Err(format!("the question has {words} word{}", if words == 1 { "" } else { "s" }));
        }
        good.push(format!("the question has {words} words"));
    }
    if !asks.is_empty() {
        let word = spoken(asks, question).next().ok_or("the question holds none of the words of `asks`")?;
        good.push(format!("it holds `{word}`"));
    }
    if let Some(step) = step {
        let text = run.trace.iter().find(|record| record.name == *step).map_or("", |record| record.text.as_str());
        let word = spoken(says, text).next().ok_or_else(|| format!("`{step}` says none of its words"))?;
        good.push(format!("`{step}` says `{word}`"));
    }
    Ok(good.join(", "))
}
