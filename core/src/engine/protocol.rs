//! The engine's public interface: the commands it takes (`command`) and the events it gives (`event`), and their frames.
//! `frame` says how they travel. The daemon writes commands to the engine's standard input and reads events from
//! its standard output; end of file ends the engine.

mod command;
mod event;
mod frame;

pub use command::{
    ADAPTERS_MAX, CANDIDATES_MAX, CandidateStart, ChatInput, Command, EVAL_ROWS_MAX, EVAL_TOKENS_MAX, EVALUATIONS_MAX,
    EmbedInput, EvalRow, Generate, OWNER_BYTES_MAX, PROBES_MAX, Probe, Prompt, PromptPart, REVISION_BYTES_MAX,
    STOP_BYTES_MAX, STOP_CHARS_MAX, STOPS_MAX,
};
pub use event::{Channel, EngineStats, Event, FailureKind, Hosted, PromptToken, RowScore, TokenEvent, TokenLogprob};
pub use frame::{FRAME_BYTES_MAX, Frame, FrameError, encode, id_of, next_frame, read_frame, write_frame};

/// What daemon and engine must agree on. Raised when a command or an event changes its meaning.
pub const PROTOCOL: u32 = 1;

/// Chosen by the daemon, unique while the engine lives.
pub type RequestId = u64;

#[cfg(test)]
mod tests;
