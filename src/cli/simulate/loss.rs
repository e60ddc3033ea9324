//! The loss on reference replies and on held-out text, under the base model or an adapter, teacher-forced in this
//! process while no daemon runs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use anyhow::{Context, bail};
use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process;
use chimere::engine::prompt::render_pair;
use chimere::engine::protocol::{ChatInput, Command, EvalRow, Event};
use chimere::simulate::pool::Question;
use chimere::turn::{Message, Role, Thinking};

use super::super::model_args::{CacheArgs, ModelArgs};

/// Sequences scored together.
const SEQUENCES: usize = 8;
const CONTEXT_TOKENS: u32 = 4_096;
/// Tokens of a window of text, and windows.
const WINDOW: usize = 512;
const WINDOWS_MAX: usize = 128;
/// As an exam asks; the template only wants to know that there is a thought.
const THINKING: Thinking = Thinking::On { budget_tokens: 192 };

/// Loss in nats and tokens of each row.
pub type Losses = Vec<(f64, u32)>;

/// Under which weights what is scored.
pub struct Task<'a> {
    pub model: &'a Path,
    pub threads: usize,
    pub adapter: Option<PathBuf>,
    pub questions: &'a [Question],
    pub text: Option<&'a str>,
}

/// (losses of the questions' references, losses of the text's windows).
pub fn measure(task: &Task<'_>) -> anyhow::Result<(Losses, Losses)> {
    let arguments = ModelArgs {
        model: Some(task.model.to_owned()),
        threads: u16::try_from(task.threads).ok(),
        context: CONTEXT_TOKENS,
        adapter: task.adapter.clone(),
        adapters: false,
        cache: CacheArgs::default(),
        card: Default::default(),
    };
    let loaded = arguments.load(Kind::Auto, SEQUENCES, true)?;
    let template = loaded.template.as_ref().context("the model has no chat template")?;
    let mut rows = Vec::new();
    for question in task.questions {
        let chat = ChatInput {
            messages: question.item.messages.clone(),
            tools: question.item.tools.clone(),
            thinking: THINKING,
            date: String::new(),
            add_generation_prompt: true,
        };
        if let Some((prompt, reply)) = render_pair(loaded.vocab.as_ref(), template, &chat, &reply(question))? {
            let scored_from = prompt.len();
            rows.push(EvalRow { ids: [prompt, reply].concat(), scored_from });
        }
    }
    let references = rows.len();
    if let Some(text) = task.text {
        let mut ids = Vec::new();
        loaded.vocab.encode(text, false, &mut ids)?;
        let windows = ids.chunks(WINDOW).filter(|window| window.len() > 1).take(WINDOWS_MAX);
        rows.extend(windows.map(|window| EvalRow { ids: window.to_vec(), scored_from: 1 }));
    }
    if rows.is_empty() {
        return Ok(Default::default());
    }
    let mut losses = evaluate(loaded, rows)?;
    let text = losses.split_off(references);
    Ok((losses, text))
}

fn reply(question: &Question) -> Message {
    let reasoning = (!question.think.is_empty()).then(|| question.think.clone());
    let tool_calls = question.tool_calls.clone();
    Message { reasoning_content: reasoning, tool_calls, ..Message::new(Role::Assistant, question.answer.clone()) }
}

fn evaluate(loaded: chimere::engine::load::Loaded, rows: Vec<EvalRow>) -> anyhow::Result<Losses> {
    let (to_us, events) = sync_channel(64);
    let engine =
        process::start(loaded, HostLimits { waiting_max: 1, step_tokens_max: 512, ..HostLimits::default() }, to_us)?;
    let command = Command::Evaluate { id: 1, adapter: None, rows, with_kl: false };
    engine.commands.send((command, Instant::now())).context("the engine ended")?;
    while let Ok(batch) = events.recv() {
        for event in batch {
            match event {
                Event::Evaluated { rows, .. } => return Ok(rows.iter().map(|row| (row.nll, row.tokens)).collect()),
                Event::Failed { message, .. } => bail!("the loss was not measured: {message}"),
                _ => {}
            }
        }
    }
    bail!("the engine ended before the loss was measured")
}
