//! Whole replies through the control, on a vocabulary whose tokens are given as byte strings.

use super::super::protocol::{STOP_BYTES_MAX, STOPS_MAX};
use super::super::vocab::{TokenKind, VocabError};
use super::*;
use crate::turn::Thinking;

const END: u32 = 0;
const OPEN: u32 = 1;
const CLOSE: u32 = 2;

/// Ids below 3 are special; id 3 + b is the byte b; larger ids are the given pieces.
struct Bytes(Vec<Vec<u8>>);

impl Vocab for Bytes {
    fn len(&self) -> usize {
        259 + self.0.len()
    }
    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(|b| u32::from(b) + 3));
        Ok(())
    }
    fn bytes(&self, id: u32) -> Vec<u8> {
        match id {
            0..3 => Vec::new(),
            3..259 => vec![(id - 3) as u8],
            _ => self.0.get(id as usize - 259).cloned().unwrap_or_default(),
        }
    }
    fn name(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }
    fn kind(&self, id: u32) -> TokenKind {
        if id == END { TokenKind::Control } else { TokenKind::Normal }
    }
    fn special(&self, text: &str) -> Option<u32> {
        ["<end>", "<think>", "</think>"].iter().position(|s| *s == text).map(|i| i as u32)
    }
    fn specials(&self) -> Vec<(u32, String)> {
        vec![(0, "<end>".into()), (1, "<think>".into()), (2, "</think>".into())]
    }
    fn ends(&self) -> &[u32] {
        &[END]
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        None
    }
}

/// A token a byte, then marks.
pub(super) struct Marked {
    pub(super) marks: Vec<&'static str>,
    pub(super) ends: Vec<u32>,
    pub(super) template: Option<String>,
}

impl Marked {
    pub(super) fn ids(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text.as_bytes());
        while let Some(first) = rest.first() {
            let mark = self.marks.iter().position(|mark| rest.starts_with(mark.as_bytes()));
            ids.push(mark.map_or(u32::from(*first), |at| 256 + at as u32));
            rest = &rest[mark.map_or(1, |at| self.marks[at].len())..];
        }
        ids
    }
}

impl Vocab for Marked {
    fn len(&self) -> usize {
        256 + self.marks.len()
    }
    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }
    fn bytes(&self, id: u32) -> Vec<u8> {
        u8::try_from(id).map_or_else(|_| Vec::new(), |byte| vec![byte])
    }
    fn name(&self, id: u32) -> String {
        u8::try_from(id).map_or_else(|_| self.marks[id as usize - 256].to_owned(), |byte| char::from(byte).to_string())
    }
    fn kind(&self, id: u32) -> TokenKind {
        if id < 256 { TokenKind::Normal } else { TokenKind::Control }
    }
    fn special(&self, text: &str) -> Option<u32> {
        self.marks.iter().position(|mark| *mark == text).map(|at| 256 + at as u32)
    }
    fn specials(&self) -> Vec<(u32, String)> {
        (256..).zip(self.marks.iter().map(|mark| (*mark).to_owned())).collect()
    }
    fn ends(&self) -> &[u32] {
        &self.ends
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        self.template.clone()
    }
}

#[test]
fn thoughts_in_the_marks_of_every_family_are_told_apart() {
    for (open, close) in crate::engine::thought::MARKS {
        let vocab = Marked { marks: vec!["<end>", open, close], ends: vec![256], template: None };
        let limits = ReplyLimits { max_tokens: 100, stop: &[], thinking: Thinking::Template, ignore_end: false };
        let mut control = ReplyControl::new(&vocab, limits, false).unwrap();
        let mut said = [String::new(), String::new()];
        for id in vocab.ids(&format!("{open}hm\n{close}\n\nso<end>")) {
            let advance = control.push(&vocab, id);
            said[usize::from(advance.channel == Channel::Answer)] += &advance.text;
        }
        assert_eq!(said, ["hm", "so"], "{open}");
    }
}

/// A reply that may call `f`, whole, a token a byte. `trained`: the model was taught calls.
fn calling(text: &str, stops: &[String], trained: bool) -> (String, Option<Finish>) {
    let tools = [
        serde_json::json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}),
    ];
    let vocab = Bytes(Vec::new());
    let control = ReplyControl::new(&vocab, limits(stops), false).unwrap();
    let mut control = control.calling(&vocab, &tools, &crate::toolcall::QWEN_TAGS, trained);
    let mut shown = String::new();
    for byte in text.bytes() {
        let advance = control.push(&vocab, u32::from(byte) + 3);
        shown += &advance.text;
        if let Some(finish) = advance.finish {
            shown += &finish.text;
            return (shown, Some(finish));
        }
    }
    let finish = control.finish(FinishReason::Stop);
    shown += &finish.text;
    (shown, Some(finish))
}

#[test]
fn a_call_that_json_of_a_form_quotes_is_text() {
    let call = "<tool_call><function=f><parameter=s>a</parameter></function></tool_call>";
    let text = format!("[\"{call}\", \"{call}\"]");
    let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
    for (form, whole) in [(true, true), (false, false)] {
        let vocab = Bytes(Vec::new());
        let control = ReplyControl::new(&vocab, limits(&[]), false).unwrap();
        let mut control = control.calling(&vocab, &tools, &crate::toolcall::QWEN_TAGS, false);
        if form {
            control.calls_first();
        }
        let ended = text.bytes().find_map(|byte| control.push(&vocab, u32::from(byte) + 3).finish);
        assert_eq!(ended.is_none(), whole, "{form}: {ended:?}");
    }
}

#[test]
fn stop_strings_end_the_text_and_never_cut_a_call() {
    let call = "<tool_call>\n<function=f>\n<parameter=s>\na END b\n</parameter>\n</function>\n</tool_call>";
    for (text, stop, shown, stopped) in [
        (call.to_owned(), "\n", call.to_owned(), false),
        (format!("\n{call}\n{call}\n"), "\n", format!("{call}{call}"), false),
        (format!("So: {call}"), "END", format!("So:{call}"), false),
        (format!("{call}\nand END more"), "END", format!("{call}and "), true),
        ("one\ntwo".to_owned(), "\n", "one".to_owned(), true),
        ("<tool_call> is a mark\nx".to_owned(), "\n", "<tool_call> is a mark".to_owned(), true),
    ] {
        let (found, finish) = calling(&text, &[stop.to_owned()], true);
        assert_eq!((found, finish.unwrap().stop.is_some()), (shown, stopped), "{text:?}");
    }
}

#[test]
fn a_call_that_an_untaught_model_repeats_ends_the_reply() {
    let call = |s: &str| format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"s\": \"{s}\"}}}}\n</tool_call>");
    let (one, other) = (call("a"), call("b"));
    for (text, trained, shown, ended) in [
        (format!("{one}\n{one}\n{one}"), false, one.clone(), true),
        (format!("So: {one}\n{other}\n{other}\n{one}"), false, format!("So:{one}{other}"), true),
        (format!("{one}\n{other}\n{one}"), false, format!("{one}{other}"), true),
        (format!("{one}\n{other}"), false, format!("{one}{other}"), false),
        (format!("{one}\n{one}"), true, format!("{one}\n{one}"), false),
    ] {
        let (found, finish) = calling(&format!("{text}\nand more"), &[], trained);
        let finish = finish.unwrap();
        let rest = if trained { "\nand more" } else { "and more" };
        let shown = if ended { shown } else { shown + rest };
        assert_eq!((found, finish.reason, finish.stop), (shown, FinishReason::Stop, None), "{text:?}");
    }
}

#[test]
fn a_mark_that_the_limit_cuts_meets_no_stop_string() {
    let whole = "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>";
    let half = "<tool_call>\n<function=f>\n<parameter=s>\nb\n";
    for (text, stop, shown_wanted) in [
        ("So <tool_".to_owned(), "<", "So".to_owned()),
        // Half a call is no text in which a stop string could stand, also behind a whole one.
        (half.to_owned(), "\n", half.trim_end().to_owned()),
        (format!("{whole}{half}"), "<", format!("{whole}{half}").trim_end().to_owned()),
    ] {
        let vocab = Bytes(Vec::new());
        let stop = [stop.to_owned()];
        let limits = ReplyLimits { max_tokens: text.len() as u32, ..limits(&stop) };
        let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
        let control = ReplyControl::new(&vocab, limits, false).unwrap();
        let mut control = control.calling(&vocab, &tools, &crate::toolcall::QWEN_TAGS, true);
        let advances = text.bytes().map(|byte| control.push(&vocab, u32::from(byte) + 3)).collect::<Vec<_>>();
        let finish = advances.last().unwrap().finish.clone().unwrap();
        let shown: String = advances.iter().map(|a| a.text.as_str()).chain([finish.text.as_str()]).collect();
        assert_eq!((shown.trim_end(), finish.reason, finish.stop), (shown_wanted.as_str(), FinishReason::Length, None));
    }
}

fn limits(stop: &[String]) -> ReplyLimits<'_> {
    ReplyLimits { max_tokens: 1000, stop, thinking: Thinking::Template, ignore_end: false }
}

#[derive(Debug, Default, PartialEq)]
struct Reply {
    thought: String,
    answer: String,
    ids: Vec<u32>,
    forced: Vec<u32>,
    finish: Option<(FinishReason, Option<String>)>,
}

/// Feeds `sampled`, and forced tokens where they are asked for, until the reply ends.
fn run(vocab: &Bytes, limits: ReplyLimits<'_>, open: bool, sampled: &[u32]) -> Reply {
    let mut control = ReplyControl::new(vocab, limits, open).unwrap();
    let mut reply = Reply::default();
    let mut sampled = sampled.iter();
    while reply.finish.is_none() {
        let Some(id) = control.forced().or_else(|| sampled.next().copied()) else { break };
        let advance = control.push(vocab, id);
        reply.ids.push(id);
        if advance.forced {
            reply.forced.push(id);
        }
        match advance.channel {
            Channel::Thinking => reply.thought += &advance.text,
            Channel::Answer => reply.answer += &advance.text,
        }
        if let Some(finish) = advance.finish {
            reply.answer += &finish.text;
            reply.finish = Some((finish.reason, finish.stop));
        }
    }
    assert_eq!(control.tokens() as usize, reply.ids.len());
    reply
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(|b| u32::from(b) + 3).collect()
}

#[test]
fn a_thought_and_an_answer() {
    let vocab = Bytes(vec![]);
    let sampled = [ids("\nhm…\nyes\n"), vec![CLOSE], ids("\n\nfour\n"), vec![END]].concat();
    let reply = run(&vocab, limits(&[]), true, &sampled);
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("hm…\nyes", "four\n"));
    assert_eq!(reply.finish, Some((FinishReason::Stop, None)));
    assert!(reply.forced.is_empty());
}

#[test]
fn a_model_may_open_the_thought_itself() {
    let vocab = Bytes(vec![]);
    let sampled = [vec![OPEN], ids("\nx\n"), vec![CLOSE], ids("\n\ny"), vec![END]].concat();
    let reply = run(&vocab, limits(&[]), false, &sampled);
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("x", "y"));
}

#[test]
fn an_answer_keeps_its_newlines_when_there_was_no_thought() {
    let vocab = Bytes(vec![]);
    let reply = run(&vocab, limits(&[]), false, &[ids("\n\na\n"), vec![END]].concat());
    assert_eq!(reply.answer, "\n\na\n");
}

#[test]
fn stop_strings_end_the_answer_and_not_the_thought() {
    let vocab = Bytes(vec![]);
    let stop = ["STOP".to_owned()];
    let sampled = [ids("STOP it"), vec![CLOSE], ids("\nSTO STOP more")].concat();
    let reply = run(&vocab, limits(&stop), true, &sampled);
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("STOP it", "STO "));
    assert_eq!(reply.finish, Some((FinishReason::Stop, Some("STOP".into()))));
}

#[test]
fn any_cut_into_tokens_shows_the_same() {
    let answer = "a€b\nEN🦀EN D".as_bytes();
    let stop = ["END".to_owned(), "€c".to_owned()];
    for a in 0..=answer.len() {
        for b in a..=answer.len() {
            let vocab = Bytes(vec![answer[..a].to_vec(), answer[a..b].to_vec(), answer[b..].to_vec()]);
            let reply = run(&vocab, limits(&stop), false, &[259, 260, 261, END]);
            assert_eq!(reply.answer.as_bytes(), answer, "cut at {a} and {b}");
        }
    }
}

#[test]
fn held_text_comes_out_at_the_end() {
    let vocab = Bytes(vec![]);
    let stop = ["END".to_owned()];
    let reply = run(&vocab, ReplyLimits { max_tokens: 4, ..limits(&stop) }, false, &ids("abENx"));
    assert_eq!(reply.answer, "abEN");
    assert_eq!(reply.finish, Some((FinishReason::Length, None)));

    let mut control = ReplyControl::new(&vocab, limits(&stop), false).unwrap();
    assert_eq!(control.push(&vocab, u32::from(b'E') + 3).text, "");
    let finish = control.finish(FinishReason::Aborted);
    assert_eq!((finish.reason, finish.text.as_str()), (FinishReason::Aborted, "E"));
}

#[test]
fn the_budget_closes_the_thought() {
    let vocab = Bytes(vec![]);
    let on = ReplyLimits { thinking: Thinking::On { budget_tokens: 3 }, ..limits(&[]) };
    let sampled = [ids("abc"), ids("yes"), vec![END]].concat();
    let reply = run(&vocab, on, true, &sampled);
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("abc", "yes"));
    assert_eq!(reply.forced, [ids("\n"), vec![CLOSE], ids("\n\n")].concat());

    // A thought that ends with a newline needs no other, an empty one does.
    let reply = run(&vocab, on, true, &[ids("ab\n"), ids("yes"), vec![END]].concat());
    assert_eq!(reply.forced, [vec![CLOSE], ids("\n\n")].concat());
    let none = ReplyLimits { thinking: Thinking::On { budget_tokens: 0 }, ..limits(&[]) };
    let reply = run(&vocab, none, true, &[ids("yes"), vec![END]].concat());
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("", "yes"));
    assert_eq!(reply.forced, [ids("\n"), vec![CLOSE], ids("\n\n")].concat());
}

#[test]
fn the_budget_never_cuts_a_character() {
    let vocab = Bytes(vec![]);
    let on = ReplyLimits { thinking: Thinking::On { budget_tokens: 2 }, ..limits(&[]) };
    let reply = run(&vocab, on, true, &[ids("a🦀"), ids("yes"), vec![END]].concat());
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("a🦀", "yes"));
}

#[test]
fn the_budget_leaves_room_for_an_answer() {
    let vocab = Bytes(vec![]);
    let on = ReplyLimits { max_tokens: 40, thinking: Thinking::On { budget_tokens: 1000 }, ..limits(&[]) };
    let reply = run(&vocab, on, true, &ids(&"x".repeat(200)));
    // 40 tokens: 10 for the answer, 4 to close the thought.
    assert_eq!((reply.thought.len(), reply.answer.len()), (26, 10));
    assert_eq!(reply.finish, Some((FinishReason::Length, None)));
    // However small the reply, the control ends it.
    for max_tokens in 1..8 {
        let reply = run(&vocab, ReplyLimits { max_tokens, ..on }, true, &ids(&"x".repeat(20)));
        assert_eq!(reply.ids.len(), max_tokens as usize);
    }
}

#[test]
fn a_thought_opened_against_the_request_is_closed_at_once() {
    let vocab = Bytes(vec![]);
    let off = ReplyLimits { thinking: Thinking::Off, ..limits(&[]) };
    let reply = run(&vocab, off, false, &[vec![OPEN], ids("yes"), vec![END]].concat());
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("", "yes"));
}

#[test]
fn a_reply_that_ends_inside_its_thought_keeps_the_thought() {
    let vocab = Bytes(vec![]);
    let reply = run(&vocab, limits(&[]), true, &[ids("so \u{e9}")[..4].to_vec(), vec![END]].concat());
    assert_eq!((reply.thought.as_str(), reply.answer.as_str()), ("so \u{fffd}", ""));
}

#[test]
fn ends_can_be_ignored() {
    let vocab = Bytes(vec![]);
    let on = ReplyLimits { ignore_end: true, max_tokens: 4, ..limits(&[]) };
    let reply = run(&vocab, on, false, &[ids("a"), vec![END], ids("bcd")].concat());
    assert_eq!((reply.answer.as_str(), reply.ids.len()), ("abc", 4));
}

#[test]
fn bad_limits_are_refused() {
    fn refused(limits: ReplyLimits<'_>) -> String {
        ReplyControl::new(&Bytes(vec![]), limits, false).map(|_| ()).unwrap_err().to_string()
    }
    assert!(refused(limits(&[String::new()])).contains("empty"));
    assert!(refused(limits(&["x".repeat(STOP_BYTES_MAX + 1)])).contains("1025 bytes"));
    assert!(refused(limits(&vec!["x".to_owned(); STOPS_MAX + 1])).contains("17 stop strings"));
    assert!(refused(ReplyLimits { max_tokens: 0, ..limits(&[]) }).contains("max_tokens"));
}

/// A row in which the byte `b` of [`Bytes`] has everything, or nothing is likelier than anything else.
fn row(sure: Option<u8>) -> Vec<f32> {
    let mut row = vec![if sure.is_some() { f32::NEG_INFINITY } else { 0.0 }; 259];
    if let Some(b) = sure {
        row[usize::from(b) + 3] = 5.0;
    }
    row
}

#[test]
fn a_certain_thought_ends_by_the_forced_mark_and_says_so() {
    use crate::turn::BudgetForcing;
    let vocab = Bytes(Vec::new());
    let forcing = BudgetForcing { certainty_min: 0.9, tokens: 3, tokens_min: 4 };
    let policy = ThoughtPolicy { budget_forcing: Some(forcing), reflection_suppression: None };
    let thinking = Thinking::On { budget_tokens: 20 };
    for (sure, certain_from, ended) in [(true, 4, ThoughtEnd::Certain), (false, 20, ThoughtEnd::Budget)] {
        let limits = ReplyLimits { thinking, ..limits(&[]) };
        let mut control = ReplyControl::new(&vocab, limits, true).unwrap().watching(&vocab, Some(policy)).unwrap();
        let mut thought = 0;
        while control.forced().is_none() {
            assert!(control.watches());
            control.saw(&mut row(sure.then_some(b'a')));
            control.push(&vocab, u32::from(b'a') + 3);
            thought += 1;
        }
        assert_eq!(thought, certain_from, "sure: {sure}");
        while let Some(id) = control.forced() {
            assert!(control.push(&vocab, id).forced && !control.watches());
        }
        assert_eq!((control.channel(), control.thought().unwrap().ended), (Channel::Answer, Some(ended)));
        assert!(!control.watches(), "an answer is not watched");
    }
}

#[test]
fn without_a_policy_nothing_is_watched_and_a_row_stays_as_it_is() {
    let vocab = Bytes(Vec::new());
    let mut control = ReplyControl::new(&vocab, limits(&[]), true).unwrap().watching(&vocab, None).unwrap();
    let mut seen = row(Some(b'a'));
    control.saw(&mut seen);
    assert_eq!((control.watches(), control.thought(), seen), (false, None, row(Some(b'a'))));
}
