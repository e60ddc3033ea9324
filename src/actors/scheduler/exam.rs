//! Asks champion and candidate the same exam items as background requests, side by side, and checks both.
//! The exam `week` is never asked here: it is kept for measuring whole weeks.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{sleep, timeout};

use super::desk::{Desk, ExamPath, blocking};
use super::host::Contender;
use crate::actors::inference::{FromEngine, InferenceError, Submit};
use crate::engine::protocol::{Event, Generate};
use crate::eval::golden::{self, Exam, Item, Outcome};
use crate::night::answers::{Answer, Answers};
use crate::night::gate::{Pair, Speed};
use crate::night::inspect::hash_file;
use crate::night::report::Answered;
use crate::night::stats::ratio_interval;
use crate::training::recipe::Random;
use crate::turn::{Role, Thinking, Timings, Usage};

/// Longest wait for one item of both revisions; live requests go first.
const ITEM_TIMEOUT: Duration = Duration::from_secs(1_800);
/// Engines that may be lost under one item.
const TRIES: usize = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for another engine.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);
/// Tokens of thought before it is closed, as `chimere eval golden` asks.
const THINKING_TOKENS: u32 = 192;
/// Rounds, tokens and most sequences of the speed measurement: the batch that the gate's limits of speed were set for.
const SPEED_ROUNDS: usize = 6;
const SPEED_TOKENS: u32 = 48;
const SPEED_SEQUENCES: usize = 4;

/// An item that both answered, with what the divergence is measured on.
pub(super) struct Asked {
    pub(super) answered: Answered,
    /// Prompt and reply of the champion, and where the reply begins.
    pub(super) ids: Vec<u32>,
    pub(super) reply_from: usize,
}

/// Reads an exam: its items in an order that takes the domains in turn, so that any first part is balanced, and those of a
/// domain as the seed draws them. A night that asks a part of an exam asks another part than the night before: a champion
/// was let in for its luck with some items as well, and its successors would be measured against that luck.
pub(super) fn read(path: &Path, items_max: usize, seed: u64) -> Result<Vec<Item>, String> {
    let items = golden::read(path).map_err(|error| error.to_string())?;
    if items.iter().any(|item| item.id.starts_with("week")) {
        return Err(format!("{} is the exam of whole weeks: no night may read it", path.display()));
    }
    let mut seen = std::collections::HashMap::<String, usize>::new();
    let mut order: Vec<(usize, usize)> = Vec::with_capacity(items.len());
    for at in Random::new(seed).shuffled(items.len()) {
        let nth = seen.entry(items[at].domain.clone()).or_default();
        order.push((*nth, at));
        *nth += 1;
    }
    order.sort_unstable();
    order.truncate(items_max);
    let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|(_, at)| items[at].take()).collect())
}

/// Champion and candidate, with what each has answered already.
pub(super) struct Both<'a> {
    pub(super) contenders: [&'a Contender; 2],
    pub(super) answers: [Answers; 2],
}

/// Everything that an answer depends on, the revision aside: model and engine, the exams, how they are asked.
pub(super) async fn asked_how(desk: &Desk, base_hash: &str, exams: [&ExamPath; 2]) -> Result<Vec<String>, String> {
    let mut parts = vec![base_hash.to_owned(), THINKING_TOKENS.to_string(), env!("CARGO_PKG_VERSION").to_owned()];
    if let Some(hosted) = desk.board.hosted() {
        parts.extend([hosted.model.backend.clone(), hosted.model.device.clone(), hosted.template_hash.clone()]);
    }
    for path in exams.into_iter().flatten() {
        let path = path.clone();
        let hashed = blocking(move || hash_file(&path)).await?;
        parts.push(hashed.map_err(|error| format!("an exam cannot be read: {error}"))?.0);
    }
    Ok(parts)
}

/// How the items are asked: greedily, after a bounded thought where the model thinks.
pub(super) fn how(desk: &Desk) -> Exam {
    let thinks = desk.board.hosted().is_none_or(|hosted| hosted.thinks);
    let thinking = if thinks { Thinking::On { budget_tokens: THINKING_TOKENS } } else { Thinking::Template };
    Exam { thinking, ..Exam::default() }
}

/// Asks every item of both, as far as they have not answered it; in the order of the items.
pub(super) async fn ask(
    desk: &Desk,
    items: &[Item],
    both: &mut Both<'_>,
    parallel: usize,
) -> Result<Vec<Asked>, String> {
    let known = &both.answers;
    let contenders = both.contenders;
    let asked = stream::iter(items.iter().enumerate()).map(|(at, item)| async move {
        let known = [known[0].get(&item.id), known[1].get(&item.id)];
        let asked = timeout(ITEM_TIMEOUT, ask_one(desk, item, contenders, known)).await;
        desk.tick();
        let late = |_| Err(format!("{} was not answered within {} s", item.id, ITEM_TIMEOUT.as_secs()));
        (at, asked.unwrap_or_else(late))
    });
    // As they end: a long reply keeps no place of the batch empty behind it.
    let mut asked = asked.buffer_unordered(parallel);
    let mut all = BTreeMap::new();
    while let Some((at, one)) = asked.next().await {
        all.insert(at, one?);
    }
    drop(asked);
    let mut told = Vec::with_capacity(all.len());
    for (item, answers) in items.iter().zip(all.into_values()) {
        told.push(asked_of(item, &answers));
        both.answers.iter_mut().zip(answers).for_each(|(kept, answer)| kept.put(answer));
    }
    let mut answers = std::mem::take(&mut both.answers);
    let (answers, saved) = blocking(move || {
        let saved = answers.iter_mut().try_for_each(Answers::save);
        (answers, saved)
    })
    .await?;
    both.answers = answers;
    saved.map_err(|error| format!("the answers to the exams cannot be kept: {error}"))?;
    Ok(told)
}

/// The answers of both, asked together where neither is known.
async fn ask_one(
    desk: &Desk,
    item: &Item,
    contenders: [&Contender; 2],
    known: [Option<&Answer>; 2],
) -> Result<[Answer; 2], String> {
    let exam = how(desk);
    let open: Vec<&Contender> =
        contenders.into_iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(c, _)| c).collect();
    let requests = || open.iter().map(|contender| contender.asks(golden::ask(0, item, &exam))).collect();
    let replies = if open.is_empty() { Vec::new() } else { submit(desk, requests, contenders).await? };
    let mut new = replies.into_iter().map(|reply| {
        let mut outcome = Outcome::blank(item);
        for event in reply.events {
            outcome.take(event);
        }
        let judged = golden::judge(item, outcome);
        let reply_from = reply.prompt_ids.len();
        let ids = [reply.prompt_ids, reply.ids].concat();
        Answer { id: item.id.clone(), passed: judged.passed, reply: judged.reply, ids, reply_from }
    });
    let mut answer = |known: Option<&Answer>| known.cloned().or_else(|| new.next());
    match (answer(known[0]), answer(known[1])) {
        (Some(champion), Some(candidate)) => Ok([champion, candidate]),
        _ => Err("the engine answered fewer requests than it was asked".to_owned()),
    }
}

fn asked_of(item: &Item, [champion, candidate]: &[Answer; 2]) -> Asked {
    let question = item.messages.iter().rev().find(|m| m.role == Role::User).map(|m| m.content.clone());
    Asked {
        answered: Answered {
            pair: Pair {
                id: item.id.clone(),
                domain: item.domain.clone(),
                champion: champion.passed,
                candidate: candidate.passed,
            },
            question: question.unwrap_or_default(),
            champion: champion.reply.clone(),
            candidate: candidate.reply.clone(),
        },
        ids: champion.ids.clone(),
        reply_from: champion.reply_from,
    }
}

/// Asks one of them each of the requests alone, so many at once; outcomes in the order of the requests.
pub(super) async fn ask_each<'a>(
    desk: &Desk,
    requests: impl Iterator<Item = Result<(&'a Item, Generate), String>>,
    contender: &Contender,
    parallel: usize,
) -> Result<Vec<Outcome>, String> {
    let asked = stream::iter(requests).map(|asked| async move {
        let (item, request) = asked?;
        let outcome = ask_alone(desk, Some(item), &request, contender).await;
        desk.tick();
        outcome
    });
    asked.buffered(parallel).try_collect().await
}

/// Asks one of them alone; `item`, if any, is what the reply is checked against.
pub(super) async fn ask_alone(
    desk: &Desk,
    item: Option<&Item>,
    request: &Generate,
    contender: &Contender,
) -> Result<Outcome, String> {
    let requests = || vec![contender.asks(request.clone())];
    let asked = timeout(ITEM_TIMEOUT, submit(desk, requests, [contender, contender])).await;
    let late = |_| format!("a question was not answered within {} s", ITEM_TIMEOUT.as_secs());
    let mut outcome = item.map(Outcome::blank).unwrap_or_default();
    for event in asked.map_err(late)??.into_iter().flat_map(|reply| reply.events) {
        outcome.take(event);
    }
    Ok(match item {
        Some(item) => golden::judge(item, outcome),
        None => outcome,
    })
}

#[derive(Default)]
struct Reply {
    events: Vec<Event>,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    usage: Usage,
    timings: Timings,
    last: bool,
}

impl Reply {
    fn take(&mut self, event: Event) {
        match &event {
            Event::Started { prompt_ids, .. } => self.prompt_ids.clone_from(prompt_ids),
            Event::Token(token) => self.ids.push(token.token),
            Event::Finished { usage, timings, .. } => {
                (self.usage, self.timings, self.last) = (*usage, *timings, true);
            }
            Event::Failed { .. } => self.last = true,
            _ => {}
        }
        self.events.push(event);
    }
}

/// Sends requests and gathers their replies; sends them again when the engine is lost or full.
async fn submit(
    desk: &Desk,
    requests: impl Fn() -> Vec<Generate>,
    contenders: [&Contender; 2],
) -> Result<Vec<Reply>, String> {
    let mut why = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            sleep(RETRY_PAUSE).await;
            desk.base(ENGINE_TIMEOUT).await?;
            for contender in contenders {
                contender.load(desk).await?;
            }
        }
        match once(desk, requests()).await {
            Ok(replies) => return Ok(replies),
            Err(error) => why = error,
        }
    }
    Err(format!("the engine gave no answer in {TRIES} tries: {why}"))
}

async fn once(desk: &Desk, requests: Vec<Generate>) -> Result<Vec<Reply>, String> {
    let count = requests.len();
    let mut events = loop {
        match desk.inference.send(Submit { choices: requests.clone() }).await {
            Ok(Ok(events)) => break events,
            // Live requests fill the engine: wait for room.
            Ok(Err(InferenceError::Busy)) => sleep(RETRY_PAUSE).await,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(error) => return Err(error.to_string()),
        }
    };
    let mut replies: Vec<Reply> = (0..count).map(|_| Reply::default()).collect();
    while replies.iter().any(|reply| !reply.last) {
        match events.recv().await {
            Some((choice, FromEngine::Event(event))) => {
                if let Some(reply) = replies.get_mut(choice as usize) {
                    reply.take(event);
                }
            }
            Some((_, FromEngine::Lost(message))) => return Err(message),
            None => return Err("the engine's events ended early".to_owned()),
        }
    }
    Ok(replies)
}

/// Tokens a second of the candidate over the champion's: rounds in turn, each alone in its part of the batch,
/// by the engine's own clock. `None` where too few rounds gave a figure.
pub(super) async fn speed(
    desk: &Desk,
    items: &[Item],
    champion: &Contender,
    candidate: &Contender,
    parallel: usize,
) -> Result<Option<Speed>, String> {
    let sequences = parallel.clamp(1, SPEED_SEQUENCES) * usize::from(!items.is_empty());
    let items: Vec<&Item> = items.iter().cycle().take(sequences).collect();
    let exam = Exam { thinking: Thinking::Off, ..Exam::default() };
    let mut ratios = Vec::new();
    for round in 0..SPEED_ROUNDS {
        // Who goes first changes, so that a drift of the machine favours nobody.
        let order = if round % 2 == 0 { [champion, candidate] } else { [candidate, champion] };
        let mut rates = [0.0; 2];
        for (rate, contender) in rates.iter_mut().zip(order) {
            let requests = || {
                let ask = |item: &&Item| Generate {
                    ignore_end: true,
                    max_tokens: SPEED_TOKENS,
                    ..contender.asks(golden::ask(0, item, &exam))
                };
                items.iter().map(ask).collect()
            };
            let replies = submit(desk, requests, [champion, candidate]).await?;
            let tokens: u32 = replies.iter().map(|r| r.usage.completion_tokens).sum();
            *rate = f64::from(tokens) / replies.iter().map(|r| r.timings.decode_ms).sum::<f64>();
        }
        desk.tick();
        ratios.push(if round % 2 == 0 { rates[1] / rates[0] } else { rates[0] / rates[1] });
    }
    Ok(ratio_interval(&ratios).map(|(ratio, low, high)| Speed { ratio, low, high, rounds: ratios.len() }))
}

/// Rounds of the speed measurement, for the progress.
pub(super) const SPEED_STEPS: usize = SPEED_ROUNDS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_first_part_is_balanced_and_the_week_is_not_read() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/golden");
        let part = |seed| read(&golden.join("golden.jsonl.gz"), 70, seed).unwrap();
        let items = part(1);
        let mut domains = BTreeMap::<&str, usize>::new();
        items.iter().for_each(|item| *domains.entry(&item.domain).or_default() += 1);
        assert!(domains.len() == 7 && domains.values().all(|n| *n == 10), "{domains:?}");
        let ids = |items: &[Item]| items.iter().map(|item| item.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&items), ids(&part(1)), "a night that goes on asks the same");
        let other = ids(&part(2));
        let again = ids(&items).iter().filter(|id| other.contains(id)).count();
        assert!(again < 20, "{again} of 70 items of 2,100 came again the next night");
        let refused = read(&golden.join("week.jsonl.gz"), 70, 1).unwrap_err();
        assert!(refused.contains("no night may read it"), "{refused}");
    }
}
