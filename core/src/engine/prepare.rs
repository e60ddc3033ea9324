//! Turns a request into a job that the engine loop can run. It renders the chat template, tokenises, checks the
//! sampling fields and sets up the control policies. Runs on its own thread; nothing here touches the model.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use super::adapter::{self, BaseModel, Candidate, Recipe, Sides};
use super::control::{ReplyControl, ReplyLimits};
use super::learns;
use super::prompt::{self, PromptError};
use super::protocol::{
    CandidateStart, ChatInput, Command, EmbedInput, Event, FailureKind, Generate, Hosted, OWNER_BYTES_MAX, Prompt,
    PromptPart, REVISION_BYTES_MAX, RequestId,
};
use super::revisions::Arrived;
use super::sampler::Sampler;
use super::slot::Prepared;
use super::tables::Tables;
use super::template::{ChatTemplate, TemplateError};
use super::thought::ThoughtMarks;
use super::tool_prompt::ToolWays;
use super::vocab::Vocab;
use crate::turn::ThoughtPolicy;

/// Tokens that one `Tokenize` lists: more would not fit a frame.
const PIECES_MAX: usize = 1 << 20;
/// A text that may be too long is counted in parts of so many bytes, up to the limit.
const PART_BYTES: usize = 16 << 10;
/// Tokens of a part that the whole text may not have, for the two words that were cut.
const CUT_TOKENS: usize = 32;

pub struct Preparer {
    vocab: Arc<dyn Vocab>,
    template: Option<ChatTemplate>,
    ways: ToolWays,
    /// Tokens that open a call, with their marks.
    openers: Vec<(u32, &'static str)>,
    /// Logits a row.
    width: usize,
    context_tokens: usize,
    /// Of the longest token.
    token_bytes_max: usize,
    embedding_only: bool,
    base: BaseModel,
    /// Why it takes no adapter, if it takes none.
    frozen: Option<String>,
    tables: RwLock<Tables>,
}

/// Why a request cannot become a job.
struct Refusal {
    kind: FailureKind,
    message: String,
}

impl<E: std::error::Error> From<E> for Refusal {
    /// Whatever the text side refuses is a mistake in the request.
    fn from(error: E) -> Refusal {
        Refusal::invalid(error.to_string())
    }
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Refusal {
        Refusal { kind: FailureKind::Invalid, message: message.into() }
    }
}

/// Ids of a prompt, and whether it ends inside a thought.
struct Tokenised {
    ids: Vec<u32>,
    thinking_open: bool,
}

impl Preparer {
    pub fn new(vocab: Arc<dyn Vocab>, template: Option<ChatTemplate>, hosted: &Hosted, base: BaseModel) -> Preparer {
        let ways = ToolWays::of(vocab.as_ref(), template.as_ref());
        Preparer {
            tables: RwLock::new(Tables::new(Arc::clone(&vocab))),
            frozen: hosted.frozen.clone(),
            openers: ways.format.openers(vocab.as_ref()),
            ways,
            token_bytes_max: (0..vocab.len() as u32).map(|id| vocab.bytes(id).len()).max().unwrap_or(1).max(1),
            vocab,
            template,
            width: hosted.model.vocab,
            context_tokens: hosted.model.context_tokens,
            embedding_only: hosted.model.embedding_only,
            base,
        }
    }

    /// The job, or the event that tells why there is none.
    pub fn generate(&self, request: Generate, received: Instant) -> Result<Prepared, Event> {
        let id = request.id;
        self.prepare(request, received).map_err(|refusal| {
            let Refusal { kind, message } = refusal;
            Event::Failed { id, kind, message }
        })
    }

    fn prepare(&self, request: Generate, received: Instant) -> Result<Prepared, Refusal> {
        if self.embedding_only {
            return Err(Refusal::invalid("this model gives embeddings and cannot generate text"));
        }
        if request.prefix_owner.iter().chain([&request.principal]).any(|name| name.len() > OWNER_BYTES_MAX) {
            return Err(Refusal::invalid(format!("a name of who asks has at most {OWNER_BYTES_MAX} bytes")));
        }
        let tools = match &request.prompt {
            Prompt::Chat(chat) => chat.tools.clone(),
            _ => Vec::new(),
        };
        let unoffered = self.unoffered(&request);
        let Tokenised { ids, thinking_open } = self.tokenise(request.prompt)?;
        let room = self.room(&ids)?;
        let sampler = Sampler::new(&request.sampling, self.width, &ids)?.without(unoffered);
        let limits = ReplyLimits {
            max_tokens: request.max_tokens.min(room),
            stop: &request.stop,
            thinking: request.thinking,
            ignore_end: request.ignore_end,
        };
        if let Some(Err(message)) = request.thought.map(ThoughtPolicy::check) {
            return Err(Refusal::invalid(format!("thought: {message}")));
        }
        let control = ReplyControl::new(self.vocab.as_ref(), limits, thinking_open)?
            .behind(self.vocab.as_ref(), &ids)
            .calling(self.vocab.as_ref(), &tools, self.ways.format, self.ways.known)
            .watching(self.vocab.as_ref(), request.thought)?;
        let engram = request.engram.map(|choice| self.tables().choose(&choice, &ids)).transpose()?;
        Ok(Prepared {
            id: request.id,
            ids,
            seed: sampler.seed(),
            sampler,
            control,
            engram,
            constraint: None,
            received,
            adapter: request.adapter,
            background: request.background,
            principal: request.principal,
            // What a snapshot holds is not read again, and so has no logits.
            prefix_owner: request.prefix_owner.filter(|_| !request.prompt_logprobs),
            prompt_logprobs: request.prompt_logprobs,
        })
    }

    /// Tokens that open a call, where a chat offers no tool. Who writes of such a mark may be answered with it, and who names
    /// the token in a bias decides himself.
    fn unoffered(&self, request: &Generate) -> Vec<u32> {
        let Prompt::Chat(chat) = &request.prompt else { return Vec::new() };
        // Some templates take tools under a name of their own.
        if !chat.tools.is_empty() || chat.arguments.keys().any(|name| name.contains("tool")) {
            return Vec::new();
        }
        let texts = || chat.messages.iter().flat_map(|m| [Some(&m.content), m.reasoning_content.as_ref()]).flatten();
        let said = |mark: &str| texts().chain([&chat.reply_begins]).any(|text| text.contains(mark));
        let named = |id: u32| request.sampling.logit_bias.iter().any(|(own, _)| *own == id);
        self.openers.iter().filter(|(id, mark)| !named(*id) && !said(mark)).map(|(id, _)| *id).collect()
    }

    /// The ids of a text for an embedding model, the file's marks around them; none for a text without a token.
    pub fn embed(&self, id: u64, input: &EmbedInput, cut: bool) -> Result<Vec<u32>, Event> {
        self.marked(input, cut).map_err(|Refusal { kind, message }| Event::Failed { id, kind, message })
    }

    fn marked(&self, input: &EmbedInput, cut: bool) -> Result<Vec<u32>, Refusal> {
        if !self.embedding_only {
            return Err(Refusal::invalid("this model writes text and gives no embeddings"));
        }
        let (mut ids, behind) = self.vocab.marks()?;
        let before = ids.len();
        match input {
            EmbedInput::Text(text) => self.vocab.encode(text, false, &mut ids)?,
            EmbedInput::Ids(own) => {
                if let Some(bad) = own.iter().find(|id| **id as usize >= self.vocab.len()) {
                    let most = self.vocab.len();
                    return Err(Refusal::invalid(format!("token {bad} is outside the vocabulary of {most}")));
                }
                ids.extend(own);
            }
        }
        if ids.len() == before {
            return Ok(Vec::new());
        }
        let (found, capacity) = (ids.len() + behind.len(), self.context_tokens);
        if found > capacity && !cut {
            let message = format!("has {found} tokens, and this embedding model reads at most {capacity}: split it");
            return Err(Refusal { kind: FailureKind::Context, message });
        }
        ids.truncate(capacity.saturating_sub(behind.len()));
        ids.extend(behind);
        Ok(ids)
    }

    /// What a candidate starts from.
    pub fn candidate(&self, id: RequestId, start: CandidateStart, sides: Sides) -> Result<Candidate, Event> {
        let invalid = |message: String| Event::Failed { id, kind: FailureKind::Invalid, message };
        let adapter = match start {
            CandidateStart::Fresh { rank, seed, targets, last_layers } => {
                Recipe { rank, scale: 0.0, seed, targets, last_layers }.make(&self.base)
            }
            CandidateStart::File { path, sha256 } => match adapter::read(&path, &self.base) {
                Ok((_, _, found)) if found != sha256 => {
                    return Err(invalid(format!(
                        "the adapter's file has the SHA-256 {found}, but {sha256} was announced"
                    )));
                }
                read => read.map(|(adapter, ..)| adapter),
            },
        };
        adapter.map(|adapter| Candidate { adapter, sides }).map_err(|e| invalid(e.to_string()))
    }

    /// Reads and checks an adapter, away from the step loop; or the event that tells why it cannot be used.
    pub fn adapter(&self, id: RequestId, revision: String, path: &Path, sha256: &str) -> Result<Arrived, Event> {
        let invalid = |message: String| Event::Failed { id, kind: FailureKind::Invalid, message };
        if revision.is_empty() || revision.len() > REVISION_BYTES_MAX {
            return Err(invalid(format!("a revision is named by 1 to {REVISION_BYTES_MAX} bytes")));
        }
        if let Some(why) = &self.frozen {
            return Err(invalid(learns::refused(why)));
        }
        let (adapter, bytes, found) = adapter::read(path, &self.base).map_err(|e| invalid(e.to_string()))?;
        if found != sha256 {
            return Err(invalid(format!("the adapter's file has the SHA-256 {found}, but {sha256} was announced")));
        }
        let facts = Box::new(adapter.facts(bytes, &found));
        Ok(Arrived { id, revision, adapter, facts })
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables_mut(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A prompt that is too long is not read to its end: that would hold up others.
    fn may_fit(&self, input: &Prompt) -> Result<(), Refusal> {
        let most = self.context_tokens;
        let (texts, specials): (Vec<&str>, bool) = match input {
            Prompt::Chat(chat) => (shown(chat, ThoughtMarks::of(self.vocab.as_ref())), false),
            Prompt::Text(text) => (vec![text], false),
            Prompt::Marked(text) => (vec![text], true),
            Prompt::Ids(_) | Prompt::Parts(_) => return Ok(()),
        };
        if self.has_more(most, &texts, specials)? { Err(self.too_long(&format!("more than {most}"))) } else { Ok(()) }
    }

    /// Whether texts certainly have more tokens than `most`: as many are read as tell.
    fn has_more(&self, most: usize, texts: &[&str], specials: bool) -> Result<bool, Refusal> {
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        // A token has a byte at least.
        if bytes <= most {
            return Ok(false);
        }
        if bytes.div_ceil(self.token_bytes_max) > most {
            return Ok(true);
        }
        let (mut sure, mut ids) = (0, Vec::new());
        for text in texts {
            let mut rest = *text;
            while !rest.is_empty() {
                let (part, left) = rest.split_at(rest.floor_char_boundary(PART_BYTES));
                ids.clear();
                self.vocab.encode(part, specials, &mut ids)?;
                sure += ids.len().saturating_sub(CUT_TOKENS);
                if sure > most {
                    return Ok(true);
                }
                rest = left;
            }
        }
        Ok(false)
    }

    fn tokenise(&self, input: Prompt) -> Result<Tokenised, Refusal> {
        self.may_fit(&input)?;
        let (ids, thinking_open) = match input {
            Prompt::Chat(chat) => {
                let rendered = self.render(&chat)?;
                (rendered.ids, rendered.thinking_open)
            }
            Prompt::Text(text) => {
                let mut ids: Vec<u32> = self.vocab.bos().into_iter().collect();
                self.vocab.encode(&text, false, &mut ids)?;
                (ids, false)
            }
            Prompt::Marked(text) => (self.marked_text(&text)?, false),
            Prompt::Ids(ids) => (ids, false),
            Prompt::Parts(parts) => (self.join(&parts)?, false),
        };
        match ids.iter().find(|id| **id as usize >= self.width) {
            Some(id) => Err(Refusal::invalid(format!("token {id} is outside the vocabulary of {}", self.width))),
            None if ids.is_empty() => Err(Refusal::invalid("the prompt is empty: give at least one token")),
            None => Ok(Tokenised { ids, thinking_open }),
        }
    }

    /// A text that begins with the model's own beginning is not begun twice.
    fn marked_text(&self, text: &str) -> Result<Vec<u32>, Refusal> {
        let mut ids = Vec::new();
        self.vocab.encode(text, true, &mut ids)?;
        if let Some(bos) = self.vocab.bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    fn join(&self, parts: &[PromptPart]) -> Result<Vec<u32>, Refusal> {
        let mut ids: Vec<u32> = self.vocab.bos().into_iter().collect();
        for part in parts {
            match part {
                PromptPart::Text(text) => self.vocab.encode(text, false, &mut ids)?,
                PromptPart::Control(name) => {
                    let id = self.vocab.special(name);
                    ids.push(id.ok_or_else(|| Refusal::invalid(format!("this model has no token `{name}`")))?);
                }
            }
        }
        Ok(ids)
    }

    fn render(&self, chat: &ChatInput) -> Result<prompt::Rendered, Refusal> {
        let Some(template) = &self.template else {
            return Err(Refusal::invalid("this model has no chat template: use a plain text prompt"));
        };
        let own = self.ways.prepare(chat);
        prompt::render(self.vocab.as_ref(), template, own.as_ref().unwrap_or(chat)).map_err(|error| {
            let of_messages = matches!(
                error,
                PromptError::Conversation(_)
                    | PromptError::Lost(_)
                    | PromptError::Prefill
                    | PromptError::Template(TemplateError::Limit(_))
            );
            let kind = if of_messages { FailureKind::Messages } else { FailureKind::Invalid };
            Refusal { kind, message: error.to_string() }
        })
    }

    fn too_long(&self, held: &str) -> Refusal {
        let capacity = self.context_tokens;
        let message = format!(
            "this model's maximum context length is {capacity} tokens, but the prompt has {held} tokens: shorten it"
        );
        Refusal { kind: FailureKind::Context, message }
    }

    /// Tokens that can follow the prompt: the last one generated need not be fed.
    fn room(&self, ids: &[u32]) -> Result<u32, Refusal> {
        let (held, capacity) = (ids.len(), self.context_tokens);
        if held > capacity {
            return Err(self.too_long(&held.to_string()));
        }
        Ok(u32::try_from(capacity - held + 1).unwrap_or(u32::MAX))
    }

    /// Answers the commands that are only about text and tables.
    pub fn text(&self, command: Command) -> Event {
        let (id, answer) = match command {
            Command::Tokenize { id, text, specials } => (id, self.pieces(id, &text, specials)),
            Command::Detokenize { id, ids } => (id, self.detokenise(id, &ids)),
            Command::ApplyTemplate { id, chat } => {
                let shown = self
                    .within(&shown(&chat, ThoughtMarks::of(self.vocab.as_ref())), false)
                    .and_then(|()| self.render(&chat));
                (id, shown.map(|prompt::Rendered { text, ids, .. }| Event::Rendered { id, text, ids }))
            }
            Command::LoadTable { id, name, path, digest } => {
                let loaded = self.tables_mut().load(&name, &path, &digest).map_err(Refusal::from);
                (id, loaded.map(|(contexts, entries)| Event::TableLoaded { id, name, contexts, entries }))
            }
            Command::DropTable { id, name } => {
                self.tables_mut().forget(&name);
                (id, Ok(Event::TableDropped { id, name }))
            }
            other => return Event::Refused { command: format!("{other:?}"), state: "Text".to_owned() },
        };
        answer.unwrap_or_else(|Refusal { kind, message }| Event::Failed { id, kind, message })
    }

    /// A text of more tokens than an answer can list is refused, unread from there on.
    fn within(&self, texts: &[&str], specials: bool) -> Result<(), Refusal> {
        if self.has_more(PIECES_MAX, texts, specials)? {
            Err(too_many(&format!("more than {PIECES_MAX}")))
        } else {
            Ok(())
        }
    }

    fn pieces(&self, id: u64, text: &str, specials: bool) -> Result<Event, Refusal> {
        self.within(&[text], specials)?;
        let mut ids = Vec::new();
        self.vocab.encode(text, specials, &mut ids)?;
        if ids.len() > PIECES_MAX {
            return Err(too_many(&ids.len().to_string()));
        }
        let pieces = ids.iter().map(|&id| self.vocab.name(id)).collect();
        Ok(Event::Tokens { id, ids, pieces })
    }

    fn detokenise(&self, id: u64, ids: &[u32]) -> Result<Event, Refusal> {
        if let Some(bad) = ids.iter().find(|id| **id as usize >= self.vocab.len()) {
            return Err(Refusal::invalid(format!("token {bad} is outside the vocabulary of {}", self.vocab.len())));
        }
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.vocab.bytes(id)).collect();
        Ok(Event::Text { id, text: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

/// The texts of a conversation that every template shows: past thoughts are often left out.
fn shown(chat: &ChatInput, marks: Option<ThoughtMarks>) -> Vec<&str> {
    chat.messages.iter().map(|message| prompt::thought_and_content(message, marks).1).collect()
}

fn too_many(found: &str) -> Refusal {
    Refusal::invalid(format!("the text has {found} tokens, and one call takes at most {PIECES_MAX}: send it in parts"))
}

#[cfg(test)]
pub(super) mod tests;
