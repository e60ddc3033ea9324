//! An answer as steps: the lines of its thought, then its visible text, then its tool calls. The judge was trained
//! on exactly these rules (nano/prm/form.py): a change here is a change there.

use serde_json::Value;

use crate::turn::{Generation, ToolCall};
use crate::whole;

/// Most steps of a thought; neighbouring lines are joined above it.
pub const THOUGHT_STEPS_MAX: usize = 16;
/// Most steps of the visible answer, and of its calls.
pub const ANSWER_STEPS_MAX: usize = 4;
/// A visible answer up to this long is one step, characters.
const ANSWER_STEP_CHARS: usize = 800;

/// The steps of one choice, in the order they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    pub thought: Vec<String>,
    pub answer: Vec<String>,
}

impl Steps {
    pub fn of(generation: &Generation) -> Steps {
        Steps::split(&generation.thinking, &generation.content, &generation.tool_calls)
    }

    pub fn split(thinking: &str, content: &str, calls: &[ToolCall]) -> Steps {
        let lines = thinking.split('\n').map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        let mut answer = answer_steps(content.trim());
        answer.extend(group(calls.iter().map(call_text).collect(), ANSWER_STEPS_MAX));
        Steps { thought: group(lines, THOUGHT_STEPS_MAX), answer }
    }

    pub fn len(&self) -> usize {
        self.thought.len() + self.answer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Characters of the visible answer with its calls.
    pub fn answer_chars(&self) -> usize {
        self.answer.iter().map(|step| step.chars().count()).sum()
    }

    /// Every step, the thought's first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.thought.iter().chain(&self.answer).map(String::as_str)
    }
}

/// One step, or some of about equal size cut at line ends.
fn answer_steps(text: &str) -> Vec<String> {
    let size = ANSWER_STEP_CHARS.max(text.chars().count().div_ceil(ANSWER_STEPS_MAX));
    let (mut steps, mut step, mut chars) = (Vec::new(), String::new(), 0);
    for line in text.split('\n') {
        let more = line.chars().count();
        if chars > 0 && chars + 1 + more > size {
            steps.push(std::mem::take(&mut step));
            chars = 0;
        }
        if chars > 0 {
            step.push('\n');
            chars += 1;
        }
        step.push_str(line);
        chars += more;
    }
    steps.push(step);
    let steps = steps.iter().map(|s| s.trim()).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    group(steps, ANSWER_STEPS_MAX)
}

/// Neighbours joined so that at most `most` are left.
fn group(lines: Vec<String>, most: usize) -> Vec<String> {
    if lines.len() <= most {
        return lines;
    }
    let mut groups: Vec<Vec<String>> = vec![Vec::new(); most];
    let count = lines.len();
    for (at, line) in lines.into_iter().enumerate() {
        groups[at * most / count].push(line);
    }
    groups.into_iter().map(|group| group.join("\n")).collect()
}

/// A tool call as text: its name, then one line an argument.
pub(super) fn call_text(call: &ToolCall) -> String {
    let mut text = format!("call {}", call.name);
    let arguments = call.arguments.as_object().into_iter().flatten();
    for (name, value) in arguments {
        text.push_str(&format!("\n{name} = {}", plain(value)));
    }
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => whole::digits(text).unwrap_or(text).to_owned(),
        other => whole::written(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_the_thought_then_the_answer_then_the_calls() {
        let long = "\u{fdd2}18446744073709551616";
        let call =
            ToolCall { id: String::new(), name: "add".into(), arguments: json!({"a": 1, "to": "x y", "l": [1, long]}) };
        let steps = Steps::split(" 7 + 8 = 15 \n\n so 15\n", "\nThe answer is 15.\n", &[call]);
        assert_eq!(steps.thought, ["7 + 8 = 15", "so 15"]);
        assert_eq!(steps.answer, ["The answer is 15.", "call add\na = 1\nto = x y\nl = [1,18446744073709551616]"]);
        assert_eq!((steps.len(), steps.iter().next()), (4, Some("7 + 8 = 15")));
        assert!(Steps::split("\n", " ", &[]).is_empty());
    }

    #[test]
    fn long_thoughts_and_answers_have_a_bounded_number_of_steps() {
        let thought: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
        let steps = Steps::split(&thought.join("\n"), &"word and word\n".repeat(400), &[]);
        assert_eq!(steps.thought.len(), THOUGHT_STEPS_MAX);
        assert_eq!(steps.thought.join("\n"), thought.join("\n"), "nothing is lost");
        assert!((2..=ANSWER_STEPS_MAX).contains(&steps.answer.len()));
        assert_eq!(steps.answer.join("\n"), "word and word\n".repeat(400).trim());
        // One endless line cannot be cut at a line end.
        assert_eq!(Steps::split("", &"x".repeat(9_000), &[]).answer.len(), 1);
    }
}
