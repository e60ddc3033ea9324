//! OpenAI's wire types: request bodies read into `ReplyRequest`, replies written as JSON and stream chunks.
//!
//! A request may carry every parameter of OpenAI's chat and completion API that this daemon honours. It may carry
//! those of llama-server and vLLM that sampling knows (`top_k`, `min_p`, `repetition_penalty`), and the thinking
//! controls that Qwen clients send. One object is our own, `chimere` (also `x_chimere`). A list of parameters that do
//! no harm where they have no effect (`user`, `metadata` …) is accepted, and the reply names them. Everything else is
//! refused by name: a setting that is silently ignored is worse than an error.

pub(crate) mod chat;
pub(crate) mod chunk;
mod comparing;
pub(crate) mod completion;
mod documents;
pub(crate) mod embedding;
pub(crate) mod format;
pub(crate) mod message;
pub(crate) mod reply;
pub(crate) mod sampling;
mod sources;
pub(crate) mod template;
pub(crate) mod thinking;
pub(crate) mod tools;

/// Parameters accepted without effect on both reply routes: hints, bookkeeping and services that are not here.
pub(crate) const IGNORED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "moderation",
    "verbosity",
    // A hint that may speed a reply up and never changes it.
    "prediction",
    // llama-server: reuse of a common prefix, which changes no reply.
    "cache_prompt",
];
