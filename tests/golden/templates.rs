//! The chat templates of a folder. The calls of a history that they render are read back in any cut. Each part of
//! conversations of many shapes stands in its prompt. By hand:
//! `CHIMERE_TEMPLATES=FOLDER cargo test --test golden -- --ignored templates_of_a_folder --nocapture`.

use std::path::{Path, PathBuf};

use chimere::engine::prompt::{PromptError, render};
use chimere::engine::protocol::{Channel, ChatInput};
use chimere::engine::template::{ChatTemplate, TemplateError};
use chimere::engine::tokenizer::Bpe;
use chimere::engine::tool_prompt::ToolWays;
use chimere::engine::vocab::Vocab;
use chimere::gguf::Gguf;
use chimere::toolcall::{Format, Piece, ToolCallParser, collect};
use chimere::turn::{Message, Role, ToolCall};
use serde_json::{Value, json};

#[path = "../../core/src/toolcall/histories.rs"]
mod histories;
#[path = "../../core/src/engine/prompt/shapes.rs"]
mod shapes;

use histories::{calls, expected, read_in_any_cut, tools};

fn files() -> Vec<PathBuf> {
    let folder = std::env::var("CHIMERE_TEMPLATES").expect("CHIMERE_TEMPLATES names a folder of templates");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    assert!(!files.is_empty(), "there is no template in that folder");
    files
}

#[test]
#[ignore = "long tier: needs a folder of templates"]
fn shapes_by_the_templates_of_a_folder_are_shown_whole() {
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano.gguf");
    let vocab = Bpe::from_gguf(&Gguf::open(&nano).unwrap()).unwrap();
    let mut wrong = 0;
    for path in files() {
        let source = std::fs::read_to_string(&path).unwrap();
        println!("{}", path.file_stem().unwrap().to_string_lossy());
        if let Err(error) = shapes::text_of(&vocab, &source, "u:one a:two u:three") {
            println!("    takes no past reply: {error}");
            continue;
        }
        for fault in shapes::faults(&vocab, &source) {
            println!("    WRONG: {fault}");
            wrong += 1;
        }
    }
    assert_eq!(wrong, 0);
}

#[test]
#[ignore = "long tier: needs a folder of templates"]
fn calls_that_the_templates_of_a_folder_render_are_read_back() {
    let mut wrong = Vec::new();
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        match told(&source) {
            Ok(said) => println!("{name}: {said}"),
            Err(why) => {
                println!("{name}: WRONG: {why}");
                wrong.push(name);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What becomes of the calls in one template's history.
fn told(source: &str) -> Result<String, String> {
    let template = ChatTemplate::load(source).map_err(|e| e.to_string())?;
    let format = Format::of(source, &|_| false);
    let user = json!({"role": "user", "content": "QQQ"});
    let (mut read_back, mut refused) = (0, String::new());
    for many in 1..=2 {
        let render = |as_text: bool| {
            let reply = json!({"role": "assistant", "content": "", "tool_calls": calls(many, as_text)});
            let context = |messages: Value, prompt: bool| {
                json!({"messages": messages, "tools": tools(),
                "add_generation_prompt": prompt, "bos_token": "", "eos_token": "<|eos|>"})
            };
            let opening = template.render(context(json!([user]), true), "2026-01-02")?;
            let whole = template.render(context(json!([user, reply]), false), "2026-01-02")?;
            let same = whole.bytes().zip(opening.bytes()).take_while(|(a, b)| a == b).count();
            let same = whole.floor_char_boundary(same);
            // The opening may begin with the same letters of another mark: a mark is not cut.
            let mark = whole[..same].rfind('<').filter(|at| !whole[*at..same].contains('>'));
            Ok::<String, TemplateError>(whole[mark.unwrap_or(same)..].to_owned())
        };
        let text = match render(false).or_else(|_| render(true)) {
            Ok(text) => text,
            Err(error) => {
                refused = error.to_string();
                continue;
            }
        };
        if !text.contains("find_it") {
            return Ok(format!("its history shows no calls; {}", format.map_or("no family", |f| f.name)));
        }
        let format = format.ok_or_else(|| format!("no family for {text:?}"))?;
        let found = read_in_any_cut(format, &text);
        // Some show one call of several.
        if found != expected(many) && !(many == 2 && !text.contains("z < y") && found == expected(1)) {
            return Err(format!("as {}: {found:?} from {text:?}", format.name));
        }
        read_back += 1;
    }
    match (read_back, format) {
        (0, _) => Ok(format!("it renders no calls: {refused}")),
        (_, format) => Ok(format!("{}, {read_back} histories", format.map_or("", |f| f.name))),
    }
}
