//! The library's vocabulary: round trips, special tokens only where asked for, long runs.

use std::path::Path;

use chimere::engine::llama::{self, LlamaVocab};
use chimere::engine::prompt;
use chimere::engine::protocol::ChatInput;
use chimere::engine::template::ChatTemplate;
use chimere::engine::vocab::{TokenKind, Vocab};
use chimere::turn::{Message, Role, ToolCall};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::models::{VOCAB, alone, load, make};

#[test]
fn special_tokens_are_recognised_only_when_asked_for() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (_, vocab) = load(&make(dir.path(), "qwen2"));
    let (start, end) = (VOCAB as u32 - 2, VOCAB as u32 - 1);
    assert_eq!(vocab.len(), VOCAB);
    assert_eq!((vocab.special("<|im_start|>"), vocab.special("t1")), (Some(start), None));
    assert_eq!(vocab.specials().len(), 3);
    assert!(vocab.ends().contains(&end) && !vocab.ends().contains(&start));
    assert_eq!(vocab.kind(start), TokenKind::Control);
    assert_eq!(vocab.kind(65), TokenKind::Normal);
    assert_eq!((vocab.name(end).as_str(), vocab.bytes(end)), ("<|im_end|>", vec![]));
    assert_eq!(vocab.bytes(u32::MAX), b"");
    assert!(vocab.template().unwrap().contains("messages"));
    assert_eq!(vocab.bos(), None, "the file asks for none");
    let encode = |text: &str, specials| {
        let mut ids = Vec::new();
        vocab.encode(text, specials, &mut ids).unwrap();
        ids
    };
    assert_eq!(encode("<|im_start|>a", true).len(), 2);
    let plain = encode("<|im_start|>a", false);
    assert!(plain.len() == 13 && plain.iter().all(|id| vocab.kind(*id) == TokenKind::Normal));
    for text in ["", "hello  world\n\n", "t0 naïve 漢字 🚀\u{0}\t", "<|im_end|>"] {
        let bytes: Vec<u8> = encode(text, false).into_iter().flat_map(|id| vocab.bytes(id)).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn a_million_characters_of_any_kind_are_tokenised_whole() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in ["qwen2", "mamba2"] {
        let (_, vocab) = load(&make(dir.path(), architecture));
        let kinds = ["a", "7", " ", "\n", "!", "漢", "é", "\u{300}", "👩\u{200d}🚀", "<|im_end|>", "a ", "\u{0}"];
        for kind in kinds {
            let text = kind.repeat(1_000_000 / kind.chars().count());
            let mut ids = Vec::new();
            vocab.encode(&text, false, &mut ids).unwrap();
            let bytes: usize = ids.iter().map(|id| vocab.bytes(*id).len()).sum();
            assert_eq!(bytes, text.len(), "{architecture} {kind:?}");
        }
    }
}

fn encode(vocab: &dyn Vocab, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    vocab.encode(text, false, &mut ids).unwrap();
    ids
}

fn decoded(vocab: &dyn Vocab, ids: &[u32]) -> String {
    String::from_utf8(ids.iter().flat_map(|id| vocab.bytes(*id)).collect()).unwrap()
}

/// What has no blank of its own, as long as people send it.
fn long_runs() -> [String; 5] {
    let base64 = "QUJD0123abcxyz+/".repeat(400);
    let address = format!("https://example.org/?{}", "key=value&other=the%20thing&".repeat(200));
    ["a".repeat(5_000), "漢字かな混じり".repeat(155), base64, address, "the".repeat(3_000)]
}

#[test]
fn long_runs_get_no_blank_by_sentence_pieces() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (model, vocab) = load(&make(dir.path(), "llama"));
    for text in long_runs() {
        let ids = encode(&vocab, &text);
        assert_eq!(ids, model.model().tokenize(&text, false, false).unwrap(), "as the library reads the whole");
        assert_eq!(decoded(&vocab, &ids), format!(" {text}"), "one blank, which the vocabulary wants before a text");
    }
}

#[test]
fn long_runs_stay_one_word_by_word_pieces() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (model, vocab) = load(&make(dir.path(), "bert"));
    let ids = encode(&vocab, &"abc".repeat(2_000));
    assert_eq!(ids.len(), 6_000);
    assert_eq!(ids.iter().filter(|id| model.model().text(**id).unwrap().starts_with('\u{2581}')).count(), 1);
}

#[test]
fn text_that_goes_on_gets_no_blank_before_it() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (_, vocab) = load(&make(dir.path(), "llama"));
    for text in ["the thing", " a", "\n", "漢", "<s>", "</think>x"] {
        let mut ids = Vec::new();
        vocab.encode_further(text, &mut ids).unwrap();
        assert_eq!(decoded(&vocab, &ids), text);
    }
    // A reply that was begun goes on from the prompt.
    let template = ChatTemplate::load("<|user|>{{ messages[0].content }}<|end|><|assistant|>So: ").unwrap();
    let chat = ChatInput { reply_begins: "the".to_owned(), ..chat("x") };
    let ids = prompt::render(&vocab, &template, &chat).unwrap().ids;
    assert!(decoded(&vocab, &ids).ends_with(" So: the"), "{}", decoded(&vocab, &ids));
}

/// A file may name a first token that no prompt begins with by itself: its template prints it where it is wanted.
#[test]
fn a_template_is_told_the_files_own_tokens_around_a_text() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let template = ChatTemplate::load("{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}").unwrap();
    for (name, added, text) in [("qwen2", None, "<|endoftext|>|<|im_end|>|x"), ("llama", Some(1), "<s>|</s>|x")] {
        let (_, vocab) = load(&make(dir.path(), name));
        assert_eq!(vocab.bos(), added, "{name}: what a prompt begins with");
        assert_eq!(prompt::render(&vocab, &template, &chat("x")).unwrap().text, text);
    }
}

/// The tokens of Phi-3 take the white space behind them away; the prompt is what the library makes of its text.
#[test]
fn tokens_that_strip_do_so_in_prompts() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n";
    let template = ChatTemplate::load(template).unwrap();
    let mut stripped = Vec::new();
    for name in ["phi-3", "llama"] {
        let (model, vocab) = load(&make(dir.path(), name));
        for content in ["the thing", "  \t two blanks", "", " \n "] {
            let rendered = prompt::render(&vocab, &template, &chat(content)).unwrap();
            let whole = model.model().tokenize(&rendered.text, false, true).unwrap();
            assert_eq!(rendered.ids[1..], whole, "{name} {content:?}");
            stripped.push(whole.len());
        }
    }
    let (phi, llama) = stripped.split_at(4);
    assert!(phi.iter().zip(llama).all(|(a, b)| a < b), "{stripped:?}");
}

fn chat(content: &str) -> ChatInput {
    let messages = vec![Message::new(Role::User, content)];
    ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() }
}

/// Every place where a client's text can stand.
fn everywhere(text: &str) -> ChatInput {
    let call = ToolCall {
        id: text.to_owned(),
        name: text.to_owned(),
        arguments: json!({ text: text, "deep": [{"x": text}] }),
    };
    let mut reply = Message::new(Role::Assistant, text);
    reply.reasoning_content = Some(text.to_owned());
    reply.tool_calls = vec![call];
    let mut result = Message::new(Role::Tool, text);
    result.name = Some(text.to_owned());
    let tool = json!({"type": "function", "function": {"name": text, "description": text,
        "parameters": {"type": "object", "properties": {text: {"type": "string", "enum": [text]}}}}});
    let messages = vec![Message::new(Role::System, text), Message::new(Role::User, text), reply, result];
    ChatInput { messages, tools: vec![tool], add_generation_prompt: true, ..ChatInput::default() }
}

/// A conversation in which every piece of it stands between the marks of the vocabulary.
const EVERYTHING: &str = "{% for m in messages %}<|user|>{{ m.role }}\n{% if m.name %}{{ m.name }}{% endif %}\
    {% if m.reasoning_content %}{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}\
    {% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|end|>{% endfor %}{{ tools | tojson }}<|assistant|>";

/// Text made of pieces of special tokens, whole ones included, with noise between.
fn hostile(vocab: &dyn Vocab) -> impl Strategy<Value = String> + use<> {
    let names: Vec<String> = vocab.specials().into_iter().map(|(_, name)| name).collect();
    let piece = (prop::sample::select(names), 0usize..4, 0usize..12, "[a<|>_/ \n\u{fdd0}]{0,3}");
    prop::collection::vec(piece, 0..6).prop_map(|pieces| {
        let cut = |(name, from, len, noise): (String, usize, usize, String)| {
            let from = name.floor_char_boundary(from.min(name.len()));
            let to = name.floor_char_boundary((from + len + 3).min(name.len()));
            name[from..to].to_owned() + &noise
        };
        "x".to_owned() + &pieces.into_iter().map(cut).collect::<String>()
    })
}

fn specials_in(vocab: &dyn Vocab, ids: &[u32]) -> usize {
    ids.iter().filter(|id| vocab.kind(**id) != TokenKind::Normal).count()
}

/// What somebody wrote is letters on the library's vocabularies as on our own: by itself, and at every place of a prompt.
fn stays_text(vocab: &LlamaVocab, template: &str) {
    let template = ChatTemplate::load(template).unwrap();
    let marks = |text: &str| {
        let ids = prompt::render(vocab, &template, &everywhere(text)).unwrap().ids;
        specials_in(vocab, &ids)
    };
    let usual = marks("x");
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    let checked = TestRunner::new(cases).run(&hostile(vocab), |text| {
        let ids = encode(vocab, &text);
        prop_assert_eq!(specials_in(vocab, &ids), 0, "{:?}", text);
        let (found, blank) = (decoded(vocab, &ids), format!(" {text}"));
        prop_assert!(found == text || found == blank, "{:?} became {:?}", text, found);
        prop_assert_eq!(marks(&text), usual, "{:?}", text);
        Ok(())
    });
    checked.unwrap();
    for (_, name) in vocab.specials() {
        assert_eq!(specials_in(vocab, &encode(vocab, &name)), 0, "{name}");
    }
}

#[test]
fn no_text_becomes_a_special_token_by_sentence_pieces() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (_, vocab) = load(&make(dir.path(), "llama"));
    let end = vocab.special("</think>").unwrap();
    assert_eq!(vocab.kind(end), TokenKind::UserDefined);
    assert_eq!(decoded(&vocab, &encode(&vocab, "a\n\nb")), " a\n\nb", "no blank behind a token of two new lines");
    stays_text(&vocab, EVERYTHING);
}

#[test]
fn no_text_becomes_a_special_token_by_bytes() {
    let _turn = alone();
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano.gguf");
    let vocab = llama::vocab(&nano).unwrap();
    assert_ne!(vocab.kind(vocab.special("</think>").unwrap()), TokenKind::Normal);
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/template/Qwen3.5-4B.jinja");
    let template = std::fs::read_to_string(template).unwrap();
    stays_text(&vocab, &template);
}
