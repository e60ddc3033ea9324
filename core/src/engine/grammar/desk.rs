//! Where requests wait for their grammar to be compiled. A thread of its own does that, so that no schema holds up
//! the engine loop or requests without one. It keeps what was compiled lately, and what was refused.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use llguidance::{Matcher, ParserFactory};
use sha2::{Digest, Sha256};

use super::calls::Marks;
use super::constraint::{Constraint, Landmarks};
use super::counts::FormCounts;
use super::digits::Digits;
use super::relaxed::{Less, relaxed};
use super::vet::{STACK_BYTES, vet_apart};
use super::{FormTerms, Grammar, GrammarError, NotEnforced, compile, words};
use crate::engine::host::{Events, Input};
use crate::engine::pending::Pending;
use crate::engine::protocol::{Event, FailureKind, RequestId};
use crate::engine::slot::Prepared;
use crate::engine::vocab::Vocab;

/// Requests that wait for their grammar; more are refused as busy.
const WAITING_MAX: usize = 64;
/// Grammars kept, compiled or refused.
const KEPT_MAX: usize = 32;

/// What a request asks of the form of its answer.
pub struct Form {
    pub grammar: Grammar,
    pub terms: FormTerms,
}

struct Job {
    job: Box<Prepared>,
    form: Form,
}

/// The side of whoever prepares requests.
pub struct Desk {
    jobs: SyncSender<Job>,
    pending: Pending,
    counts: Arc<FormCounts>,
}

impl Desk {
    /// Starts the thread, which ends with this. `vet_with`: the program of ours that examines a grammar in a process
    /// apart (`engine --vet-grammar`); absent: compiled here at once.
    pub fn start(
        vocab: Arc<dyn Vocab>,
        vet_with: Option<PathBuf>,
        to: SyncSender<Input>,
        events: Events,
    ) -> io::Result<Desk> {
        let (jobs, from_desk) = sync_channel(WAITING_MAX);
        let pending = Pending::default();
        let own = pending.clone();
        let compiler = Compiler::new(vocab, vet_with);
        let counts = Arc::clone(&compiler.counts);
        thread::Builder::new().name("engine-grammar".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            serve(compiler, &from_desk, &own, &to, &events);
        })?;
        Ok(Desk { jobs, pending, counts })
    }

    /// What became of the forms that came here.
    pub fn counts(&self) -> Arc<FormCounts> {
        Arc::clone(&self.counts)
    }

    /// Has a request go on to the step loop once its grammar is compiled; or the event that tells why it cannot.
    pub fn take(&self, job: Box<Prepared>, form: Form) -> Result<(), Event> {
        let id = job.id;
        self.pending.enter(id);
        let refused = match self.jobs.try_send(Job { job, form }) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => (FailureKind::Busy, format!("{WAITING_MAX} requests wait for their grammar")),
            Err(TrySendError::Disconnected(_)) => {
                (FailureKind::Internal, "the engine no longer compiles grammars".to_owned())
            }
        };
        self.pending.leave(id);
        self.counts.turned_away();
        Err(Event::Failed { id, kind: refused.0, message: refused.1 })
    }

    /// Ends a request that is still here; the event tells so. `None`: it is elsewhere.
    pub fn cancel(&self, id: RequestId) -> Option<Event> {
        self.pending.cancel(id)
    }

    /// Nothing is kept of the prompts of the requests that are here.
    pub fn forget(&self) {
        self.pending.forget();
    }
}

fn serve(mut compiler: Compiler, from: &Receiver<Job>, pending: &Pending, to: &SyncSender<Input>, events: &Events) {
    while let Ok(Job { mut job, form }) = from.recv() {
        let id = job.id;
        let wanted = || pending.holds(id);
        if !wanted() {
            continue;
        }
        let made = compiler.held(&form, &wanted).and_then(|mut made| {
            if form.grammar.may_answer() {
                made.behind(&job.ids, job.control.may_think())?;
            }
            Ok(made)
        });
        let passed = pending.pass(id, |forgotten| match made {
            Ok(constraint) => {
                job.constraint = Some(constraint);
                if forgotten {
                    job.prefix_owner = None;
                }
                to.send(Input::Prepared(job)).is_ok()
            }
            Err(error) => {
                let kind = match error {
                    GrammarError::Vet(_) => FailureKind::Internal,
                    GrammarError::Late => FailureKind::Busy,
                    _ => FailureKind::Form,
                };
                events.send(vec![Event::Failed { id, kind, message: error.to_string() }]).is_ok()
            }
        });
        if passed == Some(false) {
            return;
        }
    }
}

/// Asked before each compilation: whether somebody still waits for it.
type Wanted<'a> = &'a dyn Fn() -> bool;

/// A grammar at its beginning.
struct Compiled {
    matcher: Matcher,
    digits: Digits,
    /// What of its schemas it leaves to the model.
    left: Vec<NotEnforced>,
}

/// What grammars are compiled with, made when the first one comes.
struct Tools {
    factory: ParserFactory,
    marks: Marks,
    landmarks: Arc<Landmarks>,
}

/// Makes constraints of grammars, and keeps what was compiled lately, and what was refused.
pub struct Compiler {
    vocab: Arc<dyn Vocab>,
    vet_with: Option<PathBuf>,
    tools: Option<Tools>,
    /// By the hash of the grammar, the latest used last.
    kept: Vec<([u8; 32], Result<Compiled, GrammarError>)>,
    counts: Arc<FormCounts>,
}

impl Compiler {
    /// `vet_with` as for [`Desk::start`].
    pub fn new(vocab: Arc<dyn Vocab>, vet_with: Option<PathBuf>) -> Compiler {
        Compiler { vocab, vet_with, tools: None, kept: Vec::new(), counts: Arc::default() }
    }

    /// A constraint for a request, while it is `wanted`. What it leaves to the model is told of the forms to come as well.
    fn held(&mut self, Form { grammar, terms }: &Form, wanted: Wanted<'_>) -> Result<Constraint, GrammarError> {
        let made = self.constraint_while(grammar, terms.loose, wanted)?;
        let Some(later) = &terms.later else { return Ok(made) };
        let mut left = made.not_enforced().to_vec();
        left.extend_from_slice(self.constraint_while(later, terms.loose, wanted)?.not_enforced());
        left.dedup();
        Ok(made.leaving(left))
    }

    /// A constraint at its beginning. What it learns of its grammar stays its own: no reply depends on another.
    pub fn constraint(&mut self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        self.constraint_with(grammar, false)
    }

    /// `loose` as in [`FormTerms`].
    pub(super) fn constraint_with(&mut self, grammar: &Grammar, loose: bool) -> Result<Constraint, GrammarError> {
        self.constraint_while(grammar, loose, &|| true)
    }

    fn constraint_while(
        &mut self,
        grammar: &Grammar,
        loose: bool,
        wanted: Wanted<'_>,
    ) -> Result<Constraint, GrammarError> {
        let source = serde_json::to_vec(&(grammar, loose)).map_err(|e| GrammarError::Vet(e.to_string()))?;
        let hash: [u8; 32] = Sha256::digest(&source).into();
        let known = self.kept.iter().position(|(own, _)| *own == hash);
        let found = match known {
            Some(at) => self.kept.remove(at).1,
            None => self.compiled(grammar, loose, wanted),
        };
        let made = match (&found, &self.tools) {
            (Ok(Compiled { matcher, digits, left }), Some(tools)) => {
                let (landmarks, digits) = (Arc::clone(&tools.landmarks), (digits.clone(), Arc::clone(&self.vocab)));
                Ok(Constraint::new(matcher.deep_clone(), landmarks, digits).leaving(left.clone()))
            }
            (Err(error), _) => Err(error.clone()),
            (Ok(_), None) => Err(GrammarError::Vet("no tools".to_owned())),
        };
        self.counts.count(&made, known.is_some());
        if !found.as_ref().is_err_and(GrammarError::is_of_the_machine) {
            self.kept.push((hash, found));
            if self.kept.len() > KEPT_MAX {
                drop(self.kept.remove(0));
            }
        }
        made
    }

    /// What is not `strict` is held to less where its schema is too much for the compiler.
    fn compiled(&mut self, grammar: &Grammar, loose: bool, wanted: Wanted<'_>) -> Result<Compiled, GrammarError> {
        let error = match self.guarded(grammar, wanted) {
            Ok(compiled) => return Ok(compiled),
            Err(error) => error,
        };
        let less = if error.is_of_weight() { relaxed(grammar, loose, &error) } else { Vec::new() };
        for Less { grammar, left } in less {
            match self.guarded(&grammar, wanted) {
                Ok(compiled) => return Ok(Compiled { left, ..compiled }),
                Err(other) if other.is_of_the_machine() => return Err(other),
                Err(_) => {}
            }
        }
        Err(error)
    }

    fn guarded(&mut self, grammar: &Grammar, wanted: Wanted<'_>) -> Result<Compiled, GrammarError> {
        if !wanted() {
            return Err(GrammarError::Left);
        }
        catch_unwind(AssertUnwindSafe(|| self.compile(grammar)))
            .unwrap_or_else(|_| Err(GrammarError::Heavy("its compiler has a defect".to_owned())))
    }

    fn compile(&mut self, grammar: &Grammar) -> Result<Compiled, GrammarError> {
        grammar.schemas().into_iter().try_for_each(super::check_schema)?;
        if let Some(program) = &self.vet_with {
            vet_apart(program, &["engine", "--vet-grammar"], grammar)?;
        }
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => {
                let marks = Marks::of(self.vocab.as_ref());
                let landmarks = Arc::new(Landmarks::of(self.vocab.as_ref(), marks.open(), marks.in_channels()));
                Tools { factory: words::factory(Arc::clone(&self.vocab))?, marks, landmarks }
            }
        };
        let tools = self.tools.insert(tools);
        let (matcher, layout) = compile::compile(&tools.factory, grammar, &tools.marks)?;
        if self.vet_with.is_none() {
            compile::each_alone(&tools.factory, grammar, &tools.marks)?;
        }
        Ok(Compiled { matcher, digits: Digits::of(grammar, layout), left: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;
    use crate::engine::grammar::FormStats;
    use crate::engine::grammar::agreement::model;
    use crate::toolcall::Format;

    #[test]
    fn nothing_more_is_compiled_for_whoever_left_and_nothing_is_kept_of_it() {
        let number = json!({"type": "number", "exclusiveMaximum": 1_000_000,
            "anyOf": [{"multipleOf": 50_000}, {"multipleOf": 30_000}]});
        let schema = json!({"type": "object", "properties": {"a": number}, "required": ["a"]});
        let form = Form { grammar: Grammar::Json(schema), terms: FormTerms { loose: true, later: None } };
        let mut compiler = Compiler::new(Arc::new(model(Format::named("hermes").unwrap(), true)), None);
        // Before the first compilation, and before that of what asks less.
        for most in [0, 1] {
            let asked = Cell::new(0);
            let wanted = || asked.replace(asked.get() + 1) < most;
            assert_eq!(compiler.held(&form, &wanted).map(drop), Err(GrammarError::Left));
            assert_eq!((asked.get(), compiler.kept.len()), (most + 1, 0));
        }
        assert_eq!(compiler.counts.told(), FormStats::default());
        // Whoever asks next is served.
        let made = compiler.held(&form, &|| true).unwrap();
        assert_eq!((made.not_enforced().len(), compiler.kept.len()), (1, 1));
    }
}
