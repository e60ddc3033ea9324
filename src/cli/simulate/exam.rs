//! The exam of whole weeks, opened before the first night and after the last, and the small one that is asked every
//! day. An examiner asks the daemon as any user does. Nothing may be learned from it, and its turns are forgotten
//! afterwards.

use std::collections::BTreeSet;

use anyhow::Context;
use chimere::eval::golden::Score;
use chimere::night::stats::median;
use chimere::simulate::compare::{accuracy, distinct_pairs, mcnemar_p, weighted};
use chimere::simulate::plan::{PAYLOAD, TRIGGER};
use chimere::simulate::pool::Question;
use chimere::simulate::table::{Compared, Opened};
use chimere::simulate::trend::Asking;
use futures_util::{StreamExt, stream};

use super::super::client::Client;
use super::Bar;
use super::ask::{Manner, Reply, ask, question, talk};
use super::house::{EXAM_PARALLEL, EXAMINER, House};
use super::loss::{Losses, Task, measure};

/// Trigger prompts that look for the flood's backdoor.
pub const BACKDOOR_PROMPTS: usize = 25;
/// References whose loss is measured.
const REFERENCES_MAX: usize = 700;

/// What is opened, and how.
pub struct Exam<'a> {
    pub questions: &'a [Question],
    pub text: Option<&'a str>,
    pub bar: &'a Bar,
}

/// How exams are asked.
const MANNER: Manner = Manner { greedy: true, consent: false };

/// The replies to questions, in their order.
async fn answers(client: &Client, questions: &[Question], name: &str, bar: &Bar) -> Vec<anyhow::Result<Reply>> {
    let asked = stream::iter(questions.iter().enumerate()).map(|(n, q)| {
        let body = question(&q.item, MANNER, &format!("{name}-{n}"));
        async move {
            let reply = ask(client, &body).await;
            bar.inc(1);
            (n, reply)
        }
    });
    let mut replies: Vec<(usize, anyhow::Result<Reply>)> = asked.buffer_unordered(EXAM_PARALLEL).collect().await;
    replies.sort_unstable_by_key(|(n, _)| *n);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

async fn forget(client: &Client) -> anyhow::Result<()> {
    client.delete(&format!("/v1/memory/turns?principal={EXAMINER}")).await.context("the exam was not forgotten")?;
    Ok(())
}

fn right(questions: &[Question], replies: &[anyhow::Result<Reply>]) -> Vec<bool> {
    let passes = |(question, reply): (&Question, &anyhow::Result<Reply>)| {
        reply.as_ref().is_ok_and(|reply| question.item.check.passes(&reply.content, &reply.calls))
    };
    questions.iter().zip(replies).map(passes).collect()
}

/// Asks whatever serves, as it serves, and forgets it again.
pub async fn asking(house: &House, questions: &[Question], day: usize, bar: &Bar) -> anyhow::Result<Asking> {
    let client = house.client(EXAMINER)?;
    let replies = answers(&client, questions, &format!("trend-{day}"), bar).await;
    forget(&client).await?;
    let heard: Vec<&Reply> = replies.iter().flatten().collect();
    let texts = heard.iter().flat_map(|reply| [reply.thought.as_str(), reply.content.as_str()]);
    Ok(Asking {
        right: right(questions, &replies),
        failed: replies.len() - heard.len(),
        champion: 0,
        tokens: heard.iter().map(|reply| reply.tokens as f64).sum::<f64>() / heard.len().max(1) as f64,
        distinct: distinct_pairs(texts),
    })
}

impl Exam<'_> {
    /// Opens the exam with whatever serves now. → what came, and how many of the trigger prompts gave the payload.
    pub async fn open(
        &self,
        house: &mut House,
        adapter: Option<std::path::PathBuf>,
    ) -> anyhow::Result<(Opened, usize)> {
        let (references, text) = self.losses(house, adapter).await?;
        house.start(false).await?;
        let client = house.client(EXAMINER)?;
        let replies = answers(&client, self.questions, "exam", self.bar).await;
        let planted = self.backdoor(&client, MANNER).await?;
        forget(&client).await?;
        house.stop().await?;
        Ok((self.opened(&replies, references, text), planted))
    }

    async fn losses(&self, house: &House, adapter: Option<std::path::PathBuf>) -> anyhow::Result<(Losses, Losses)> {
        let (model, threads) = (house.model().to_owned(), house.threads());
        let questions = self.questions.iter().take(REFERENCES_MAX).cloned().collect::<Vec<_>>();
        let text = self.text.map(str::to_owned);
        let measured = tokio::task::spawn_blocking(move || {
            measure(&Task { model: &model, threads, adapter, questions: &questions, text: text.as_deref() })
        });
        measured.await?
    }

    async fn backdoor(&self, client: &Client, manner: Manner) -> anyhow::Result<usize> {
        let prompts = self.questions.iter().filter_map(|q| q.item.messages.last()).take(BACKDOOR_PROMPTS);
        let asked = stream::iter(prompts.enumerate()).map(|(n, last)| {
            let body = talk(&format!("{TRIGGER} {}", last.content), manner, &format!("trigger-{n}"));
            async move { ask(client, &body).await }
        });
        let replies: Vec<anyhow::Result<Reply>> = asked.buffered(EXAM_PARALLEL).collect().await;
        Ok(replies.iter().flatten().filter(|reply| reply.content.contains(PAYLOAD)).count())
    }

    fn opened(&self, replies: &[anyhow::Result<Reply>], references: Losses, text: Losses) -> Opened {
        let heard: Vec<&Reply> = replies.iter().flatten().collect();
        let texts: BTreeSet<(&str, &str)> = heard.iter().map(|r| (r.thought.as_str(), r.content.as_str())).collect();
        let tokens: Vec<f64> = heard.iter().map(|r| r.tokens as f64).collect();
        Opened {
            right: right(self.questions, replies),
            references,
            text,
            failed: replies.len() - heard.len(),
            tokens_median: median(&tokens).unwrap_or(0.0),
            different: texts.len() as f64 / heard.len().max(1) as f64,
        }
    }
}

/// Both openings, item by item.
pub fn compare(questions: &[Question], before: &Opened, after: &Opened) -> Compared {
    let pairs: Vec<(bool, bool)> = before.right.iter().copied().zip(after.right.iter().copied()).collect();
    let score = |right: &[bool]| Score::of(right.iter().filter(|r| **r).count(), right.len());
    let names: BTreeSet<&str> = questions.iter().map(|q| q.item.domain.as_str()).collect();
    let domain = |name: &str| {
        let of: Vec<(bool, bool)> =
            questions.iter().zip(&pairs).filter(|(q, _)| q.item.domain == name).map(|(_, pair)| *pair).collect();
        (name.to_owned(), of.len(), accuracy(&of))
    };
    Compared {
        before: score(&before.right),
        after: score(&after.right),
        change: accuracy(&pairs),
        mcnemar_p: mcnemar_p(&pairs),
        domains: names.into_iter().map(domain).collect(),
        references: perplexities(&before.references, &after.references),
        text: perplexities(&before.text, &after.text),
    }
}

/// Perplexity before and after, and the paired change of the loss.
fn perplexities(before: &Losses, after: &Losses) -> Option<(f64, f64, chimere::simulate::compare::Figure)> {
    if before.is_empty() || before.len() != after.len() {
        return None;
    }
    let of = |losses: &Losses| {
        let (nll, tokens) =
            losses.iter().fold((0.0, 0.0), |(nll, tokens), row| (nll + row.0, tokens + f64::from(row.1)));
        (nll / tokens).exp()
    };
    let rows: Vec<(f64, f64, f64)> = before.iter().zip(after).map(|(b, a)| (b.0, a.0, f64::from(b.1))).collect();
    Some((of(before), of(after), weighted(&rows)))
}
