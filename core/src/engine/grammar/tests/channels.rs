//! Forms of replies that come in channels, as gpt-oss writes them: a thought in its channel, then the answer in its own.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::agreement::Marked;
use super::calls;
use crate::engine::control::{ReplyControl, ReplyLimits};
use crate::engine::grammar::{Compiler, Grammar};
use crate::engine::protocol::Channel;
use crate::engine::vocab::Vocab;
use crate::turn::Thinking;

const MARKS: [&str; 6] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>"];
const PROMPT: &str = "<|start|>user<|message|>hi<|end|><|start|>assistant";
const THOUGHT: &str = "<|channel|>analysis<|message|>";
const FINAL: &str = "<|channel|>final<|message|>";
const END: u32 = 256;

fn vocab() -> Arc<Marked> {
    let specials = MARKS.iter().map(|mark| (*mark).to_owned()).collect();
    Arc::new(Marked { specials, template: "<|start|>assistant".to_owned() })
}

fn ids(text: &str) -> Vec<u32> {
    let (vocab, mut ids, mut rest) = (vocab(), Vec::new(), text);
    while let Some(first) = rest.bytes().next() {
        let mark = MARKS.iter().find(|mark| rest.starts_with(**mark));
        ids.push(mark.map_or(u32::from(first), |mark| vocab.special(mark).unwrap()));
        rest = &rest[mark.map_or(1, |mark| mark.len())..];
    }
    ids
}

/// Thought and answer of a reply that would say `text`, its end after it; or what of it was not allowed.
fn reply(grammar: &Grammar, prompt: &str, thinking: Thinking, text: &str) -> Result<(String, String), String> {
    let vocab = vocab();
    let mut compiler = Compiler::new(Arc::clone(&vocab) as Arc<dyn Vocab>, None);
    let limits = ReplyLimits { max_tokens: 1000, stop: &[], thinking, ignore_end: false };
    let mut control = ReplyControl::new(vocab.as_ref(), limits, false).unwrap().behind(vocab.as_ref(), &ids(prompt));
    let mut constraint = compiler.constraint(grammar).unwrap();
    if grammar.may_answer() {
        constraint.behind(&ids(prompt), control.may_think()).unwrap();
    }
    let (mut said, wished) = ([String::new(), String::new()], ids(text));
    let mut wished = wished.iter().copied().chain([END]);
    loop {
        let forced = control.forced();
        let Some(id) = forced.or_else(|| wished.next()) else { panic!("no end: {said:?}") };
        if forced.is_none() {
            let mut row = vec![0.0; vocab.len()];
            constraint.mask(control.channel(), &mut row).unwrap();
            if row[id as usize] == f32::NEG_INFINITY {
                let rest: String =
                    [id].into_iter().chain(wished).take_while(|id| *id != END).map(|id| vocab.name(id)).collect();
                return Err(rest);
            }
        }
        let advance = control.push(vocab.as_ref(), id);
        said[usize::from(advance.channel == Channel::Answer)] += &advance.text;
        constraint.took(advance.channel, id, forced.is_some()).unwrap();
        if advance.finish.is_some() || constraint.complete() {
            let [thought, answer] = said;
            return Ok((thought, answer));
        }
    }
}

fn number() -> Grammar {
    Grammar::Json(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))
}

const JSON: &str = "{\"a\": 1}";

#[test]
fn an_answer_is_a_message_of_its_own_and_a_thought_may_come_before() {
    let thinks = Thinking::On { budget_tokens: 100 };
    let next = "<|end|><|start|>assistant";
    let whole = |thought: &str| Ok((thought.to_owned(), JSON.to_owned()));
    let refused = |rest: &str| Err(rest.to_owned());
    for (prompt, thinking, text, expected) in [
        (PROMPT, thinks, format!("{FINAL}{JSON}"), whole("")),
        (PROMPT, thinks, format!("{THOUGHT}hm{next}{FINAL}{JSON}"), whole("hm")),
        (PROMPT, Thinking::Template, format!("{THOUGHT}hm{next}{FINAL}{JSON}"), whole("hm")),
        (PROMPT, Thinking::Off, format!("{FINAL}{JSON}"), whole("")),
        // Over its budget a thought is ended, and the header of the answer written.
        (PROMPT, Thinking::On { budget_tokens: 2 }, format!("{THOUGHT}hm{JSON}"), whole("hm")),
        // The prompt began the answer, or a part of its header; or it is no prompt of messages.
        ("<|start|>assistant<|channel|>final<|message|>", thinks, JSON.to_owned(), whole("")),
        ("<|start|>assistant<|channel|>", thinks, format!("final<|message|>{JSON}"), whole("")),
        ("A number:", thinks, JSON.to_owned(), whole("")),
        (PROMPT, thinks, JSON.to_owned(), refused(JSON)),
        (PROMPT, thinks, format!("{FINAL}no"), refused("no")),
        (PROMPT, thinks, "<|channel|>commentary".to_owned(), refused("commentary")),
        (PROMPT, thinks, format!("{THOUGHT}hm<|start|>"), refused("<|start|>")),
        (PROMPT, thinks, format!("{THOUGHT}hm"), refused("")),
        (PROMPT, thinks, format!("{THOUGHT}hm{next}{THOUGHT}"), refused("analysis<|message|>")),
        (PROMPT, Thinking::Off, format!("{THOUGHT}hm"), refused("analysis<|message|>hm")),
    ] {
        assert_eq!(reply(&number(), prompt, thinking, &text), expected, "{thinking:?}: {prompt} … {text}");
    }
}

#[test]
fn a_free_choice_is_a_call_or_an_answer_in_its_channel() {
    let thinks = Thinking::On { budget_tokens: 100 };
    let call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\": 1, \"b\": 2}";
    let thought = format!("{THOUGHT}hm<|end|><|start|>assistant");
    let answer: Value = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for (grammar, said) in [(calls(false, true, Some(answer)), JSON), (calls(false, true, None), "So it is.")] {
        let told = reply(&grammar, PROMPT, thinks, &format!("{thought}{FINAL}{said}"));
        assert_eq!(told, Ok(("hm".to_owned(), said.to_owned())));
        for before in ["", &thought] {
            let (_, told) = reply(&grammar, PROMPT, thinks, &format!("{before}{call}")).unwrap();
            assert!(told.contains("to=functions.add") && told.ends_with("{\"a\": 1, \"b\": 2}"), "{told}");
        }
        assert!(reply(&grammar, PROMPT, thinks, said).is_err());
    }
    // A call that was asked for comes at once.
    let forced = calls(true, true, None);
    assert!(reply(&forced, "<|start|>assistant", Thinking::Off, call).is_ok());
}
