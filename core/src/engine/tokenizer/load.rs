//! Reads a byte-level BPE vocabulary out of a model file and refuses a wrong or dangerous one. A missing byte would
//! lose text; a merge that names no token would stop the crate that merges.

use std::collections::{HashMap, HashSet};

use crate::gguf::{Gguf, Strings};

use super::super::vocab::{TOOL_TEMPLATE, TokenKind, VocabError};
use super::alphabet::Alphabet;

/// Names that end a reply in the supported families, whatever the file's ids say.
const ENDS: [&str; 7] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>"];
/// Keys of ids that end a reply.
const END_KEYS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];

/// The vocabulary as the file has it, checked.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) texts: Vec<String>,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) merges: Vec<(String, String)>,
    pub(super) pre: String,
    pub(super) ends: Vec<u32>,
    /// Put before prompts.
    pub(super) bos: Option<u32>,
    /// The file's beginning of text, put there or not.
    pub(super) begin: Option<u32>,
    pub(super) template: Option<String>,
    pub(super) tool_template: Option<String>,
}

fn model(message: impl ToString) -> VocabError {
    VocabError::Model(message.to_string())
}

impl Loaded {
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Loaded, VocabError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let text = |name: &str| gguf.optional::<&str>(name).map_err(model);
        let family = text(&key("model"))?.unwrap_or_default();
        if family != "gpt2" {
            return Err(model(format!("\"{family}\" is not byte-level BPE (gpt2): use the library backend")));
        }
        let tokens: &Strings = gguf.required(&key("tokens")).map_err(model)?;
        let texts: Vec<String> = tokens.iter().map(str::to_owned).collect();
        let types: &[i32] = gguf.optional(&key("token_type")).map_err(model)?.unwrap_or_default();
        let kinds: Vec<TokenKind> = texts.iter().enumerate().map(|(i, t)| kind(t, types.get(i).copied())).collect();
        let merges: &Strings = gguf.required(&key("merges")).map_err(model)?;
        let id = |name: &str| gguf.optional::<u32>(&key(name)).map_err(model);
        let mut ends = Vec::new();
        for name in END_KEYS {
            ends.extend(id(name)?);
        }
        let named = |&i: &u32| kinds[i as usize] == TokenKind::Control && ENDS.contains(&texts[i as usize].as_str());
        ends.extend((0..texts.len() as u32).filter(named));
        // The file's own end of text stays first.
        let mut seen = HashSet::new();
        ends.retain(|id| seen.insert(*id));
        let pre = text(&key("pre"))?.unwrap_or_default().to_owned();
        // Absent, the library decides by family: Llama 3 wants one, the others do not.
        let wants_bos = gguf.optional::<bool>(&key("add_bos_token")).map_err(model)?;
        let begin = id("bos_token_id")?;
        let bos = begin.filter(|_| wants_bos.unwrap_or(pre.starts_with("llama")));
        let loaded = Loaded {
            merges: merges.iter().map(pair).collect::<Result<_, _>>()?,
            template: text("tokenizer.chat_template")?.map(str::to_owned),
            // Without it, the other is taken.
            tool_template: text(TOOL_TEMPLATE).ok().flatten().map(str::to_owned),
            texts,
            kinds,
            pre,
            ends,
            bos,
            begin: begin.filter(|id| (*id as usize) < tokens.len()),
        };
        loaded.check()?;
        Ok(loaded)
    }

    /// Text → id of the tokens that text can be made of: never a special one.
    pub(super) fn plain(&self) -> HashMap<&str, u32> {
        let all = self.texts.iter().zip(&self.kinds).zip(0u32..);
        all.filter(|((_, kind), _)| **kind == TokenKind::Normal).map(|((text, _), id)| (text.as_str(), id)).collect()
    }

    fn check(&self) -> Result<(), VocabError> {
        let plain = self.plain();
        let alphabet = Alphabet::new();
        for byte in 0..=255u8 {
            let mut text = String::new();
            alphabet.write(&[byte], &mut text);
            if !plain.contains_key(text.as_str()) {
                return Err(model(format!("byte {byte} has no token: text would be lost; use the library backend")));
            }
        }
        let mut whole = String::new();
        for (i, (a, b)) in self.merges.iter().enumerate() {
            whole.clear();
            whole.push_str(a);
            whole.push_str(b);
            if let Some(missing) = [a, b, &whole].into_iter().find(|t| !plain.contains_key(t.as_str())) {
                return Err(model(format!("merge {i} names \"{}\", which is no token", missing.escape_debug())));
            }
        }
        if let Some(id) = self.ends.iter().chain(&self.bos).find(|id| **id as usize >= self.texts.len()) {
            return Err(model(format!("special token {id} is outside the vocabulary of {}", self.texts.len())));
        }
        Ok(())
    }
}

/// The two parts of a merge. A part may start with a space of its own, so the cut is behind the first byte.
fn pair(merge: &str) -> Result<(String, String), VocabError> {
    let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
    match cut {
        Some((at, _)) if at + 1 < merge.len() => Ok((merge[..at].to_owned(), merge[at + 1..].to_owned())),
        _ => Err(model(format!("merge \"{}\" is not two parts joined by a space", merge.escape_debug()))),
    }
}

/// Role by the file's type; files that forget to mark the control tokens are common.
fn kind(text: &str, found: Option<i32>) -> TokenKind {
    match found {
        Some(2 | 3) => TokenKind::Control,
        Some(4) => TokenKind::UserDefined,
        Some(5) => TokenKind::Unused,
        _ if text.starts_with("<|") && text.ends_with("|>") && text.len() > 4 => TokenKind::Control,
        _ => TokenKind::Normal,
    }
}
