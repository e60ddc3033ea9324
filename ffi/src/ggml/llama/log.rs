//! The library's log. Lines go to a sink that the program chooses. Warnings and errors are also
//! kept for the message of the call that failed.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use llama_cpp_sys_2 as sys;

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Warnings and errors kept for error messages.
const KEPT_MAX: usize = 16;
/// Bytes of a line under construction; a longer one is cut.
const LINE_BYTES_MAX: usize = 8_192;

static SINK: OnceLock<fn(Level, &str)> = OnceLock::new();

struct State {
    /// The library writes lines in pieces; this is the one under way.
    line: String,
    level: Level,
    kept: VecDeque<String>,
}

static STATE: Mutex<State> = Mutex::new(State { line: String::new(), level: Level::Info, kept: VecDeque::new() });

/// Sends all lines to `sink`, for the life of the process. Only the first call counts.
pub fn set_sink(sink: fn(Level, &str)) {
    let _ = SINK.set(sink);
}

/// Forgets kept lines: to be called before a call whose failure [`take_kept`] shall explain.
pub(super) fn clear_kept() {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).kept.clear();
}

/// The warnings and errors since [`clear_kept`], joined.
pub(super) fn take_kept() -> String {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<String> = state.kept.drain(..).collect();
    if lines.is_empty() { "no reason was logged".into() } else { lines.join("; ") }
}

/// The function that the library calls, from any of its threads. It does not panic: a panic would
/// have to cross C++.
pub(super) unsafe extern "C" fn callback(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: the library passes a zero-terminated string that lives through this call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    match level {
        sys::GGML_LOG_LEVEL_CONT => {}
        sys::GGML_LOG_LEVEL_DEBUG => state.level = Level::Debug,
        sys::GGML_LOG_LEVEL_WARN => state.level = Level::Warn,
        sys::GGML_LOG_LEVEL_ERROR => state.level = Level::Error,
        _ => state.level = Level::Info,
    }
    for piece in text.split_inclusive('\n') {
        let room = LINE_BYTES_MAX.saturating_sub(state.line.len());
        let cut = (0..=room.min(piece.len())).rev().find(|at| piece.is_char_boundary(*at)).unwrap_or(0);
        let state = &mut *state;
        state.line.push_str(&piece[..cut]);
        if piece.ends_with('\n') {
            finish_line(state);
        }
    }
}

fn finish_line(state: &mut State) {
    let line = state.line.trim_end();
    // The loader draws progress with dots; they say nothing in a log.
    if !line.trim_matches('.').is_empty() {
        if state.level >= Level::Warn {
            if state.kept.len() == KEPT_MAX {
                state.kept.pop_front();
            }
            state.kept.push_back(line.to_owned());
        }
        if let Some(sink) = SINK.get() {
            sink(state.level, line);
        }
    }
    state.line.clear();
}
