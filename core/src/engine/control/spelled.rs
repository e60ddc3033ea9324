//! Thoughts in marks that the vocabulary has no tokens for: the model spells them, as Granite and Apriel do. A thought
//! begins a reply or is begun by the prompt.

use super::super::thought::ThoughtMarks;
use super::super::vocab::Vocab;
use super::harmony::Harmony;

/// Tokens at the end of a prompt that may spell an opening mark.
const TAIL_TOKENS: usize = 32;

/// How a family spells it.
#[derive(Debug)]
struct Form {
    /// What stands in its template.
    sign: &'static str,
    open: &'static str,
    close: &'static str,
    /// Marks around the answer behind it.
    around: &'static [&'static str],
}

const FORMS: [Form; 2] = [
    Form {
        sign: "[BEGIN FINAL RESPONSE]",
        open: "Here are my reasoning steps:",
        close: "[BEGIN FINAL RESPONSE]",
        around: &["[END FINAL RESPONSE]"],
    },
    Form { sign: "<think>", open: "<think>", close: "</think>", around: &["<response>", "</response>"] },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing was said that is no opening mark.
    Start,
    Thought,
    /// In the answer behind a thought.
    Behind,
    /// In an answer without a thought.
    Plain,
}

/// Follows the text of one reply.
#[derive(Debug)]
pub(super) struct Spelled {
    form: &'static Form,
    place: Place,
    /// What may be the beginning of a mark, or follows one that ended a token's text.
    held: String,
}

impl Spelled {
    /// `None`: the vocabulary has tokens for it, or the template shows no such thought.
    pub(super) fn of(vocab: &dyn Vocab) -> Option<Spelled> {
        if ThoughtMarks::of(vocab).is_some() || Harmony::of(vocab).is_some() {
            return None;
        }
        let template = vocab.template()?;
        let form = FORMS.iter().find(|form| template.contains(form.sign))?;
        Some(Spelled { form, place: Place::Start, held: String::new() })
    }

    pub(super) fn close(&self) -> &'static str {
        self.form.close
    }

    /// The text comes behind a prompt. → whether that ends with the opening of a thought.
    pub(super) fn behind(&mut self, vocab: &dyn Vocab, prompt: &[u32]) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(TAIL_TOKENS)..];
        let tail: Vec<u8> = tail.iter().flat_map(|id| vocab.bytes(*id)).collect();
        let opened = String::from_utf8_lossy(&tail).trim_end().ends_with(self.form.open);
        if opened {
            self.place = Place::Thought;
        }
        opened
    }

    /// The next text is of a thought.
    pub(super) fn thinks(&self) -> bool {
        self.place == Place::Thought
    }

    /// Adds text. → what is certain of the present channel; behind it another one may begin.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut all = std::mem::take(&mut self.held) + text;
        let Form { open, close, around, .. } = self.form;
        match self.place {
            Place::Plain => {}
            Place::Start => {
                let rest = all.trim_start();
                if let Some(behind) = rest.strip_prefix(open) {
                    (self.place, self.held) = (Place::Thought, behind.to_owned());
                    return String::new();
                }
                if open.starts_with(rest) {
                    self.held = all;
                    return String::new();
                }
                self.place = Place::Plain;
            }
            Place::Thought => match all.find(close) {
                Some(at) => {
                    (self.place, self.held) = (Place::Behind, all[at + close.len()..].to_owned());
                    all.truncate(at);
                }
                None => self.held = all.split_off(all.len() - begun(&all, close)),
            },
            Place::Behind => {
                all = around.iter().fold(all, |text, mark| text.replace(mark, ""));
                let longest = around.iter().map(|mark| begun(&all, mark)).max().unwrap_or(0);
                self.held = all.split_off(all.len() - longest);
            }
        }
        all
    }

    /// What is held back where the reply ends.
    pub(super) fn rest(&mut self) -> String {
        let last = self.push("");
        last + &std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn begun(text: &str, mark: &str) -> usize {
    let may = |n: &usize| text.ends_with(&mark[..*n]);
    (1..mark.len()).rev().filter(|n| mark.is_char_boundary(*n)).find(may).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Marked;
    use super::super::{Advance, ReplyControl, ReplyLimits};
    use crate::engine::protocol::Channel;
    use crate::turn::{FinishReason, Thinking};

    const GRANITE: &str = "between <think></think> and <response></response>";
    const APRIEL: &str = "[BEGIN FINAL RESPONSE]";

    /// Thought and answer of a reply, a token a byte, and whether a token was forced.
    fn reply(template: &str, prompt: &str, text: &str, thinking: Thinking, stop: &[String]) -> (String, String, bool) {
        let vocab = Marked { marks: vec!["<end>"], ends: vec![256], template: Some(template.to_owned()) };
        let limits = ReplyLimits { max_tokens: 1000, stop, thinking, ignore_end: false };
        let mut control = ReplyControl::new(&vocab, limits, false).unwrap().behind(&vocab, &vocab.ids(prompt));
        let (mut said, mut any) = ([String::new(), String::new()], false);
        let mut sampled = vocab.ids(text).into_iter();
        while let Some(id) = control.forced().or_else(|| sampled.next()) {
            let Advance { channel, text, forced, finish } = control.push(&vocab, id);
            said[usize::from(channel == Channel::Answer)] += &text;
            any |= forced;
            if let Some(finish) = finish {
                said[1] += &finish.text;
                return (said[0].clone(), said[1].clone(), any);
            }
        }
        said[1] += &control.finish(FinishReason::Length).text;
        (said[0].clone(), said[1].clone(), any)
    }

    #[test]
    fn thoughts_that_are_spelled_are_told_apart() {
        for (template, prompt, text, thought, answer) in [
            (GRANITE, "q", "<think>hm <b></think>\n<response>\nso</response><end>", "hm <b>", "so"),
            (GRANITE, "q", "\n<think>\nhm\n</think>so < 3<end>", "hm", "so < 3"),
            (GRANITE, "q", "<thin ice<end>", "", "<thin ice"),
            (GRANITE, "q", "<thin<end>", "", "<thin"),
            (GRANITE, "q", "So: <think>no</think><end>", "", "So: <think>no</think>"),
            (GRANITE, "q", "<think>hm</thi<end>", "hm</thi", ""),
            (GRANITE, "q<think>\n", "hm</think>so<end>", "hm", "so"),
            (
                APRIEL,
                "q",
                "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\nso\n[END FINAL RESPONSE]<end>",
                "hm",
                "so\n",
            ),
            (APRIEL, "Here are my reasoning steps:\n", "hm[BEGIN FINAL RESPONSE]so", "hm", "so"),
            (APRIEL, "q", "Here are the apples.<end>", "", "Here are the apples."),
            ("plain", "q", "<think>hm</think>so<end>", "", "<think>hm</think>so"),
        ] {
            let found = reply(template, prompt, text, Thinking::Template, &[]);
            assert_eq!((found.0.as_str(), found.1.as_str()), (thought, answer), "{text}");
        }
    }

    #[test]
    fn stops_end_the_answer_alone_and_a_budget_the_thought() {
        let text = "<think>one END two</think>three END four<end>";
        let found = reply(GRANITE, "q", text, Thinking::Template, &["END".to_owned()]);
        assert_eq!((found.0.as_str(), found.1.as_str()), ("one END two", "three "));
        let (thought, answer, forced) = reply(GRANITE, "q", text, Thinking::On { budget_tokens: 5 }, &[]);
        assert!(forced && thought.starts_with("one E") && answer.ends_with("three END four"), "{thought:?} {answer:?}");
    }
}
