//! Reply events written as server-sent events: one JSON object a `data:` line, in OpenAI's order. The
//! writer appends to a buffer, so that events which are ready together leave in one write.

use std::io::Write;

use serde_json::{Value, json};

use super::chat::Form;
use super::reply::{
    Head, Told, chat_logprobs, every_token, extension, finish_reason, is_text, text_logprobs, tool_call, usage,
};
use super::sources;
use crate::engine::protocol::{Channel, PromptToken};
use crate::http::error::ApiError;
use crate::service::{Logprob, ReplyEvent, ServiceError, StepEvent};
use crate::turn::{FinishReason, ToolCall, Usage};
use crate::whole;

/// Stands between an answer that was shown and the better one, as Markdown.
pub(crate) const REVISED: &str = "\n\n---\n\n**Revised answer**\n\n";

/// Which API the chunks are of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    /// With the text to put before each choice's own, where it was asked for.
    Completion {
        echoes: Vec<String>,
    },
}

/// How far one choice is.
#[derive(Clone, Debug, Default)]
struct Progress {
    reason: Option<FinishReason>,
    calls_begun: u32,
    /// Characters of text so far.
    chars: usize,
    /// Characters of the prompt whose logprobs were told.
    prompt_chars: usize,
}

/// Turns events into chunks.
pub(crate) struct ChunkWriter {
    kind: Kind,
    form: Form,
    head: Option<Head>,
    /// `{"id":…,"choices":[{"index":`, the same in every chunk.
    prefix: Vec<u8>,
    choices: Vec<Progress>,
}

/// How the stream goes on after an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    More,
    Done(Usage),
    Failed,
}

impl ChunkWriter {
    pub(crate) fn new(kind: Kind, form: Form, choices: u32) -> Self {
        let mut choices = vec![Progress::default(); choices as usize];
        if let Kind::Completion { echoes } = &kind {
            choices.iter_mut().zip(echoes).for_each(|(choice, echo)| choice.chars = echo.chars().count());
        }
        ChunkWriter { kind, form, head: None, prefix: Vec::new(), choices }
    }

    /// Appends what `event` says to `out`.
    pub(crate) fn write(&mut self, event: ReplyEvent, out: &mut Vec<u8>) -> Next {
        match event {
            ReplyEvent::Started { plan, model, fingerprint, created_unix_s } => {
                self.start(Head { plan, model, created_unix_s, fingerprint }, out);
            }
            ReplyEvent::Queued => {}
            ReplyEvent::Delta { choice, channel, text, logprobs } => self.delta(choice, channel, &text, &logprobs, out),
            ReplyEvent::PromptRead { choice, tokens } => self.prompt(choice, &tokens, out),
            ReplyEvent::ToolBegin { choice, call, id, name } => self.tool_begin(choice, call, &id, &name, out),
            ReplyEvent::ToolArguments { choice, call, delta } => {
                if self.kind == Kind::Chat {
                    let delta = json!({"tool_calls": [{"index": call, "function": {"arguments": delta}}]});
                    self.chat_delta(choice, &delta, out);
                }
            }
            ReplyEvent::Revised { choice, generation, logprobs } => {
                self.delta(choice, Channel::Answer, REVISED, &[], out);
                self.delta(choice, Channel::Answer, &generation.content, &logprobs, out);
            }
            ReplyEvent::ChoiceFinished { choice, reason, tool_calls } => {
                self.whole_calls(choice, &tool_calls, out);
                if let Some(progress) = self.choices.get_mut(choice as usize) {
                    progress.reason = Some(reason);
                }
            }
            ReplyEvent::Step(event) => self.step(&event, out),
            ReplyEvent::Done { usage, generations, steps, kept } => {
                return self.finish(&usage, &Told { generations: &generations, steps: &steps, kept }, out);
            }
            ReplyEvent::Failed(error) => return self.fail(error.into(), out),
        }
        Next::More
    }

    /// An `error` event; nothing follows it.
    pub(crate) fn fail(&self, error: ApiError, out: &mut Vec<u8>) -> Next {
        data(&error.envelope(), out);
        Next::Failed
    }

    fn start(&mut self, head: Head, out: &mut Vec<u8>) {
        let (prefix, object) = match self.kind {
            Kind::Chat => ("chatcmpl", "chat.completion.chunk"),
            Kind::Completion { .. } => ("cmpl", "text_completion"),
        };
        let common = json!({
            "id": head.id(prefix),
            "object": object,
            "created": head.created_unix_s,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        });
        let mut bytes = b"data: ".to_vec();
        json_into(&common, &mut bytes);
        bytes.pop();
        bytes.extend_from_slice(b",\"choices\":[");
        self.prefix = bytes;
        self.head = Some(head);
        for choice in 0..self.choices.len() as u32 {
            match &self.kind {
                Kind::Chat => self.chat_delta(choice, &json!({"role": "assistant", "content": ""}), out),
                Kind::Completion { echoes } => {
                    if let Some(echo) = echoes.get(choice as usize).filter(|echo| !echo.is_empty()) {
                        self.text_delta(choice, echo, &Value::Null, out);
                    }
                }
            }
        }
    }

    fn delta(&mut self, choice: u32, channel: Channel, text: &str, logprobs: &[Logprob], out: &mut Vec<u8>) {
        let offset = self.choices.get(choice as usize).map_or(0, |p| p.chars);
        if let Some(progress) = self.choices.get_mut(choice as usize) {
            progress.chars += text.chars().count();
        }
        let every = self.form.every_token;
        let told = self.form.logprobs && logprobs.iter().any(|logprob| every || is_text(logprob));
        if text.is_empty() && !told {
            return;
        }
        match self.kind {
            Kind::Completion { .. } => {
                let logprobs = match told {
                    false => Value::Null,
                    true if every => every_token(&[], logprobs, offset),
                    true => text_logprobs(logprobs, offset),
                };
                self.text_delta(choice, text, &logprobs, out);
            }
            Kind::Chat => {
                let field: &[u8] = match channel {
                    Channel::Thinking if text.is_empty() => return,
                    Channel::Thinking => b",\"delta\":{\"reasoning_content\":",
                    Channel::Answer => b",\"delta\":{\"content\":",
                };
                self.open(choice, out);
                out.extend_from_slice(field);
                json_into(text, out);
                out.push(b'}');
                let logprobs = (told && channel == Channel::Answer).then(|| chat_logprobs(logprobs));
                self.close(logprobs.as_ref(), None, out);
                end(&self.form, out);
            }
        }
    }

    /// Logprobs of a part of the prompt, whose text was told before.
    fn prompt(&mut self, choice: u32, tokens: &[PromptToken], out: &mut Vec<u8>) {
        let Some(progress) = self.choices.get_mut(choice as usize) else { return };
        let offset = progress.prompt_chars;
        progress.prompt_chars += tokens.iter().map(|token| token.text.chars().count()).sum::<usize>();
        if self.form.every_token {
            self.text_delta(choice, "", &every_token(tokens, &[], offset), out);
        }
    }

    fn tool_begin(&mut self, choice: u32, call: u32, id: &str, name: &str, out: &mut Vec<u8>) {
        if let Some(progress) = self.choices.get_mut(choice as usize) {
            progress.calls_begun = progress.calls_begun.max(call + 1);
        }
        if self.kind == Kind::Chat {
            let function = json!({"name": name, "arguments": ""});
            let delta = json!({"tool_calls": [{"index": call, "id": id, "type": "function", "function": function}]});
            self.chat_delta(choice, &delta, out);
        }
    }

    /// Calls that were not streamed in pieces leave in one.
    fn whole_calls(&mut self, choice: u32, calls: &[ToolCall], out: &mut Vec<u8>) {
        let begun = self.choices.get(choice as usize).map_or(0, |p| p.calls_begun);
        for (call, whole) in (0u32..).zip(calls).skip(begun as usize) {
            if self.kind == Kind::Chat {
                let mut entry = tool_call(whole);
                entry["index"] = json!(call);
                self.chat_delta(choice, &json!({"tool_calls": [entry]}), out);
            }
        }
    }

    /// A step, in a chunk that says nothing of any choice.
    fn step(&self, event: &StepEvent, out: &mut Vec<u8>) {
        if self.kind == Kind::Chat {
            self.open(0, out);
            out.extend_from_slice(b",\"delta\":{}");
            self.close(None, None, out);
            out.extend_from_slice(b",\"x_chimere\":");
            record_into(&json!({"step": event}), out);
            end(&self.form, out);
        }
    }

    fn finish(&mut self, totals: &Usage, told: &Told, out: &mut Vec<u8>) -> Next {
        let mut reasons = Vec::with_capacity(self.choices.len());
        for (index, progress) in self.choices.iter().enumerate() {
            match finish_reason(progress.reason, told.generations.get(index)) {
                Ok(reason) => reasons.push(reason),
                Err(error) => return self.fail(error, out),
            }
        }
        let Some(head) = &self.head else {
            return self.fail(ApiError::internal("the reply ended before it began"), out);
        };
        let extension = extension(&head.plan, told, &self.form);
        let last = reasons.len().saturating_sub(1);
        for (choice, reason) in (0u32..).zip(&reasons) {
            self.open(choice, out);
            match self.kind {
                Kind::Chat => {
                    let content = told.generations.get(choice as usize).map_or("", |of| of.content.as_str());
                    let cited = sources::annotations(content, told.steps);
                    out.extend_from_slice(b",\"delta\":");
                    json_into(&cited.map_or_else(|| json!({}), |cited| json!({"annotations": cited})), out);
                }
                Kind::Completion { .. } => out.extend_from_slice(b",\"text\":\"\""),
            }
            self.close(None, Some(reason), out);
            if choice as usize == last && !self.form.include_usage {
                out.extend_from_slice(b",\"x_chimere\":");
                record_into(&extension, out);
            }
            end(&self.form, out);
        }
        if self.form.include_usage {
            out.extend_from_slice(&self.prefix);
            out.extend_from_slice(b"],\"usage\":");
            json_into(&usage(totals), out);
            out.extend_from_slice(b",\"x_chimere\":");
            record_into(&extension, out);
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        Next::Done(*totals)
    }

    fn chat_delta(&self, choice: u32, delta: &Value, out: &mut Vec<u8>) {
        self.open(choice, out);
        out.extend_from_slice(b",\"delta\":");
        json_into(delta, out);
        self.close(None, None, out);
        end(&self.form, out);
    }

    fn text_delta(&self, choice: u32, text: &str, logprobs: &Value, out: &mut Vec<u8>) {
        self.open(choice, out);
        out.extend_from_slice(b",\"text\":");
        json_into(text, out);
        self.close(Some(logprobs), None, out);
        end(&self.form, out);
    }

    /// Up to and with the choice's index.
    fn open(&self, choice: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        // Writing to a Vec cannot fail.
        let _ = write!(out, "{{\"index\":{choice}");
    }

    /// From the choice's delta to the end of `choices`.
    fn close(&self, logprobs: Option<&Value>, reason: Option<&str>, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"logprobs\":");
        json_into(logprobs.unwrap_or(&Value::Null), out);
        out.extend_from_slice(b",\"finish_reason\":");
        json_into(&reason, out);
        out.extend_from_slice(b"}]");
    }
}

/// With `include_usage`, every chunk but the last says that the usage is not known yet.
fn end(form: &Form, out: &mut Vec<u8>) {
    out.extend_from_slice(if form.include_usage { b",\"usage\":null}\n\n" } else { b"}\n\n" });
}

fn data(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    json_into(value, out);
    out.extend_from_slice(b"\n\n");
}

fn json_into<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    // Strings, numbers and maps with string keys into memory: nothing here can fail.
    let _ = serde_json::to_writer(out, value);
}

/// The same of what has records of calls, whose numbers are written as such.
fn record_into(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(whole::unmarked(&value.to_string()).as_bytes());
}

/// The event of a reply whose source went away.
pub(crate) fn broke_off() -> ServiceError {
    ServiceError::Internal("the reply broke off: the engine stopped answering".to_owned())
}
