//! Examines a grammar in a throw-away process whose time and memory the system bounds. Whatever a schema does to its
//! compiler, it does it there first.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::calls::Marks;
use super::{Calls, Grammar, GrammarError, compile, shortened, words};
use crate::engine::apart::{self, Examined};

/// Address space that the examining process should give itself.
pub const VET_ADDRESS_SPACE_BYTES_MAX: u64 = 1 << 30;
/// Seconds of computing that it should give itself.
pub const VET_CPU_S_MAX: u64 = 1;
/// Bytes of a grammar as JSON: many functions of many schemas.
pub const VET_SOURCE_BYTES_MAX: usize = 4 << 20;
/// Longest wait for it: far more than it may compute, for a busy machine says nothing of a schema.
const VET_TIMEOUT: Duration = Duration::from_secs(30);
/// How the examining process exits where a sound grammar is too much for the compiler.
pub const VET_EXIT_HEAVY: u8 = 3;
/// Stack to compile on, there and in the engine: a chain of references is followed by recursion.
pub(super) const STACK_BYTES: usize = 128 << 20;

/// Compiles a grammar, written as JSON, as the engine will, without a model.
pub fn vet(source: &str) -> Result<(), GrammarError> {
    let grammar: Grammar = serde_json::from_str(source).map_err(|e| GrammarError::Vet(e.to_string()))?;
    // No model, no token for a call: what needs one is checked in the engine.
    let grammar = match grammar {
        Grammar::Calls(calls) if calls.answer.is_none() => Grammar::Calls(Calls { required: true, ..calls }),
        grammar => grammar,
    };
    let work = move || {
        let (factory, marks) = (words::plain_factory()?, Marks::default());
        compile::compile(&factory, &grammar, &marks)?;
        compile::each_alone(&factory, &grammar, &marks)
    };
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
    let thread = thread.map_err(|e| GrammarError::Vet(e.to_string()))?;
    thread.join().unwrap_or(Err(GrammarError::Costly))
}

/// What the words of such an error begin with.
const ENFORCED: &str = "the schema cannot be enforced: ";

/// Vets in a child: `program` with `arguments` must read the grammar on its standard input, bound its own address space
/// and time, call [`vet`], print an error on its standard output and exit with 1 for it, with [`VET_EXIT_HEAVY`] for one of
/// weight, with 0 where there is none.
pub(super) fn vet_apart(program: &Path, arguments: &[&str], grammar: &Grammar) -> Result<(), GrammarError> {
    let failed = |e: std::io::Error| GrammarError::Vet(e.to_string());
    let source = serde_json::to_vec(grammar).map_err(|e| GrammarError::Vet(e.to_string()))?;
    if source.len() > VET_SOURCE_BYTES_MAX {
        return Err(GrammarError::Large { bytes: source.len() });
    }
    match apart::examine(program, arguments, source, VET_TIMEOUT).map_err(failed)? {
        Examined::Good => Ok(()),
        Examined::Late => Err(GrammarError::Late),
        // Killed by its limits, or by what it compiled.
        Examined::Bad { said, .. } if said.is_empty() => Err(GrammarError::Costly),
        Examined::Bad { said, status } if status.code() == Some(VET_EXIT_HEAVY.into()) => {
            Err(GrammarError::Heavy(shortened(said.strip_prefix(ENFORCED).unwrap_or(&said))))
        }
        Examined::Bad { said, .. } => Err(GrammarError::Refused(shortened(&said))),
    }
}
