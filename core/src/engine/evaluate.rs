//! Teacher-forced scores of texts, in the steps of the ordinary loop: rows of an evaluation are prompts that nobody
//! waits for. They use free sequences and give them back to live requests, after which they start again. They ask for
//! logits only where tokens are scored, so memory is that of one step.
//!
//! Each row's numbers are those of the text fed alone: cut on the grid of its own positions, nothing else.

use std::collections::VecDeque;
use std::sync::Arc;

use chimere_ffi::cpu::{argmax, softmax};

use super::backend::{AdapterId, Backend, BackendError, Chunk, ModelInfo, SeqId};
use super::batch::{Demand, Share, Wants};
use super::protocol::{
    EVAL_ROWS_MAX, EVAL_TOKENS_MAX, EVALUATIONS_MAX, EvalRow, Event, FailureKind, RequestId, RowScore,
};

/// One `Evaluate` command under way.
struct Job {
    id: RequestId,
    adapter: Option<AdapterId>,
    rows: Arc<Vec<EvalRow>>,
    with_kl: bool,
    /// Rows that have no sequence yet.
    waiting: VecDeque<usize>,
    scores: Vec<Option<RowScore>>,
}

/// A row with its sequences: under the adapter, and for the divergence under the base weights.
struct Open {
    job: RequestId,
    row: usize,
    seqs: Vec<SeqId>,
    held: usize,
    score: RowScore,
    kl: f64,
}

#[derive(Default)]
pub(super) struct Evaluations {
    jobs: VecDeque<Job>,
    open: Vec<Open>,
    /// A row of probabilities.
    scratch: Vec<f32>,
}

impl Job {
    fn lanes(&self) -> usize {
        1 + usize::from(self.with_kl && self.adapter.is_some())
    }
}

/// Why rows cannot be scored on this model, if they cannot.
pub(super) fn refusal(rows: &[EvalRow], with_kl: bool, info: &ModelInfo) -> Option<String> {
    let tokens: usize = rows.iter().map(|r| r.ids.len()).sum();
    if rows.len() > EVAL_ROWS_MAX || tokens > EVAL_TOKENS_MAX {
        let found = format!("{} rows of {tokens} tokens", rows.len());
        return Some(format!("{found} are over the limit of {EVAL_ROWS_MAX} rows and {EVAL_TOKENS_MAX} tokens"));
    }
    let sequences = 2 + usize::from(with_kl);
    if info.sequences_max < sequences {
        return Some(format!("an engine of {} sequences cannot evaluate: it needs {sequences}", info.sequences_max));
    }
    rows.iter().enumerate().find_map(|(i, row)| {
        let (len, from) = (row.ids.len(), row.scored_from);
        if from == 0 || from >= len {
            return Some(format!(
                "row {i}: scored_from is {from}, but it must be at least 1 and below its {len} tokens"
            ));
        }
        if len - 1 > info.context_tokens {
            return Some(format!("row {i} has {len} tokens, over the context of {}", info.context_tokens));
        }
        let bad = row.ids.iter().find(|id| **id as usize >= info.vocab)?;
        Some(format!("row {i}: token {bad} is outside the vocabulary of {}", info.vocab))
    })
}

/// Opens the sequences of one row, the first under the job's adapter. Those that were opened before an error are in `seqs`.
fn open_lanes(job: &Job, end: usize, seqs: &mut Vec<SeqId>, backend: &mut dyn Backend) -> Result<(), BackendError> {
    for lane in 0..job.lanes() {
        let seq = backend.open()?;
        seqs.push(seq);
        if let Some(adapter) = job.adapter.filter(|_| lane == 0) {
            backend.adapt(seq, adapter)?;
        }
        backend.begin_prompt(seq, end);
    }
    Ok(())
}

impl Evaluations {
    /// Evaluations waiting or under way.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.jobs.len() >= EVALUATIONS_MAX
    }

    /// Sequences in use.
    pub(super) fn sequences(&self) -> usize {
        self.open.iter().map(|o| o.seqs.len()).sum()
    }

    /// Sequences that rows without one are waiting for.
    pub(super) fn wanted(&self) -> usize {
        self.jobs.iter().map(|j| j.waiting.len() * j.lanes()).sum()
    }

    /// Takes rows that were checked.
    pub(super) fn push(&mut self, id: RequestId, adapter: Option<AdapterId>, rows: Arc<Vec<EvalRow>>, with_kl: bool) {
        let (waiting, scores) = ((0..rows.len()).collect(), vec![None; rows.len()]);
        self.jobs.push_back(Job { id, adapter, rows, with_kl, waiting, scores });
    }

    /// Gives waiting rows sequences while `free` of them are left, jobs in order.
    pub(super) fn admit(&mut self, mut free: usize, backend: &mut dyn Backend) -> Result<(), BackendError> {
        for job in &mut self.jobs {
            while free >= job.lanes()
                && let Some(row) = job.waiting.pop_front()
            {
                // The last token is not fed: it predicts nothing that is scored.
                let end = job.rows.get(row).map_or(0, |text| text.ids.len().saturating_sub(1));
                let mut open =
                    Open { job: job.id, row, seqs: Vec::new(), held: 0, score: RowScore::default(), kl: 0.0 };
                if let Err(error) = open_lanes(job, end, &mut open.seqs, backend) {
                    // Nobody else knows of them: kept open they would be lost to every later request.
                    open.seqs.iter().for_each(|seq| backend.close(*seq));
                    job.waiting.push_front(row);
                    return Err(error);
                }
                free -= job.lanes();
                self.open.push(open);
            }
        }
        Ok(())
    }

    /// Closes the youngest row, which starts again later; false if none is open.
    pub(super) fn evict(&mut self, backend: &mut dyn Backend) -> bool {
        let Some(open) = self.open.pop() else { return false };
        open.seqs.iter().for_each(|seq| backend.close(*seq));
        if let Some(job) = self.jobs.iter_mut().find(|j| j.id == open.job) {
            job.waiting.push_front(open.row);
        }
        true
    }

    fn text(&self, at: usize) -> Option<&EvalRow> {
        let open = self.open.get(at)?;
        self.jobs.iter().find(|j| j.id == open.job)?.rows.get(open.row)
    }

    pub(super) fn demands(&self) -> impl Iterator<Item = Demand> {
        self.open.iter().enumerate().map(|(at, open)| {
            let (len, from) = self.text(at).map_or((0, 0), |t| (t.ids.len() - 1, t.scored_from - 1));
            Demand {
                held: open.held,
                pending: len - open.held,
                decoding: false,
                background: true,
                served: 0,
                lanes: open.seqs.len(),
                wants: Wants::From(from),
            }
        })
    }

    /// The chunks of open row `at`.
    pub(super) fn chunks(&self, at: usize, share: &Share) -> impl Iterator<Item = Chunk<'_>> {
        let open = &self.open[at];
        let tokens = self.text(at).map_or(&[][..], |t| &t.ids[open.held..open.held + share.tokens]);
        let rows = share.rows;
        open.seqs.iter().map(move |seq| Chunk { seq: *seq, tokens, rows, hidden: false })
    }

    /// Rows of logits that a share of open row `at` gives.
    pub(super) fn rows(&self, at: usize, share: &Share) -> usize {
        match share.rows {
            super::backend::Rows::All => self.open[at].seqs.len() * share.tokens,
            _ => 0,
        }
    }

    /// Takes the logits of a share: first those under the adapter, then those of the base weights.
    /// True if the row is done.
    pub(super) fn take(&mut self, at: usize, share: &Share, logits: &[f32], vocab: usize) -> Result<bool, String> {
        let Some(text) = self.text(at).cloned() else { return Ok(true) };
        let open = &mut self.open[at];
        let start = open.held;
        open.held += share.tokens;
        let (own, base) = logits.split_at(if open.seqs.len() == 2 { logits.len() / 2 } else { logits.len() });
        for (i, row) in own.chunks_exact(vocab).enumerate() {
            let Some(&next) = text.ids.get(start + i + 1).filter(|_| start + i + 1 >= text.scored_from) else {
                continue;
            };
            let own = Likelihood::of(row, &mut self.scratch);
            open.score.nll += own.nll(row, next);
            open.score.tokens += 1;
            open.score.top1 += u32::from(own.best == next as usize);
            if let Some(other) = base.chunks_exact(vocab).nth(i) {
                let before = Likelihood::of(other, &mut self.scratch);
                open.kl += before.divergence(&self.scratch, other, &own, row);
            }
        }
        if !(open.score.nll.is_finite() && open.kl.is_finite()) {
            return Err(format!("row {}: the model gives no finite numbers", open.row));
        }
        Ok(open.held + 1 >= text.ids.len())
    }

    /// Row `at` is done: keeps its score; the event once its whole evaluation is, with the adapter it was under.
    pub(super) fn close(&mut self, at: usize, backend: &mut dyn Backend) -> Option<(Event, Option<AdapterId>)> {
        let mut open = self.open.remove(at);
        open.seqs.iter().for_each(|seq| backend.close(*seq));
        let place = self.jobs.iter().position(|j| j.id == open.job)?;
        let job = &mut self.jobs[place];
        // Under the base weights the divergence from them is nothing.
        open.score.kl = job.with_kl.then(|| (open.kl / f64::from(open.score.tokens.max(1))).max(0.0));
        job.scores[open.row] = Some(open.score);
        if job.scores.iter().any(Option::is_none) {
            return None;
        }
        let job = self.jobs.remove(place)?;
        let rows = job.scores.into_iter().flatten().collect();
        Some((Event::Evaluated { id: job.id, rows }, job.adapter))
    }

    /// Ends a whole evaluation early; `None` if there is no such one, else the adapter it was under.
    pub(super) fn cancel(&mut self, id: RequestId, backend: &mut dyn Backend) -> Option<Option<AdapterId>> {
        let place = self.jobs.iter().position(|j| j.id == id)?;
        self.open.retain(|open| {
            if open.job == id {
                open.seqs.iter().for_each(|seq| backend.close(*seq));
            }
            open.job != id
        });
        self.jobs.remove(place).map(|job| job.adapter)
    }

    /// The evaluation that open row `at` belongs to.
    pub(super) fn id(&self, at: usize) -> Option<RequestId> {
        self.open.get(at).map(|o| o.job)
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.jobs.iter().map(|j| j.id).collect()
    }
}

/// The event of an evaluation that failed.
pub(super) fn failed(id: RequestId, kind: FailureKind, message: String) -> Event {
    Event::Failed { id, kind, message }
}

/// What turns a row of logits into log-probabilities: ln p(i) = x_i − max − ln Σ exp(x − max).
struct Likelihood {
    best: usize,
    max: f64,
    log_sum: f64,
}

impl Likelihood {
    /// Leaves the probabilities in `scratch`.
    fn of(row: &[f32], scratch: &mut Vec<f32>) -> Likelihood {
        scratch.clear();
        scratch.extend_from_slice(row);
        softmax(scratch);
        let best = argmax(row);
        Likelihood { best, max: f64::from(row[best]), log_sum: -f64::from(scratch[best]).ln() }
    }

    fn nll(&self, row: &[f32], token: u32) -> f64 {
        self.max - f64::from(row[token as usize]) + self.log_sum
    }

    /// KL(self ‖ other); `p` are the probabilities of `row`, which belongs to self.
    fn divergence(&self, p: &[f32], row: &[f32], other: &Likelihood, others: &[f32]) -> f64 {
        let shift = other.max + other.log_sum - self.max - self.log_sum;
        let sum: f64 = p.iter().zip(row.iter().zip(others)).map(|(p, (x, y))| f64::from(*p) * f64::from(x - y)).sum();
        sum + shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_are_those_of_the_softmax() {
        let (a, b) = ([1.0f32, -2.0, 0.5, 3.0], [0.0f32, 1.0, 0.5, -1.0]);
        let log_softmax = |row: &[f32]| -> Vec<f64> {
            let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            row.iter().map(|x| f64::from(*x) - total.ln()).collect()
        };
        let (la, lb) = (log_softmax(&a), log_softmax(&b));
        let mut scratch = Vec::new();
        let (pa, pb) = (Likelihood::of(&a, &mut scratch), Likelihood::of(&b, &mut scratch));
        assert_eq!((pa.best, pb.best), (3, 1));
        for i in 0..4 {
            assert!((pa.nll(&a, i as u32) + la[i]).abs() < 1e-6);
        }
        let want: f64 = lb.iter().zip(&la).map(|(q, p)| q.exp() * (q - p)).sum();
        assert!((pb.divergence(&scratch, &b, &pa, &a) - want).abs() < 1e-6);
        // A token far below the others has a likelihood all the same.
        let far = [0.0f32, -500.0];
        assert!((Likelihood::of(&far, &mut scratch).nll(&far, 1) - 500.0).abs() < 1e-4);
    }

    #[test]
    fn rows_that_cannot_be_scored_are_refused_with_a_reason() {
        let info = super::super::host_tests::info(4);
        let row = |len: usize, scored_from| EvalRow { ids: vec![1; len], scored_from };
        assert_eq!(refusal(&[row(5, 1), row(2, 1)], true, &info), None);
        for (rows, word) in [
            (vec![row(5, 0)], "scored_from is 0"),
            (vec![row(5, 5)], "scored_from is 5"),
            (vec![row(0, 1)], "scored_from is 1"),
            (vec![EvalRow { ids: vec![1, 99], scored_from: 1 }], "token 99"),
            (vec![row(2, 1); EVAL_ROWS_MAX + 1], "over the limit"),
        ] {
            let found = refusal(&rows, false, &info).unwrap();
            assert!(found.contains(word), "{found}");
        }
        let small = super::super::host_tests::info(2);
        assert!(refusal(&[row(5, 1)], true, &small).unwrap().contains("it needs 3"));
        assert_eq!(refusal(&[row(5, 1)], false, &small), None);
    }
}
