//! Pairs of a prompt and the reply to learn, as token ids. Read from JSON lines: either ids as the turn log has them,
//! or messages that the model's own chat template renders. A line that cannot be used is counted and says why.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::prompt::{PairIds, render_pair};
use crate::engine::protocol::ChatInput;
use crate::engine::template::ChatTemplate;
use crate::engine::vocab::Vocab;
use crate::turn::{Message, Role, Thinking};

/// Lines of one file.
pub const PAIRS_MAX: usize = 100_000;
/// Bytes of one line.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Tokens of one pair.
pub const TOKENS_MAX: usize = 4_096;

/// One pair, ready to be fed.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Prompt and reply.
    pub ids: Vec<u32>,
    /// Where the reply begins: only it is learned.
    pub scored_from: usize,
    pub weight: f32,
}

/// One line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// The conversation, ending with the user or a tool.
    #[serde(default)]
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
    /// Whether the prompt opens a thought or closes an empty one; default: what the template does by itself.
    #[serde(default)]
    thinking: Thinking,
    /// The assistant's message that answers it.
    #[serde(default)]
    reply: Option<Message>,
    /// Instead of messages: ids of the prompt and of the reply, end of reply included.
    #[serde(default)]
    prompt_ids: Vec<u32>,
    #[serde(default)]
    reply_ids: Vec<u32>,
    #[serde(default = "one")]
    weight: f32,
    /// For people and for admission; not read here.
    #[serde(default, rename = "id")]
    _id: Option<String>,
    #[serde(default, rename = "origin")]
    _origin: Option<Value>,
}

fn one() -> f32 {
    1.0
}

#[derive(Debug, thiserror::Error)]
pub enum PairsError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path} has more than {PAIRS_MAX} lines")]
    TooMany { path: String },
}

/// What a file held.
#[derive(Debug, Default)]
pub struct Pairs {
    pub list: Vec<Pair>,
    /// Line number and why it was left out.
    pub refused: Vec<(usize, String)>,
}

/// Reads the pairs of a file.
pub fn read(path: &Path, vocab: &dyn Vocab, template: Option<&ChatTemplate>) -> Result<Pairs, PairsError> {
    let name = path.display().to_string();
    let failed = |source| PairsError::Read { path: name.clone(), source };
    let mut from = BufReader::new(File::open(path).map_err(failed)?);
    let mut pairs = Pairs::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let taken = (&mut from).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).map_err(failed)?;
        match taken {
            0 => break,
            _ if number > PAIRS_MAX => return Err(PairsError::TooMany { path: name }),
            n if n > LINE_BYTES_MAX => {
                pairs.refused.push((number, format!("the line is over {LINE_BYTES_MAX} bytes: reading stopped here")));
                break;
            }
            _ if line.iter().all(u8::is_ascii_whitespace) => continue,
            _ => {}
        }
        match parse(&line, vocab, template) {
            Ok(pair) => pairs.list.push(pair),
            Err(reason) => pairs.refused.push((number, reason)),
        }
    }
    Ok(pairs)
}

fn parse(line: &[u8], vocab: &dyn Vocab, template: Option<&ChatTemplate>) -> Result<Pair, String> {
    let line: Line = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    if !(line.weight > 0.0 && line.weight <= 100.0) {
        return Err(format!("weight is {}, but it must be above 0 and at most 100", line.weight));
    }
    let (mut ids, reply) = match (&line.reply, line.reply_ids.is_empty()) {
        (Some(reply), true) => rendered(&line, reply, vocab, template)?,
        (None, false) => (line.prompt_ids, line.reply_ids),
        _ => return Err("a line has either messages and a reply, or prompt_ids and reply_ids".into()),
    };
    let scored_from = ids.len();
    ids.extend(reply);
    if scored_from == 0 || ids.len() == scored_from {
        return Err("prompt and reply must not be empty".into());
    }
    if ids.len() > TOKENS_MAX {
        return Err(format!("the pair has {} tokens, over the limit of {TOKENS_MAX}", ids.len()));
    }
    match ids.iter().find(|id| **id as usize >= vocab.len()) {
        Some(id) => Err(format!("token {id} is outside the vocabulary of {}", vocab.len())),
        None => Ok(Pair { ids, scored_from, weight: line.weight }),
    }
}

/// Ids of the prompt as the engine would make it, and of the reply as the template writes it.
fn rendered(
    line: &Line,
    reply: &Message,
    vocab: &dyn Vocab,
    template: Option<&ChatTemplate>,
) -> Result<PairIds, String> {
    let template = template.ok_or("the model has no chat template: give ids instead of messages")?;
    if reply.role != Role::Assistant {
        return Err("the reply must be a message of the assistant".into());
    }
    let chat = ChatInput {
        messages: line.messages.clone(),
        tools: line.tools.clone(),
        thinking: line.thinking,
        date: String::new(),
        add_generation_prompt: true,
    };
    let pair = render_pair(vocab, template, &chat, reply).map_err(|e| e.to_string())?;
    let (prompt, reply) = pair.ok_or("the template writes the reply otherwise than the prompt announces it")?;
    // What follows the end of the reply (a line break) is never generated.
    let end = reply.iter().position(|id| vocab.ends().contains(id)).map_or(reply.len(), |at| at + 1);
    Ok((prompt, reply[..end].to_vec()))
}
