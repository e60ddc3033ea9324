//! The phase `reindex`: makes the index of verified exchanges anew from the turn log and takes it into use.

use super::desk::blocking;
use super::reinforce::People;
use super::work::Work;
use crate::embed::index::TEXT_BYTES_MAX;
use crate::embed::{Code, Example, Examples, Index};
use crate::night::phase::Event;
use crate::turn::{Message, Role, Turn};

/// Times that the index is made anew because something was forgotten meanwhile.
const TRIES: usize = 3;

impl Work {
    pub(super) async fn reindex(&self) -> Result<Event, String> {
        let examples = &self.desk.examples;
        if let Err(why) = examples.embedder() {
            return Ok(Event::Nothing { words: why.to_owned() });
        }
        let people = self.people().await?;
        for _ in 0..TRIES {
            let forgotten = examples.forgotten();
            let (mut exchanges, mut refused) = (Vec::new(), 0u64);
            self.each_turn(|turn| match exchange(&people, turn) {
                Some(exchange) => exchanges.push(exchange),
                None => refused += 1,
            })
            .await?;
            // The newest first: they stay where there are too many.
            exchanges.reverse();
            let maker = examples.clone();
            let index = blocking(move || made(&maker, exchanges)).await??;
            let (words, same) = (said(&index, &examples.index(), refused), *examples.index() == index);
            if same || self.run.order.dry_run {
                return Ok(Event::Nothing { words });
            }
            self.desk.pass("reindex.made").map_err(|error| error.to_string())?;
            let target = examples.clone();
            let taken = blocking(move || target.replace(index, forgotten)).await?;
            if taken.map_err(|error| error.to_string())? {
                return Ok(Event::Passed { words });
            }
        }
        Err(format!("turns were forgotten while the index was made, {TRIES} times: run it again"))
    }
}

/// Counts and embeds the exchanges.
fn made(examples: &Examples, exchanges: Vec<Example>) -> Result<Index, String> {
    let embedder = examples.embedder()?;
    let found = exchanges.into_iter().map(|example| {
        let tokens = embedder.tokens(&example.question).len() + embedder.tokens(&example.answer).len();
        let code = Code::of(&embedder.embed(&example.question));
        (Example { tokens: tokens as u32, ..example }, code)
    });
    Ok(Index::new(embedder.width(), embedder.digest(), found.collect()))
}

fn said(index: &Index, before: &Index, refused: u64) -> String {
    let shared = index.examples().iter().filter(|example| example.shared).count();
    format!(
        "{} verified exchanges in the index, {shared} of them for everybody; {} before; {refused} turns may not be shown",
        index.examples().len(),
        before.examples().len()
    )
}

/// The exchange of a turn that may be learned from and that stands by itself: one question, one answer in words.
fn exchange(people: &People, turn: &Turn) -> Option<Example> {
    let answer = people.admit(turn).ok()?.text;
    let mut said = turn.conversation();
    let (Some(Message { role: Role::User, content: question, .. }), None) = (said.next(), said.next()) else {
        return None;
    };
    let fits = |text: &str| !text.trim().is_empty() && text.len() <= TEXT_BYTES_MAX;
    (fits(question) && fits(&answer)).then(|| Example {
        turn: turn.id.0.clone(),
        conversation: turn.conversation.clone(),
        principal: turn.principal.clone(),
        time_ms: turn.time_ms,
        question: question.clone(),
        answer: answer.trim().to_owned(),
        ..Example::default()
    })
}
