//! How the judge's model is asked. What would have no effect is refused, and so are words that leave out what is judged.

use super::raw::{self, Field};
use super::{ConfigError, number, one_of, short};
use crate::scoring::form::{
    Asked, Form, LABEL_BYTES_MAX, PROMPT_BYTES_MAX, QUESTION, STEP, STEPS, THINK_TOKENS_MAX, WORDS_BYTES_MAX, Words,
};

/// The words around a step, where nothing else is said.
const STEP_WORDS: &str = "Step {n}: {step}";

pub(super) fn form(raw: raw::JudgeSection) -> Result<Form, ConfigError> {
    let usual = Form::default();
    let bad_said = origin(&raw.bad);
    let good = label(raw.good.clone(), &usual.good, "judge.good")?;
    let bad = label(raw.bad.clone(), &usual.bad, "judge.bad")?;
    if good == bad {
        return Err(wrong(bad_said, "judge.bad", format!("`{bad}`, as judge.good"), "another label"));
    }
    let most = THINK_TOKENS_MAX.into();
    let think = number(raw.think_tokens.clone(), usual.think_tokens.into(), 0..=most, "judge.think_tokens")?;
    Ok(Form {
        good,
        bad,
        before_label: short(raw.before_label.clone(), "", WORDS_BYTES_MAX, "judge.before_label")?,
        think_tokens: think as u32,
        label_each: raw.label_each.as_ref().is_some_and(|field| field.value),
        asked: asked(raw)?,
    })
}

fn asked(raw: raw::JudgeSection) -> Result<Asked, ConfigError> {
    let kind = one_of(raw.form.clone(), "nano", &["nano", "chat", "text"], "judge.form")?;
    if kind == "nano" {
        return words_are_idle(&raw).map(|()| Asked::Nano);
    }
    let (prompt_said, step_said) = (origin(&raw.prompt.as_ref().or(raw.form.as_ref()).cloned()), origin(&raw.step));
    let words = Words {
        prompt: short(raw.prompt, "", PROMPT_BYTES_MAX, "judge.prompt")?,
        step: short(raw.step, STEP_WORDS, WORDS_BYTES_MAX, "judge.step")?,
    };
    if !words.prompt.contains(QUESTION) || ![STEPS, STEP].iter().any(|name| words.prompt.contains(name)) {
        let wanted = "a text with {question} and with {steps} or {step}";
        return Err(wrong(prompt_said, "judge.prompt", shown(&words.prompt), wanted));
    }
    if !words.step.contains(STEP) {
        return Err(wrong(step_said, "judge.step", shown(&words.step), "a text with {step}"));
    }
    Ok(if kind == "chat" { Asked::Chat(words) } else { Asked::Text(words) })
}

/// The words of `nano-prm` are its own; the shipped file may say of the others what they are without a word.
fn words_are_idle(raw: &raw::JudgeSection) -> Result<(), ConfigError> {
    let texts = [
        (&raw.prompt, "", "judge.prompt"),
        (&raw.step, STEP_WORDS, "judge.step"),
        (&raw.before_label, "", "judge.before_label"),
    ];
    let said = texts.into_iter().find(|(field, usual, _)| field.as_ref().is_some_and(|field| field.value != *usual));
    let each = raw.label_each.as_ref().filter(|field| field.value);
    let (origin, key) = match (said, each) {
        (Some((field, _, key)), _) => (origin(field), key),
        (None, Some(field)) => (field.origin.clone(), "judge.label_each"),
        (None, None) => return Ok(()),
    };
    let wanted = "left out with judge.form `nano`: set judge.form to `chat` or `text`";
    Err(wrong(origin, key, "set".to_owned(), wanted))
}

/// Where a value was typed.
fn origin(field: &Option<Field<String>>) -> String {
    field.as_ref().map_or_else(|| "default".to_owned(), |field| field.origin.clone())
}

fn label(field: Option<Field<String>>, usual: &str, key: &'static str) -> Result<String, ConfigError> {
    let origin = origin(&field);
    let label = short(field, usual, LABEL_BYTES_MAX, key)?;
    if label.is_empty() {
        return Err(wrong(origin, key, "empty".to_owned(), "a text that is one token of the judge's model"));
    }
    Ok(label)
}

/// A text in a message: its beginning.
fn shown(text: &str) -> String {
    if text.is_empty() {
        return "empty".to_owned();
    }
    let begins: String = text.chars().take(40).collect();
    format!("`{begins}{}`", if begins.len() < text.len() { " …" } else { "" })
}

fn wrong(origin: String, key: &'static str, value: String, wanted: &str) -> ConfigError {
    ConfigError::Range { origin, key, value, wanted: wanted.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::RawConfig;

    fn read(text: &str) -> Result<Form, String> {
        let raw = RawConfig::parse(&format!("[judge]\n{text}"), "c.toml").unwrap();
        form(raw.judge).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_said_is_nano() {
        assert_eq!(read(""), Ok(Form::default()));
    }

    #[test]
    fn a_verifier_is_described() {
        let words = "form = 'chat'\nprompt = '{question}: {steps}'\nstep = '{n}) {step}'\nlabel_each = true\n";
        let more = "good = 'correct'\nbad = 'incorrect'\nbefore_label = '\\boxed{'\nthink_tokens = 512\n";
        let wanted = Form {
            good: "correct".to_owned(),
            bad: "incorrect".to_owned(),
            asked: Asked::Chat(Words { prompt: "{question}: {steps}".to_owned(), step: "{n}) {step}".to_owned() }),
            before_label: "\\boxed{".to_owned(),
            think_tokens: 512,
            label_each: true,
        };
        assert_eq!(read(&format!("{words}{more}")), Ok(wanted));
        let form = read("form = 'text'\nprompt = '{question} {step}'").unwrap();
        assert!(matches!(form.asked, Asked::Text(words) if words.step == STEP_WORDS));
    }

    #[test]
    fn the_examples_of_the_documentation_are_read() {
        let blocks = include_str!("../../docs/api.md").split("```toml\n").skip(1);
        let examples: Vec<&str> = blocks
            .filter_map(|rest| rest.split("```").next()?.split_once("[judge]\n"))
            .map(|(_, judge)| judge)
            .collect();
        let forms: Vec<Form> = examples.into_iter().map(|text| read(text).unwrap()).collect();
        assert_eq!(forms.len(), 2);
        assert!(matches!(&forms[0].asked, Asked::Chat(words) if words.prompt.ends_with("\\boxed{incorrect}.")));
        assert_eq!((forms[0].before_label.as_str(), forms[0].label_each), ("The step is \\boxed{", true));
        assert!(matches!(&forms[1].asked, Asked::Text(words) if words.step.ends_with(" ки")));
        assert_eq!((forms[1].good.as_str(), forms[1].think_tokens), ("+", 0));
    }

    #[test]
    fn what_is_wrong_is_said_where_it_was_typed() {
        let cases = [
            ("form = 'essay'", "c.toml:2:8: judge.form is `essay`, but must be one of nano, chat, text"),
            ("good = ''", "c.toml:2:8: judge.good is empty, but must be a text that is one token"),
            ("bad = '<|good|>'", "c.toml:2:7: judge.bad is `<|good|>`, as judge.good, but must be another label"),
            ("form = 'chat'", "c.toml:2:8: judge.prompt is empty, but must be a text with {question} and with {steps}"),
            ("form = 'chat'\nprompt = '{question}'", "c.toml:3:10: judge.prompt is `{question}`, but must be"),
            ("form = 'text'\nprompt = '{question}{steps}'\nstep = 'x'", "c.toml:4:8: judge.step is `x`, but must"),
            ("before_label = 'x'", "c.toml:2:16: judge.before_label is set, but must be left out with judge.form"),
            ("label_each = true", "c.toml:2:14: judge.label_each is set, but must be left out with judge.form"),
            ("think_tokens = 2049", "c.toml:2:16: judge.think_tokens is 2049, but must be 0 to 2048"),
        ];
        for (text, why) in cases {
            let said = read(text).unwrap_err();
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }
}
