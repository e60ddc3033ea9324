//! The most that a planned reply costs, known before its first token.

use crate::turn::{Plan, Step, Work};

/// What a reply may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub generations: u32,
    /// Tokens written.
    pub tokens: u64,
    /// Calls of built-in tools.
    pub tool_calls: u32,
}

impl Cost {
    /// One behind the other.
    fn and(self, other: Cost) -> Cost {
        Cost {
            generations: self.generations.saturating_add(other.generations),
            tokens: self.tokens.saturating_add(other.tokens),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
        }
    }

    /// One or the other.
    fn or(self, other: Cost) -> Cost {
        Cost {
            generations: self.generations.max(other.generations),
            tokens: self.tokens.max(other.tokens),
            tool_calls: self.tool_calls.max(other.tool_calls),
        }
    }
}

/// The most that a planned reply with so many choices costs.
pub fn cost(plan: &Plan, choices: u32) -> Cost {
    of(&plan.steps, plan.max_tokens, choices)
}

fn of(steps: &[Step], answer_tokens: u32, choices: u32) -> Cost {
    let all = |generations: u32, tokens_each: u32, tool_calls: u32| Cost {
        generations,
        tokens: u64::from(generations) * u64::from(tokens_each),
        tool_calls,
    };
    let each = steps.iter().map(|step| match &step.work {
        Work::Answer { .. } => all(choices, answer_tokens, 0),
        Work::Tools(tools) => all(tools.limits.rounds + 1, answer_tokens, tools.limits.calls),
        Work::Draft(draft) => all(1, draft.max_tokens, 0),
        Work::Judge(gate) => all(gate.retries, answer_tokens, 0),
        Work::Branch(branch) => {
            let side = |steps: &[Step]| of(steps, answer_tokens, choices);
            side(&branch.steps).or(side(&branch.otherwise))
        }
    });
    each.fold(Cost::default(), Cost::and)
}

#[cfg(test)]
mod tests {
    use crate::pipeline::{Pipeline, Wishes, plan};
    use crate::turn::{Message, Role};

    use super::*;

    #[test]
    fn a_reply_costs_its_answers_its_hidden_steps_and_of_a_branch_the_dearer_side() {
        let of = |steps: &str, choices| {
            let text = format!("name: code\nversion: 1\nfollow_model: true\nmax_tokens: 100\nsteps: {steps}\n");
            let pipeline = Pipeline::parse(&text, "code.yaml", "code", false).unwrap();
            let messages = vec![Message::new(Role::User, "hello")];
            let plan = plan(&pipeline, String::new(), messages, Wishes::default()).unwrap();
            let Cost { generations, tokens, tool_calls } = cost(&plan, choices);
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
