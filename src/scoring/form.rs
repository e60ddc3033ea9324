//! How a judge is asked, and by which tokens it answers. `nano-prm` is asked as it was trained, another model in words
//! of the configuration. The conversation is put in once and is never read as words of the form.

use std::fmt;

use serde_json::Value;

use super::prompt::{self, Limits, VERIFY_TOKENS_MAX};
use super::steps::Steps;
use crate::engine::protocol::{ChatInput, Prompt};
use crate::engine::vocab::Vocab;
use crate::turn::{Message, Role, Thinking};

/// Bytes of a label.
pub const LABEL_BYTES_MAX: usize = 64;
/// Bytes of the words around question and steps.
pub const PROMPT_BYTES_MAX: usize = 16_384;
/// Bytes of the words around one step, and of those before a label.
pub const WORDS_BYTES_MAX: usize = 1_024;
/// Tokens that a judge may write before a label.
pub const THINK_TOKENS_MAX: u32 = 2_048;

pub const QUESTION: &str = "{question}";
/// The steps up to the judged one.
pub const STEPS: &str = "{steps}";
/// The judged step, or in its own words a step.
pub const STEP: &str = "{step}";
/// A step's number, from 1 on.
pub const NUMBER: &str = "{n}";

/// How a judge is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    pub good: String,
    pub bad: String,
    pub asked: Asked,
    /// Stands before a label. Empty: a label counts wherever it is written.
    pub before_label: String,
    /// What may be written before the label is called for; 0: it is called for at once.
    pub think_tokens: u32,
    /// The judge labels each step that it was shown, in their order: the judged one is the last.
    pub label_each: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// With the control tokens of `nano-prm`.
    Nano,
    /// In a user's message, by the model's chat template.
    Chat(Words),
    /// In plain text.
    Text(Words),
}

/// The words around question and steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Words {
    pub prompt: String,
    /// Around one of `{steps}`.
    pub step: String,
}

/// Why a model is no judge of this form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    #[error(
        "{key} = `{label}` is {count} tokens of the judge's vocabulary ({pieces}), but a label must be one: set {key} to a \
         text that is a single token of this model, such as the first of them"
    )]
    Tokens { key: &'static str, label: String, count: usize, pieces: String },
    #[error("the judge's labels cannot be read by its tokenizer: {0}")]
    Vocab(String),
    #[error("judge.good and judge.bad are the same token of the judge's vocabulary: set two labels that differ")]
    Same,
    #[error("the judge's model has no chat template: set judge.form to `text`, or name a model that has one")]
    NoTemplate,
    #[error(
        "the judge's model is an embedding model and writes no text: name one that writes its labels (scorer.model)"
    )]
    Wordless,
}

/// Pieces of a label of several tokens that are shown.
const PIECES_SHOWN: usize = 8;

/// Ids of the labels in the judge's vocabulary, and of what stands before one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub good: u32,
    pub bad: u32,
    pub before: Vec<u32>,
}

impl Labels {
    /// From what the tokenizer makes of `good`, of `bad` and of `before_label`: ids with their texts.
    pub fn new(form: &Form, good: Pieces<'_>, bad: Pieces<'_>, before: Vec<u32>) -> Result<Labels, FormError> {
        let labels = Labels {
            good: one_token("judge.good", &form.good, good)?,
            bad: one_token("judge.bad", &form.bad, bad)?,
            before,
        };
        if labels.good == labels.bad { Err(FormError::Same) } else { Ok(labels) }
    }
}

type Pieces<'a> = (&'a [u32], &'a [String]);

fn one_token(key: &'static str, label: &str, (ids, pieces): Pieces<'_>) -> Result<u32, FormError> {
    if let [id] = ids {
        return Ok(*id);
    }
    let mut shown: Vec<String> = pieces.iter().take(PIECES_SHOWN).map(|piece| format!("`{piece}`")).collect();
    if pieces.len() > PIECES_SHOWN {
        shown.push("…".to_owned());
    }
    let (label, count, pieces) = (label.to_owned(), ids.len(), shown.join(", "));
    Err(FormError::Tokens { key, label, count, pieces })
}

impl Default for Form {
    /// That of `nano-prm`.
    fn default() -> Self {
        Form {
            good: "<|good|>".to_owned(),
            bad: "<|bad|>".to_owned(),
            asked: Asked::Nano,
            before_label: String::new(),
            think_tokens: VERIFY_TOKENS_MAX,
            label_each: false,
        }
    }
}

impl Form {
    /// The labels in a vocabulary that is at hand.
    pub fn labels(&self, vocab: &dyn Vocab) -> Result<Labels, FormError> {
        let ids = |text: &str, specials| -> Result<Vec<u32>, FormError> {
            let mut ids = Vec::new();
            vocab.encode(text, specials, &mut ids).map_err(|error| FormError::Vocab(error.to_string()))?;
            Ok(ids)
        };
        let names = |ids: &[u32]| -> Vec<String> { ids.iter().map(|&id| vocab.name(id)).collect() };
        let (good, bad) = (ids(&self.good, true)?, ids(&self.bad, true)?);
        Labels::new(self, (&good, &names(&good)), (&bad, &names(&bad)), ids(&self.before_label, false)?)
    }

    /// What a model must be beside having the labels.
    pub fn fits(&self, chats: bool, embedding_only: bool) -> Result<(), FormError> {
        if embedding_only {
            return Err(FormError::Wordless);
        }
        if matches!(self.asked, Asked::Chat(_)) && !chats { Err(FormError::NoTemplate) } else { Ok(()) }
    }

    /// Asks for step `at` of an answer to `messages`. Where nothing may be written before the label, the prompt ends with
    /// what stands before it.
    pub fn prompt(
        &self,
        (messages, tools): (&[Message], &[Value]),
        steps: &Steps,
        at: usize,
        limits: Limits,
    ) -> Prompt {
        let begins = if self.think_tokens == 0 { self.before_label.as_str() } else { "" };
        match &self.asked {
            Asked::Nano => Prompt::Parts(prompt::judged(&prompt::question(messages, tools, limits), steps, at, limits)),
            Asked::Text(words) => {
                Prompt::Text(words.filled(&prompt::told(messages, tools, limits), steps, at, limits) + begins)
            }
            Asked::Chat(words) => {
                let text = words.filled(&prompt::told(messages, tools, limits), steps, at, limits);
                Prompt::Chat(ChatInput {
                    messages: vec![Message::new(Role::User, text)],
                    thinking: self.thinking(),
                    add_generation_prompt: true,
                    reply_begins: begins.to_owned(),
                    ..ChatInput::default()
                })
            }
        }
    }

    pub(super) fn thinking(&self) -> Thinking {
        match (&self.asked, self.think_tokens) {
            (Asked::Chat(_), 0) => Thinking::Off,
            (Asked::Chat(_), budget_tokens) => Thinking::On { budget_tokens },
            _ => Thinking::Template,
        }
    }

    /// Whether a label that `said` ends with stands where one counts. A token may bring the space before it along.
    pub(super) fn counts(&self, said: &str, good: bool) -> bool {
        let label = if good { &self.good } else { &self.bad };
        let before = said.strip_suffix(label.as_str()).unwrap_or(said);
        before.trim_end().ends_with(self.before_label.trim_end())
    }
}

/// In short, for people.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = match self.asked {
            Asked::Nano => "nano-prm",
            Asked::Chat(_) => "a chat",
            Asked::Text(_) => "plain text",
        };
        write!(f, "asked as {asked}, labels `{}` and `{}`", self.good, self.bad)?;
        if !self.before_label.is_empty() {
            write!(f, " behind `{}`", self.before_label)?;
        }
        match self.think_tokens {
            0 => write!(f, " at once"),
            most => write!(f, " after at most {most} tokens"),
        }
    }
}

impl Words {
    fn filled(&self, question: &str, steps: &Steps, at: usize, limits: Limits) -> String {
        let clipped = |step: &str| prompt::clip(step, limits.step_chars);
        let shown: Vec<String> = (1..)
            .zip(steps.iter().take(at + 1))
            .map(|(n, step)| fill(&self.step, &[(NUMBER, &n.to_string()), (STEP, &clipped(step))]))
            .collect();
        let judged = steps.iter().nth(at).map(clipped).unwrap_or_default();
        let number = (at + 1).to_string();
        fill(&self.prompt, &[(QUESTION, question), (STEPS, &shown.join("\n")), (STEP, &judged), (NUMBER, &number)])
    }
}

/// Puts values in the places of their names, in one pass: a name inside a value stays as it is.
fn fill(words: &str, values: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), words);
    let next = |rest: &str| {
        let found = values.iter().filter_map(|(name, value)| Some((rest.find(name)?, name.len(), *value)));
        found.min_by_key(|(at, ..)| *at)
    };
    while let Some((at, len, value)) = next(rest) {
        out += &rest[..at];
        out += value;
        rest = &rest[at + len..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(prompt: &str, step: &str) -> Words {
        Words { prompt: prompt.to_owned(), step: step.to_owned() }
    }

    fn asked() -> [Message; 1] {
        [Message::new(Role::User, "7 + 8? {steps}")]
    }

    #[test]
    fn question_and_steps_stand_where_the_words_want_them() {
        let steps = Steps::split("7 + 8 = {n}5\nso 15", "15", &[]);
        let form = |think_tokens| Form {
            asked: Asked::Text(words("{question}\n{steps}\n({n}: {step})", "Step {n}: {step} ки")),
            before_label: " is".to_owned(),
            think_tokens,
            ..Form::default()
        };
        let text = "7 + 8? {steps}\nStep 1: 7 + 8 = {n}5 ки\nStep 2: so 15 ки\n(2: so 15)";
        let prompt = |form: Form| form.prompt((&asked(), &[]), &steps, 1, Limits::USUAL);
        assert_eq!(prompt(form(9)), Prompt::Text(text.to_owned()));
        assert_eq!(prompt(form(0)), Prompt::Text(format!("{text} is")));
    }

    #[test]
    fn a_chat_is_one_message_and_its_reply_begins_where_nothing_is_thought() {
        let steps = Steps::split("", "15", &[]);
        let form = |think_tokens| Form {
            asked: Asked::Chat(words("{question}: {steps}", "{step}")),
            before_label: "So ".to_owned(),
            think_tokens,
            ..Form::default()
        };
        let chat = |form: Form| match form.prompt((&asked(), &[]), &steps, 0, Limits::USUAL) {
            Prompt::Chat(chat) => chat,
            other => panic!("{other:?}"),
        };
        let (at_once, later) = (chat(form(0)), chat(form(7)));
        assert_eq!(at_once.messages[0].content, "7 + 8? {steps}: 15");
        assert_eq!((at_once.reply_begins.as_str(), at_once.thinking), ("So ", Thinking::Off));
        assert_eq!((later.reply_begins.as_str(), later.thinking), ("", Thinking::On { budget_tokens: 7 }));
        assert!(at_once.add_generation_prompt && form(0).fits(true, false).is_ok());
        assert_eq!(form(0).fits(false, false), Err(FormError::NoTemplate));
        assert_eq!(Form::default().fits(false, true), Err(FormError::Wordless));
    }

    #[test]
    fn a_label_counts_behind_its_words_alone() {
        let form = Form { good: "yes".to_owned(), before_label: "right? ".to_owned(), ..Form::default() };
        assert!(form.counts("Is it right? yes", true) && form.counts("Is it right?", false));
        assert!(!form.counts("right? well, yes", true));
        assert!(Form::default().counts("anything", true));
    }

    #[test]
    fn a_label_of_several_tokens_is_refused_with_what_was_tried() {
        let form = Form { good: "yes".to_owned(), ..Form::default() };
        let (one, three) = ([5u32], [1u32, 2, 3]);
        let (piece, pieces) = (["no".to_owned()], ["y", "e", "s"].map(String::from));
        let why = Labels::new(&form, (&three, &pieces), (&one, &piece), Vec::new()).unwrap_err().to_string();
        assert!(why.starts_with("judge.good = `yes` is 3 tokens of the judge's vocabulary (`y`, `e`, `s`)"), "{why}");
        assert_eq!(Labels::new(&form, (&one, &piece), (&one, &piece), Vec::new()), Err(FormError::Same));
        assert_eq!(Labels::new(&form, (&[4], &piece), (&one, &piece), vec![9]).unwrap().before, [9]);
    }
}
