//! The phase `reindex`: makes the index of verified exchanges anew from the turn log and takes it into use.

use std::collections::VecDeque;
use std::time::Duration;

use super::desk::blocking;
use super::reinforce::People;
use super::work::Work;
use crate::embed::embedder::Unembedded;
use crate::embed::index::{EXAMPLES_MAX, TEXT_BYTES_MAX};
use crate::embed::{Example, Index};
use crate::night::phase::Event;
use crate::plural::counted;
use crate::turn::{Message, Role, Turn};

/// Times that the index is made anew because something was forgotten meanwhile.
const TRIES: usize = 3;
/// Longest wait for the engine of a hosted embedding model.
const ENGINE_WAIT: Duration = Duration::from_secs(120);

impl Work {
    pub(super) async fn reindex(&self) -> Result<Event, String> {
        let examples = &self.desk.examples;
        let embedder = match examples.embedder() {
            Ok(embedder) => embedder,
            Err(why) => return Ok(Event::Nothing { words: why.to_owned() }),
        };
        match embedder.ready(ENGINE_WAIT).await {
            Ok(()) => {}
            Err(why @ Unembedded::Never(_)) => return Ok(Event::Nothing { words: why.to_string() }),
            Err(why) => return Err(why.to_string()),
        }
        let people = self.people().await?;
        for _ in 0..TRIES {
            let forgotten = examples.forgotten();
            let (mut newest, mut refused) = (Newest::of(EXAMPLES_MAX), 0u64);
            self.each_turn(|turn| match exchange(&people, turn) {
                Some(exchange) => newest.take(exchange),
                None => refused += 1,
            })
            .await?;
            let older = newest.older;
            let made = embedder.index(newest.newest_first().collect(), &examples.index()).await;
            let index = made.map_err(|why| why.to_string())?;
            let (words, same) = (said(&index, &examples.index(), refused, older), *examples.index() == index);
            if same {
                return Ok(Event::Nothing { words });
            }
            if self.run.order.dry_run {
                return Ok(Event::WouldChange { words });
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

/// The last exchanges of a log that is read from its beginning: no more of them are ever held than an index takes.
struct Newest {
    kept: VecDeque<Example>,
    max: usize,
    /// Exchanges that newer ones displaced.
    older: u64,
}

impl Newest {
    fn of(max: usize) -> Newest {
        Newest { kept: VecDeque::new(), max, older: 0 }
    }

    fn take(&mut self, exchange: Example) {
        if self.kept.len() >= self.max {
            self.kept.pop_front();
            self.older += 1;
        }
        self.kept.push_back(exchange);
    }

    fn newest_first(self) -> impl Iterator<Item = Example> {
        self.kept.into_iter().rev()
    }
}

fn said(index: &Index, before: &Index, refused: u64, older: u64) -> String {
    let shared = index.examples().iter().filter(|example| example.shared).count();
    let mut words = format!(
        "{} in the index, {shared} of them for everybody; {} before. {} not be shown",
        counted(index.examples().len(), "verified exchange", "verified exchanges"),
        before.examples().len(),
        counted(refused, "turn may", "turns may")
    );
    if older > 0 {
        let older = counted(older, "was", "were");
        words.push_str(&format!(". {older} left out, older than the newest {EXAMPLES_MAX}"));
    }
    words
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_are_held() {
        let mut newest = Newest::of(3);
        for time_ms in 0..10 {
            newest.take(Example { time_ms, ..Example::default() });
            assert!(newest.kept.len() <= 3);
        }
        assert_eq!(newest.older, 7);
        let times: Vec<i64> = newest.newest_first().map(|example| example.time_ms).collect();
        assert_eq!(times, [9, 8, 7]);
        let mut few = Newest::of(3);
        few.take(Example::default());
        assert_eq!((few.older, few.newest_first().count()), (0, 1));
    }

    #[test]
    fn a_night_says_what_was_left_out() {
        let none = Index::new(2, [0; 32], Vec::new());
        assert!(!said(&none, &none, 4, 0).contains("left out"));
        let said = said(&none, &none, 123_456, 123_456);
        assert!(said.split(". ").all(|part| part.split_whitespace().count() <= 17), "{said}");
        assert!(said.ends_with(". 123456 were left out, older than the newest 100000"));
    }
}
