//! Pairs of a prompt and the reply to learn, as token ids. Read from JSON lines: either ids as the turn log has them,
//! or messages that the model's own chat template renders. A line that cannot be used is counted and says why.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::recipe::Objective;
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
    /// Prompt and a reply that is worse, where the objective asks for one and the line has it.
    pub rejected: Option<Vec<u32>>,
}

impl Pair {
    /// Tokens that a step feeds for it.
    pub fn tokens(&self) -> usize {
        self.ids.len() + self.rejected.as_ref().map_or(0, Vec::len)
    }
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
    /// A worse answer to the same question; read where the objective compares.
    #[serde(default)]
    rejected: Option<Message>,
    #[serde(default)]
    rejected_ids: Vec<u32>,
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

/// Reads the pairs of a file, with the worse replies where `objective` compares.
pub fn read(
    path: &Path,
    vocab: &dyn Vocab,
    template: Option<&ChatTemplate>,
    objective: Objective,
) -> Result<Pairs, PairsError> {
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
        match parse(&line, vocab, template, objective) {
            Ok(pair) => pairs.list.push(pair),
            Err(reason) => pairs.refused.push((number, reason)),
        }
    }
    Ok(pairs)
}

fn parse(
    line: &[u8],
    vocab: &dyn Vocab,
    template: Option<&ChatTemplate>,
    objective: Objective,
) -> Result<Pair, String> {
    let line: Line = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    if !(line.weight > 0.0 && line.weight <= 100.0) {
        return Err(format!("weight is {}, but it must be above 0 and at most 100", line.weight));
    }
    let (prompt, reply) = match (&line.reply, line.reply_ids.is_empty()) {
        (Some(reply), true) => rendered(&line, reply, vocab, template)?,
        (None, false) => (line.prompt_ids.clone(), line.reply_ids.clone()),
        _ => return Err("a line has either messages and a reply, or prompt_ids and reply_ids".into()),
    };
    let worse = match (&line.rejected, line.rejected_ids.is_empty()) {
        _ if objective == Objective::Likelihood => None,
        (None, true) => None,
        (Some(rejected), true) if line.reply.is_some() => Some(rendered(&line, rejected, vocab, template)?),
        (None, false) if line.reply.is_none() => Some((line.prompt_ids.clone(), line.rejected_ids.clone())),
        _ => return Err("the rejected reply must come as the reply does: as a message, or as ids".into()),
    };
    let rejected = match worse {
        Some((other, _)) if other != prompt => return Err("the rejected reply answers another prompt".into()),
        Some((_, rejected)) if rejected == reply => return Err("the rejected reply is the reply itself".into()),
        Some((_, rejected)) => Some(whole(&prompt, rejected, vocab)?),
        None => None,
    };
    let scored_from = prompt.len();
    Ok(Pair { ids: whole(&prompt, reply, vocab)?, scored_from, weight: line.weight, rejected })
}

/// Prompt and reply as one text that can be learned from.
fn whole(prompt: &[u32], reply: Vec<u32>, vocab: &dyn Vocab) -> Result<Vec<u32>, String> {
    if prompt.is_empty() || reply.is_empty() {
        return Err("prompt and reply must not be empty".into());
    }
    let ids = [prompt, &reply].concat();
    if ids.len() > TOKENS_MAX {
        return Err(format!("the pair has {} tokens, over the limit of {TOKENS_MAX}", ids.len()));
    }
    match ids.iter().find(|id| **id as usize >= vocab.len()) {
        Some(id) => Err(format!("token {id} is outside the vocabulary of {}", vocab.len())),
        None => Ok(ids),
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
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let pair = render_pair(vocab, template, &chat, reply).map_err(|e| e.to_string())?;
    let (prompt, reply) = pair.ok_or("the template writes the reply otherwise than the prompt announces it")?;
    // What follows the end of the reply (a line break) is never generated.
    let end = reply.iter().position(|id| vocab.ends().contains(id)).map_or(reply.len(), |at| at + 1);
    Ok((prompt, reply[..end].to_vec()))
}
