//! How unlikely the champion finds the replies that a night is about to learn. The serving engine scores a sample of
//! each principal's pairs between live steps. What cannot be measured is left out; the night goes on without it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::work::Work;
use crate::actors::inference::{Adapt, Ask};
use crate::engine::protocol::{EvalRow, Event};
use crate::night::dataset::{Row, Signal};
use crate::night::served::revision;
use crate::turn::{Thinking, Turn};

/// Of one principal's corrections, and of its confirmed replies, so many are measured, the newest first: a few of a bad day
/// must not hide behind many of good ones.
const SAMPLE_MAX: usize = 40;
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
const EVALUATE_TIMEOUT: Duration = Duration::from_secs(1_800);

/// What is needed of a turn to score its pair.
pub(super) struct Prompted {
    prompt_ids: Vec<u32>,
    /// The reply's ids, where the model wrote it itself.
    own: Vec<u32>,
    open: bool,
}

impl Prompted {
    pub(super) fn of(turn: &Turn) -> Prompted {
        let own = turn.generations.first().map(|g| [g.thinking_ids.as_slice(), &g.reply_ids].concat());
        Prompted {
            prompt_ids: turn.prompt_ids.clone(),
            own: own.unwrap_or_default(),
            open: turn.thinking != Thinking::Off,
        }
    }
}

impl Work {
    /// Loss of the sampled pairs under the champion, nats a token, by the pair's id.
    pub(super) async fn losses(
        &self,
        rows: &[Row],
        prompted: &BTreeMap<String, Prompted>,
    ) -> Result<BTreeMap<String, f64>, String> {
        let mut taken = BTreeMap::<(&str, Signal), usize>::new();
        let (mut ids, mut asked) = (Vec::new(), Vec::new());
        // Turn ids sort by time, and so do the rows.
        for row in rows.iter().rev().filter(|row| !row.origin.replayed) {
            let Some(turn) = prompted.get(&row.id) else { continue };
            let count = taken.entry((&row.origin.author, row.origin.signal)).or_default();
            if *count == SAMPLE_MAX {
                continue;
            }
            *count += 1;
            let reply = match row.origin.signal {
                Signal::ThumbsUp => turn.own.clone(),
                Signal::Correction => self.tokenised(row, turn.open).await?,
            };
            if !turn.prompt_ids.is_empty() && !reply.is_empty() {
                let scored_from = turn.prompt_ids.len();
                ids.push(row.id.clone());
                asked.push(EvalRow { ids: [turn.prompt_ids.as_slice(), &reply].concat(), scored_from });
            }
        }
        if asked.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.desk.begin("measuring pairs", 0);
        let evaluate = Adapt::Evaluate { adapter: revision(self.pointer.champion), rows: asked, with_kl: false };
        match self.desk.inference.send_within(evaluate, EVALUATE_TIMEOUT).await {
            Ok(Ok(Event::Evaluated { rows, .. })) => {
                let per_token = rows.iter().map(|row| row.nll / f64::from(row.tokens.max(1)));
                Ok(ids.into_iter().zip(per_token).filter(|(_, loss)| loss.is_finite()).collect())
            }
            Ok(Ok(Event::Failed { message, .. })) => Err(message),
            Ok(Ok(_)) => Err("the engine answered something else than was asked".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A reply that the model did not write, as ids behind its prompt.
    async fn tokenised(&self, row: &Row, open: bool) -> Result<Vec<u32>, String> {
        let thought = row.reply.reasoning_content.as_deref().unwrap_or_default();
        let head = if open { format!("{thought}\n</think>\n\n") } else { String::new() };
        let text = format!("{head}{}", row.reply.content);
        let ask = Ask::Tokenize { text, specials: true };
        match self.desk.inference.send_within(ask, ASK_TIMEOUT).await {
            Ok(Ok(Event::Tokens { ids, .. })) => Ok(ids),
            Ok(Ok(_)) => Err("the engine answered something else than was asked".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}
