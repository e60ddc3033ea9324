//! From a conversation to the ids of a prompt, so that nothing a user, a file or a tool wrote can become a control
//! token. A string of the conversation may hold the text of a special token, or an end or a beginning of one. Before
//! the template sees it, it gets a mark inside, a Unicode noncharacter. Afterwards only special tokens without a mark
//! are the template's own, and the marks are taken out.
//!
//! `marks` finds special tokens and marks texts, `context` makes the template's variables. `fit` puts a conversation into
//! a form that the template shows whole. `rounds` has the forms of calls, `seen` tells what is shown.

mod context;
mod fit;
mod marks;
mod rounds;
mod seen;
#[cfg(test)]
mod shape_tests;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::protocol::ChatInput;
use super::template::{ChatTemplate, TemplateError};
use super::thought::ThoughtMarks;
use super::tool_schema::in_usual_order;
use super::vocab::{Vocab, VocabError};
use crate::toolcall::Format;
use crate::turn::{Message, Role, Thinking};
use context::context;
use fit::Unfit;
use marks::{CUT, Specials};

/// Of a template's own words, characters that a client is told.
const WHY_CHARS_MAX: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The template takes the messages in none of the forms that mean the same.
    #[error(
        "this model's chat template cannot show these messages in any form (its reason: {0}): send them without what it \
         does not know"
    )]
    Conversation(String),
    /// It takes them and leaves something out, in every form.
    #[error(
        "this model's chat template leaves out {0}, in whatever form it is given: send it otherwise, or leave it out"
    )]
    Lost(String),
    #[error(
        "this model's chat template does not show the last message as it stands, so that no reply can go on with it"
    )]
    Prefill,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Vocab(#[from] VocabError),
    #[error("the special tokens of the model cannot be searched for: {0}")]
    Specials(String),
}

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    pub text: String,
    pub ids: Vec<u32>,
    /// The prompt ends inside a thought.
    pub thinking_open: bool,
}

/// Renders a conversation by the model's template and tokenises it.
pub fn render(vocab: &dyn Vocab, template: &ChatTemplate, chat: &ChatInput) -> Result<Rendered, PromptError> {
    let specials = Specials::of(vocab)?;
    let mut text = write(vocab, &specials, template, chat)?;
    if chat.continue_final {
        // The last: a template may show a text twice.
        text.truncate(text.rfind(CUT).ok_or(PromptError::Prefill)?);
    }
    let mut prompt = specials.tokenise(vocab, &text)?;
    if chat.thinking == Thinking::Off && prompt.thinking_open && !chat.continue_final {
        // A template that knows no `enable_thinking`: the empty thought is closed here.
        let close = ThoughtMarks::of(vocab).map_or("</think>", |marks| marks.close_text);
        let closed = specials.tokenise(vocab, &format!("\n{close}\n\n"))?;
        prompt.text += &closed.text;
        prompt.ids.extend(closed.ids);
        prompt.thinking_open = false;
    }
    if let Some(bos) = vocab.bos().filter(|bos| prompt.ids.first() != Some(bos)) {
        prompt.ids.insert(0, bos);
    }
    if !chat.reply_begins.is_empty() {
        vocab.encode_further(&chat.reply_begins, &mut prompt.ids)?;
        prompt.text += &chat.reply_begins;
    }
    Ok(prompt)
}

/// The conversation in the template's words, marks included.
fn write(
    vocab: &dyn Vocab,
    specials: &Specials,
    template: &ChatTemplate,
    chat: &ChatInput,
) -> Result<String, PromptError> {
    let template = template.of(chat);
    let marks = ThoughtMarks::of(vocab);
    let messages: Vec<Message> = chat.messages.iter().map(|message| with_its_thought(message, marks)).collect();
    let tools: Vec<Value> = chat.tools.iter().map(in_usual_order).collect();
    let render = |messages: &[Message], tools: &[Value]| {
        template.render(context(vocab, specials, template, chat, messages, tools), &chat.date)
    };
    let format = || Format::of_model(vocab);
    fit::write(&messages, &tools, &format, &render).map_err(|unfit| match unfit {
        Unfit::Refused(TemplateError::Raised(why) | TemplateError::Failed(why)) => {
            PromptError::Conversation(in_short(&why))
        }
        Unfit::Refused(other) => PromptError::Template(other),
        Unfit::Lost(what) => PromptError::Lost(in_short(&what.join(", "))),
    })
}

/// On one line.
fn in_short(why: &str) -> String {
    why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WHY_CHARS_MAX).collect()
}

/// Ids of a prompt and of its reply.
pub type PairIds = (Vec<u32>, Vec<u32>);

/// Ids of a prompt and of the reply that the template writes after it, each tokenised by itself as they are when the
/// reply is generated. `None` where the template writes the conversation otherwise once it has the reply.
pub fn render_pair(
    vocab: &dyn Vocab,
    template: &ChatTemplate,
    chat: &ChatInput,
    reply: &Message,
) -> Result<Option<PairIds>, PromptError> {
    let specials = Specials::of(vocab)?;
    let messages = chat.messages.iter().chain([reply]).cloned().collect();
    let whole = ChatInput { messages, add_generation_prompt: false, ..chat.clone() };
    let opening = write(vocab, &specials, template, chat)?;
    let whole = write(vocab, &specials, template, &whole)?;
    let Some(rest) = whole.strip_prefix(opening.as_str()) else { return Ok(None) };
    Ok(Some((render(vocab, template, chat)?.ids, specials.tokenise(vocab, rest)?.ids)))
}

fn with_its_thought(message: &Message, marks: Option<ThoughtMarks>) -> Message {
    let (thought, content) = thought_and_content(message, marks);
    let (reasoning_content, content) = (thought.map(str::to_owned), content.to_owned());
    Message { reasoning_content, content, ..message.clone() }
}

/// Clients may send a past reply with its thought inside, between the marks of its model or of most. Templates cut it
/// off at the last mark, which they could not find any more once it is defused: so it is done here, in the way of
/// Qwen's template.
pub fn thought_and_content(message: &Message, own: Option<ThoughtMarks>) -> (Option<&str>, &str) {
    let content = message.content.as_str();
    if message.role != Role::Assistant || message.reasoning_content.is_some() {
        return (message.reasoning_content.as_deref(), content);
    }
    let own = own.map(|marks| (marks.open_text, marks.close_text, marks.heading()));
    let cut = |(open, close, heading): (&str, &str, &str)| {
        let ((before, _), (_, after)) = content.split_once(close).zip(content.rsplit_once(close))?;
        let thought = before.trim_end_matches('\n');
        let thought = thought.rsplit_once(open).map_or(thought, |(_, t)| t);
        let thought = thought.strip_prefix(heading).unwrap_or(thought);
        Some((thought.trim_start_matches('\n'), after.trim_start_matches('\n')))
    };
    // Another model's mark is one only where the text begins with a thought; else somebody wrote of such marks.
    let foreign = Some(("<think>", "</think>", "")).filter(|(open, ..)| content.trim_start().starts_with(open));
    let found = own.into_iter().chain(foreign).find_map(cut);
    found.map_or((None, content), |(thought, content)| (Some(thought), content))
}
