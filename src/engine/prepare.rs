//! From a request to a job that the step loop can run: renders the chat template, tokenises, checks the sampling
//! fields and sets up the control policies. Runs on its own thread; nothing here touches the model.

use std::sync::Arc;
use std::time::Instant;

use super::control::ReplyControl;
use super::prompt;
use super::protocol::{Command, Event, FailureKind, Generate, Hosted, Prompt, STOPS_MAX};
use super::sampler::Sampler;
use super::slot::Prepared;
use super::template::ChatTemplate;
use super::vocab::Vocab;

pub struct Preparer {
    vocab: Arc<dyn Vocab>,
    template: Option<ChatTemplate>,
    /// Logits a row.
    width: usize,
    embedding_only: bool,
}
