//! The chat templates of a folder. The calls of a history that they render are read back in any cut. Each part of
//! conversations of many shapes stands in its prompt. By hand:
//! `CHIMERE_TEMPLATES=FOLDER cargo test --test golden -- --ignored templates_of_a_folder --nocapture`.
//!
//! Public templates keep the terms of their models, so they are not here. What 55 of them made of calls in our own words is,
//! with their hashes: `data/templates.json`. Those texts are read back in every run. The command compares the table with
//! what it finds, and writes it anew to `CHIMERE_TEMPLATES_TABLE`.

use std::collections::HashSet;
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
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

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

/// What became of the calls in one template's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    name: String,
    sha256: String,
    /// How its calls are read; absent: in no way that is known.
    format: Option<String>,
    /// Histories of one call and of two that it shows, and those that are read back equal in any cut.
    rendered: u32,
    read_back: u32,
    /// The calls of each history as it shows them, and how many of them it shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shown: Vec<(usize, String)>,
    /// Why it shows none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    because: String,
}

fn table() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/templates.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// What the templates wrote, read by the reader of today.
#[test]
fn calls_that_public_templates_wrote_are_read_back() {
    let (table, mut seen) = (table(), HashSet::new());
    assert_eq!(table.len(), 55);
    for row in &table {
        let many = row.shown.len() as u32;
        assert_eq!((row.read_back, many), (row.rendered, row.rendered), "{row:?}");
        assert!(many > 0 || !row.because.is_empty(), "{row:?}");
        let format = row.format.as_deref().map(|name| Format::named(name).unwrap_or_else(|| panic!("{row:?}")));
        for (calls, text) in &row.shown {
            let format = format.unwrap_or_else(|| panic!("{row:?}"));
            if seen.insert((format.name, text)) {
                assert_eq!(read_in_any_cut(format, text), expected(*calls), "{}: {text}", row.name);
            }
        }
    }
    let formats: HashSet<&str> = seen.iter().map(|(format, _)| *format).collect();
    assert!(seen.len() >= 40 && formats.len() >= 20, "{} texts of {formats:?}", seen.len());
}

#[test]
#[ignore = "long tier: needs a folder of templates"]
fn calls_that_the_templates_of_a_folder_render_are_read_back() {
    let (mut wrong, mut rows) = (Vec::new(), Vec::new());
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        match told(&name, &source) {
            Ok(row) => {
                println!("{name}: {:?}, {} of {} {}", row.format, row.read_back, row.rendered, row.because);
                rows.push(row);
            }
            Err(why) => {
                println!("{name}: WRONG: {why}");
                wrong.push(name);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    if let Ok(file) = std::env::var("CHIMERE_TEMPLATES_TABLE") {
        let lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        return std::fs::write(file, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    // Of another folder the table says nothing.
    let changed = |row: &&Row| rows.iter().any(|own| own.sha256 == row.sha256 && own.name == row.name && own != *row);
    let (table, known) = (table(), |row: &&Row| rows.iter().any(|own| own.sha256 == row.sha256));
    let (changed, lacking): (Vec<&Row>, Vec<&Row>) =
        (table.iter().filter(changed).collect(), table.iter().filter(|row| !known(row)).collect());
    assert!(changed.is_empty(), "the table says otherwise: {changed:?}");
    assert!(lacking.is_empty() || lacking.len() == table.len(), "the folder lacks {lacking:?}");
}

/// What becomes of the calls in one template's history; an error where one is shown and not read back.
fn told(name: &str, source: &str) -> Result<Row, String> {
    let template = ChatTemplate::load(source).map_err(|e| e.to_string())?;
    let format = Format::of(source, &|_| false);
    let sha256 = Sha256::digest(source.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut row = Row {
        name: name.to_owned(),
        sha256,
        format: format.map(|format| format.name.to_owned()),
        rendered: 0,
        read_back: 0,
        shown: Vec::new(),
        because: String::new(),
    };
    let user = json!({"role": "user", "content": "QQQ"});
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
                row.because = format!("it refuses {many}: {error}");
                continue;
            }
        };
        if !text.contains("find_it") {
            row.because = "its history shows no calls".to_owned();
            return Ok(row);
        }
        row.rendered += 1;
        let format = format.ok_or_else(|| format!("no family for {text:?}"))?;
        let found = read_in_any_cut(format, &text);
        // Some show one call of several.
        let calls = if many == 2 && !text.contains("z < y") && found == expected(1) { 1 } else { many };
        if found != expected(calls) {
            return Err(format!("as {}: {found:?} from {text:?}", format.name));
        }
        row.shown.push((calls, text));
        row.read_back += 1;
    }
    Ok(row)
}
