//! Which texts are read, and how far, before a request is refused or becomes a job.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::backend::ModelInfo;
use crate::engine::host_tests::{Letters, info};
use crate::engine::tokenizer::Bpe;
use crate::engine::vocab::{TokenKind, VocabError};
use crate::gguf::Gguf;
use crate::turn::{Message, Role, Sampling};
use serde_json::json;

/// Prepares for a model of that vocabulary, which reads so many tokens.
pub(in crate::engine) fn preparer(vocab: Arc<dyn Vocab>, context_tokens: usize) -> Preparer {
    let hosted = Hosted {
        model: ModelInfo { context_tokens, ..info(1) },
        model_hash: String::new(),
        template_hash: String::new(),
        tokenizer_hash: String::new(),
        thinks: false,
        steered_by: Vec::new(),
        holds_calls: true,
        calls: String::new(),
        chats: false,
        frozen: None,
        load_ms: 0,
        defaults: Default::default(),
    };
    Preparer::new(vocab, None, &hosted, BaseModel::default())
}

/// Each byte is a token; counts the bytes that it was given.
struct Counting(AtomicUsize);

impl Vocab for Counting {
    fn len(&self) -> usize {
        Letters.len()
    }
    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        self.0.fetch_add(text.len(), Ordering::Relaxed);
        Letters.encode(text, specials, ids)
    }
    /// The longest has a hundred, so that the length alone tells nothing of the texts below.
    fn bytes(&self, id: u32) -> Vec<u8> {
        vec![b'0'; if id == 0 { 100 } else { 1 }]
    }
    fn name(&self, id: u32) -> String {
        id.to_string()
    }
    fn kind(&self, _: u32) -> TokenKind {
        TokenKind::Normal
    }
    fn special(&self, _: &str) -> Option<u32> {
        None
    }
    fn specials(&self) -> Vec<(u32, String)> {
        Vec::new()
    }
    fn ends(&self) -> &[u32] {
        &[]
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        None
    }
}

#[test]
fn a_text_over_a_limit_is_read_to_the_limit_and_no_further() {
    let vocab = Arc::new(Counting(AtomicUsize::new(0)));
    let read = || vocab.0.swap(0, Ordering::Relaxed);
    let few = preparer(vocab.clone(), 100_000);
    read();
    let text = "1".repeat(3_000_000);
    let failed = |event: Event| match event {
        Event::Failed { kind, message, .. } => (kind, message),
        other => panic!("{other:?}"),
    };
    let request = Generate::new(Prompt::Text(text.clone()), Default::default(), 1);
    let (kind, why) = failed(few.generate(request, Instant::now()).err().unwrap());
    assert!(kind == FailureKind::Context && why.contains("100000 tokens") && why.contains("more than"), "{why}");
    assert!(read() <= 100_000 + 2 * PART_BYTES);
    let (kind, why) = failed(few.text(Command::Tokenize { id: 1, text: text.clone(), specials: true }));
    assert!(kind == FailureKind::Invalid && why.contains("at most 1048576: send it in parts"), "{why}");
    assert!(read() <= PIECES_MAX + 2 * PART_BYTES);
    // What is within the limit is read whole.
    let answer = few.text(Command::Tokenize { id: 1, text: text[..PIECES_MAX].to_owned(), specials: false });
    assert!(matches!(answer, Event::Tokens { ids, .. } if ids.len() == PIECES_MAX));
}

#[test]
fn tools_are_shown_by_the_files_template_for_tools() {
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let of_tools = "Tools: {{ tools|tojson }}{% for m in messages %}{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}{% endfor %}";
    let template = ChatTemplate::load(plain).unwrap().with_tool_use(Some(ChatTemplate::load(of_tools).unwrap()));
    let base = preparer(Arc::new(Letters), 100);
    let preparer = Preparer { ways: ToolWays::of(&Letters, Some(&template)), template: Some(template), ..base };
    let shown = |tools: &serde_json::Value| {
        let messages = vec![Message::new(Role::User, "hello")];
        let tools = tools.as_array().unwrap().clone();
        let chat = ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() };
        preparer.render(&chat).unwrap_or_else(|refused| panic!("{}", refused.message)).text
    };
    let tool =
        json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}});
    assert_eq!(shown(&json!([])), "hello");
    assert_eq!(
        shown(&json!([tool])),
        format!(
            "Tools: {}hello",
            r#"[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]"#
        )
    );
}

#[test]
fn no_text_is_taken_for_longer_than_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nano/nano.gguf");
    let vocab = Arc::new(Bpe::from_gguf(&Gguf::open(std::path::Path::new(path)).unwrap()).unwrap());
    let preparer = preparer(vocab.clone(), 1);
    let line = "The <|im_start|> of 17 + 25 is été 漢字 and\n\n    so on. ";
    for text in [line.repeat(1_500), "x".repeat(70_000), " ".repeat(70_000), "<|im_end|>".repeat(7_000)] {
        for specials in [false, true] {
            let mut ids = Vec::new();
            vocab.encode(&text, specials, &mut ids).unwrap();
            let more = |most| {
                preparer.has_more(most, &[&text], specials).unwrap_or_else(|refused| panic!("{}", refused.message))
            };
            assert!(!more(ids.len()) && more(ids.len() / 2), "{} tokens of {} bytes", ids.len(), text.len());
        }
    }
}

#[test]
fn a_past_thought_does_not_count_as_shown() {
    let thought = format!("<think>{}</think>\n\n4", "1".repeat(5_000));
    let messages = vec![Message::new(Role::User, "2 + 2?"), Message::new(Role::Assistant, thought)];
    assert_eq!(shown(&ChatInput { messages, ..ChatInput::default() }, None), ["2 + 2?", "4"]);
}

#[test]
fn what_opens_a_call_is_closed_to_a_chat_without_tools_that_does_not_speak_of_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../nano/nano.gguf");
    let vocab = Arc::new(Bpe::from_gguf(&Gguf::open(std::path::Path::new(path)).unwrap()).unwrap());
    let opener = vocab.special("<tool_call>").unwrap();
    let preparer = preparer(vocab, 1_000);
    let closed = |prompt: Prompt, bias: &[(u32, f32)]| {
        let sampling = Sampling { logit_bias: bias.to_vec(), ..Sampling::default() };
        preparer.unoffered(&Generate::new(prompt, sampling, 9))
    };
    let chat = |text: &str| ChatInput { messages: vec![Message::new(Role::User, text)], ..ChatInput::default() };
    let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
    let arguments = json!({"xml_tools": []}).as_object().unwrap().clone();
    assert_eq!(closed(Prompt::Chat(chat("Hello")), &[(9, 1.0)]), [opener]);
    assert_eq!(closed(Prompt::Chat(chat("What is a tool call?")), &[]), [opener]);
    let mut thought = chat("And?");
    thought.messages[0].reasoning_content = Some("I call: <tool_call>".to_owned());
    for open in [
        Prompt::Chat(ChatInput { tools, ..chat("Hello") }),
        Prompt::Chat(ChatInput { arguments, ..chat("Hello") }),
        Prompt::Chat(ChatInput { reply_begins: "<tool_call>".to_owned(), ..chat("Hello") }),
        Prompt::Chat(chat("What does <tool_call> mean?")),
        Prompt::Chat(thought),
        Prompt::Text("Hello".to_owned()),
        Prompt::Ids(vec![1]),
    ] {
        assert!(closed(open.clone(), &[]).is_empty(), "{open:?}");
    }
    assert!(closed(Prompt::Chat(chat("Hello")), &[(opener, 0.0)]).is_empty());
}
