//! What a reply waits for while a long prompt is read: the time of a step that takes both.

use std::time::Instant;

use serde::Serialize;

use super::{HOST_STEPS_MAX, KernelTime, Plan, filled, ids, times};
use crate::engine::backend::{Backend, BackendError, Chunk, Output, Rows, SeqId};
use crate::engine::cuda::{CUT, Cuda};

/// Tokens of the prompt.
pub(super) const PROMPT: usize = 8_192;
/// How many of them a step takes; first what it takes where one reply waits.
pub(super) const STEPS: [usize; 6] = [CUT, 3, 16, 32, 64, 128];

/// Seconds of a step that takes some tokens of a long prompt beside one token of a reply.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Beside {
    pub prompt_tokens: usize,
    pub median: f64,
    pub p99: f64,
    /// The same reply's steps with nothing beside them, median.
    pub quiet: f64,
}

/// Times of steps by how much of the prompt they take; none where the context is too short or there is one sequence.
pub(super) fn waits(cuda: &mut Cuda, plan: &Plan) -> Result<Vec<Beside>, BackendError> {
    let mut found = Vec::new();
    if !fits(cuda, plan) {
        return Ok(found);
    }
    for each in STEPS {
        let pair = Pair::open(cuda, plan)?;
        let mut quiet = (0..HOST_STEPS_MAX).map(|_| pair.step(cuda, &[])).collect::<Result<Vec<_>, _>>()?;
        let prompt = prompt(cuda);
        let mut taken = prompt.chunks(each).map(|part| pair.step(cuda, part)).collect::<Result<Vec<_>, _>>()?;
        pair.close(cuda);
        quiet.sort_by(f64::total_cmp);
        taken.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
        let (median, p99, quiet) = (at(&taken, 0.5), at(&taken, 0.99), at(&quiet, 0.5));
        found.push(Beside { prompt_tokens: each, median, p99, quiet });
    }
    Ok(found)
}

/// The launches of the first of these steps, in the middle of the prompt.
pub(super) fn launches(cuda: &mut Cuda, plan: &Plan) -> Result<Vec<KernelTime>, BackendError> {
    if !fits(cuda, plan) {
        return Ok(Vec::new());
    }
    let (pair, prompt) = (Pair::open(cuda, plan)?, prompt(cuda));
    let (before, after) = prompt.split_at(PROMPT / 2);
    pair.step(cuda, before)?;
    let found = cuda.profile_step(&pair.chunks(&after[..STEPS[0]]), &mut Output::default());
    pair.close(cuda);
    found.map(times)
}

fn fits(cuda: &Cuda, plan: &Plan) -> bool {
    let least = STEPS.into_iter().min().unwrap_or(1);
    cuda.info().context_tokens >= PROMPT.max(depth(plan) + PROMPT / least + HOST_STEPS_MAX) && plan.sequences() >= 2
}

/// What the reply holds already.
fn depth(plan: &Plan) -> usize {
    plan.contexts.first().copied().unwrap_or(1).max(1)
}

fn prompt(cuda: &Cuda) -> Vec<u32> {
    ids(cuda.info().vocab, PROMPT, 4)
}

/// The sequences of a reply and of a prompt that is being read.
struct Pair {
    reply: SeqId,
    reader: SeqId,
}

impl Pair {
    fn open(cuda: &mut Cuda, plan: &Plan) -> Result<Pair, BackendError> {
        let pair = Pair { reply: filled(cuda, 1, depth(plan))?[0], reader: cuda.open()? };
        cuda.begin_prompt(pair.reader, PROMPT);
        Ok(pair)
    }

    /// A token of the reply and these of the prompt.
    fn chunks<'a>(&self, tokens: &'a [u32]) -> Vec<Chunk<'a>> {
        let likeliest = Rows::Likeliest { temperature: 1.0 };
        let reply = Chunk { seq: self.reply, tokens: &[7], rows: likeliest, hidden: false };
        let reader = Chunk { seq: self.reader, tokens, rows: Rows::None, hidden: false };
        [reply, reader].into_iter().filter(|chunk| !chunk.tokens.is_empty()).collect()
    }

    /// Seconds of a step over them.
    fn step(&self, cuda: &mut Cuda, tokens: &[u32]) -> Result<f64, BackendError> {
        let (chunks, mut out) = (self.chunks(tokens), Output::default());
        let began = Instant::now();
        cuda.step(&chunks, &mut out)?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn close(self, cuda: &mut Cuda) {
        [self.reply, self.reader].into_iter().for_each(|seq| cuda.close(seq));
    }
}
