//! The most that a planned reply costs, known before its first token, and what the owner allows.

use std::time::Duration;

use super::plan::{Wishes, plan};
use super::{Pipeline, PipelineError};
use crate::service::ServiceError;
use crate::turn::{Message, Plan, Role, Step, Tier, ToolLimits, Work};

/// What a reply may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub generations: u32,
    /// Tokens written.
    pub tokens: u64,
    /// Calls of built-in tools.
    pub tool_calls: u32,
    /// Longest wait for one tool or for the judge, milliseconds.
    pub wait_ms: u64,
}

impl Cost {
    /// One behind the other.
    fn and(self, other: Cost) -> Cost {
        Cost {
            generations: self.generations.saturating_add(other.generations),
            tokens: self.tokens.saturating_add(other.tokens),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            wait_ms: self.wait_ms.max(other.wait_ms),
        }
    }

    /// One or the other.
    fn or(self, other: Cost) -> Cost {
        Cost {
            generations: self.generations.max(other.generations),
            tokens: self.tokens.max(other.tokens),
            tool_calls: self.tool_calls.max(other.tool_calls),
            wait_ms: self.wait_ms.max(other.wait_ms),
        }
    }
}

/// The most that a planned reply with so many choices costs.
pub fn cost(plan: &Plan, choices: u32) -> Cost {
    of(&plan.steps, plan.max_tokens, choices)
}

fn of(steps: &[Step], answer_tokens: u32, choices: u32) -> Cost {
    let all = |generations: u32, tokens_each: u32| Cost {
        generations,
        tokens: u64::from(generations) * u64::from(tokens_each),
        ..Cost::default()
    };
    let each = steps.iter().map(|step| match &step.work {
        Work::Answer { .. } => all(choices, answer_tokens),
        Work::Tools(tools) => {
            let ToolLimits { rounds, calls, timeout_ms } = tools.limits;
            Cost { tool_calls: calls, wait_ms: timeout_ms, ..all(rounds + 1, answer_tokens) }
        }
        Work::Draft(draft) => all(1, draft.max_tokens),
        Work::Retrieve(_) | Work::Web(_) => Cost::default(),
        Work::Judge(gate) => Cost { wait_ms: gate.timeout_ms, ..all(gate.retries, answer_tokens) },
        Work::Branch(branch) => {
            let side = |steps: &[Step]| of(steps, answer_tokens, choices);
            side(&branch.steps).or(side(&branch.otherwise))
        }
    });
    each.fold(Cost::default(), Cost::and)
}

/// What the owner allows one reply. Absent: what files and requests may say at most is enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    pub tokens: Option<u64>,
    pub generations: Option<u32>,
    pub tool_calls: Option<u32>,
    pub time: Option<Duration>,
}

/// A cost that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Over {
    /// What it may come to, the setting that forbids it, and what that allows.
    what: String,
    setting: &'static str,
    allowed: u64,
    /// The parameter of a request that would lower it.
    param: &'static str,
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "may come to {}, but the configuration allows {} ({})", self.what, self.allowed, self.setting)
    }
}

impl Ceilings {
    fn over(&self, cost: Cost) -> Option<Over> {
        let above = |cost: u64, most: Option<u64>| most.filter(|most| cost > *most);
        let over = |most: Option<u64>, n: u64, unit: &str, setting, param| {
            above(n, most).map(|allowed| Over { what: format!("{n} {unit}"), setting, allowed, param })
        };
        let (generations, calls) = (u64::from(cost.generations), u64::from(cost.tool_calls));
        let most = |limit: Option<u32>| limit.map(u64::from);
        over(most(self.generations), generations, "generations", "replies.generations_max", "n")
            .or_else(|| over(most(self.tool_calls), calls, "calls of tools", "replies.tool_calls_max", "chimere.tools"))
            .or_else(|| over(self.tokens, cost.tokens, "tokens", "replies.tokens_max", "max_tokens"))
    }

    /// Whether a reply may cost so much; its time is watched while it runs.
    pub fn check(&self, cost: Cost) -> Result<(), ServiceError> {
        let Some(over) = self.over(cost) else { return Ok(()) };
        let message = format!(
            "this reply {over}: ask for less with `max_tokens`, `n` or `chimere.tools`, or for the answer alone with \
             `chimere.steps: \"none\"`"
        );
        Err(ServiceError::Invalid { message, param: Some(over.param.to_owned()) })
    }

    /// Whether a file asks for no more than is allowed, in any tier. What it leaves to request and model is not its own.
    pub fn check_file(&self, pipeline: &Pipeline, place: &str) -> Result<(), PipelineError> {
        let invalid = |message: String| PipelineError::Invalid { file: place.to_owned(), field: "steps", message };
        for tier in [Tier::Fast, Tier::Quality, Tier::Ultra] {
            let wishes = Wishes { tier: Some(tier), max_tokens_default: 1, ..Wishes::default() };
            let question = vec![Message::new(Role::User, "")];
            let Ok(plan) = plan(pipeline, String::new(), question, wishes) else { continue };
            let cost = cost(&plan, 1);
            if let Some(over) = self.over(cost) {
                return Err(invalid(over.to_string()));
            }
            let time_ms = self.time.map(|time| time.as_millis() as u64);
            if let Some(most) = time_ms.filter(|most| cost.wait_ms > *most) {
                let waits = cost.wait_ms;
                let message = format!(
                    "may wait {waits} ms for a tool or the judge, but a whole reply has {most} (replies.reply_timeout_ms)"
                );
                return Err(invalid(message));
            }
        }
        Ok(())
    }

    /// The most tokens that each answer of these steps may have.
    pub(super) fn answer_tokens(&self, steps: &[Step], choices: u32) -> u32 {
        let Some(most) = self.tokens else { return u32::MAX };
        let hidden = of(steps, 0, choices).tokens;
        let answers = of(steps, 1, choices).tokens - hidden;
        (most.saturating_sub(hidden) / answers.max(1)).clamp(1, u32::MAX.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(more: &str) -> Pipeline {
        let text = format!("name: code\nversion: 1\nfollow_model: true\n{more}\n");
        Pipeline::parse(&text, "code.yaml", "code", false).unwrap()
    }

    fn planned(pipeline: &Pipeline, wishes: Wishes) -> Plan {
        plan(pipeline, String::new(), vec![Message::new(Role::User, "hello")], wishes).unwrap()
    }

    #[test]
    fn a_reply_over_a_ceiling_is_refused_with_the_setting() {
        let cost = Cost { generations: 3, tokens: 300, tool_calls: 2, wait_ms: 9 };
        let exact = Ceilings {
            tokens: Some(300),
            generations: Some(3),
            tool_calls: Some(2),
            time: Some(Duration::from_millis(1)),
        };
        exact.check(cost).unwrap();
        Ceilings::default().check(cost).unwrap();
        for (ceilings, words, named) in [
            (
                Ceilings { tokens: Some(299), ..exact },
                "300 tokens, but the configuration allows 299 (replies.tokens_max)",
                "max_tokens",
            ),
            (Ceilings { generations: Some(2), ..exact }, "3 generations, but the configuration allows 2", "n"),
            (
                Ceilings { tool_calls: Some(0), ..exact },
                "2 calls of tools, but the configuration allows 0",
                "chimere.tools",
            ),
        ] {
            let Err(ServiceError::Invalid { message, param }) = ceilings.check(cost) else { panic!("{words}") };
            assert!(message.contains(words) && param.as_deref() == Some(named), "{message} {param:?}");
        }
    }

    #[test]
    fn a_file_over_a_ceiling_is_refused_for_what_it_says_itself() {
        let file = |ceilings: Ceilings, more: &str| {
            ceilings.check_file(&pipeline(more), "code.yaml").map_err(|error| error.to_string())
        };
        let steps = "max_tokens: 100\nsteps: [{generate: {max_tokens: 60}}, {generate: {}}, {judge: {retries: 2, timeout_ms: 500}}]";
        // Hidden 60, the answer 100 and twice again.
        let fits = Ceilings { tokens: Some(360), generations: Some(4), ..Ceilings::default() };
        file(fits, steps).unwrap();
        let error = file(Ceilings { tokens: Some(359), ..fits }, steps).unwrap_err();
        assert_eq!(
            error,
            "code.yaml: steps may come to 360 tokens, but the configuration allows 359 (replies.tokens_max)"
        );
        assert!(
            file(Ceilings { generations: Some(3), ..fits }, steps).unwrap_err().contains("replies.generations_max")
        );
        let short = Ceilings { time: Some(Duration::from_millis(499)), ..fits };
        assert!(file(short, steps).unwrap_err().contains("500 ms") && file(short, "").is_ok());
        let tools = "steps: [{tools: {allow: [calculate], calls: 3}}]";
        let none = Ceilings { tool_calls: Some(2), ..Ceilings::default() };
        assert!(file(none, tools).unwrap_err().contains("(replies.tool_calls_max)"));
    }

    #[test]
    fn where_nobody_says_a_length_the_answer_has_what_the_ceiling_leaves() {
        let hidden = pipeline("steps: [{generate: {max_tokens: 60}}, {generate: {}}]");
        let of = |tokens: u64, choices: u32, wishes: Wishes| {
            let ceilings = Ceilings { tokens: Some(tokens), ..Ceilings::default() };
            planned(&hidden, Wishes { ceilings, choices, max_tokens_default: 500, ..wishes }).max_tokens
        };
        assert_eq!(of(1_000, 1, Wishes::default()), 500);
        assert_eq!(of(1_000, 4, Wishes::default()), 235);
        assert_eq!(of(10, 1, Wishes::default()), 1, "refused by its hidden step");
        assert_eq!(of(100, 1, Wishes { max_tokens: Some(400), ..Wishes::default() }), 400, "said, and refused");
    }

    #[test]
    fn a_reply_costs_its_answers_its_hidden_steps_and_of_a_branch_the_dearer_side() {
        let of = |steps: &str, choices| {
            let pipeline = pipeline(&format!("max_tokens: 100\nsteps: {steps}"));
            let Cost { generations, tokens, tool_calls, .. } = cost(&planned(&pipeline, Wishes::default()), choices);
            (generations, tokens, tool_calls)
        };
        let hidden = |tokens: u32| format!("{{generate: {{max_tokens: {tokens}}}}}");
        assert_eq!(of("[{generate: {}}]", 3), (3, 300, 0));
        assert_eq!(of("[{generate: {}}, {judge: {retries: 2}}]", 1), (3, 300, 0));
        assert_eq!(of(&format!("[{}, {{generate: {{}}}}]", hidden(7)), 2), (3, 207, 0));
        assert_eq!(of("[{tools: {allow: [calculate], rounds: 2, calls: 5}}]", 1), (3, 300, 5));
        // Two short steps are more generations, one long one more tokens: both count.
        let branch = format!(
            "[{{branch: {{when: {{words_min: 1}}, steps: [{}, {}], otherwise: [{}]}}}}, {{generate: {{}}}}]",
            hidden(1),
            hidden(2),
            hidden(50)
        );
        assert_eq!(of(&branch, 1), (3, 150, 0));
    }
}
