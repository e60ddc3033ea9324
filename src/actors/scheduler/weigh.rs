//! The phase `weigh`: what the learned tables do to answers. Items of the slice exam are asked with them, as one of those
//! who have a table would be, and without, all else the same. Only counts are kept: what a principal's own table made of
//! an answer is shown to nobody. The tables stay whatever is found; what is worth nothing is the owner's to see.

use std::time::{Duration, Instant};

use super::desk::on_battery;
use super::exam::{ask_each, how};
use super::examine::open;
use super::reinforce::{learned_tables, read};
use super::work::Work;
use crate::engram::learned::NAME;
use crate::engram::shelf::Shelf;
use crate::eval::golden::{self, Exam, ITEMS_MAX, Item};
use crate::night::phase::{Event, Job};
use crate::night::report::EngramEffect;
use crate::turn::EngramChoice;

const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);

impl Work {
    pub(super) async fn weigh(&self) -> Result<Event, String> {
        let settings = self.schedule.engram;
        let deadline = Instant::now() + Duration::from_secs_f64(60.0 * settings.minutes_max);
        let readers = readers(&self.desk.board.shelf());
        let battery = || on_battery() && self.schedule.jobs.get(&Job::Train).is_none_or(|train| !train.on_battery);
        let why = if settings.items_max == 0 {
            Some("night.yaml asks for no items (engram.items_max)")
        } else if readers.is_empty() {
            Some("there is no learned table")
        } else if battery() {
            Some("the machine runs on its battery")
        } else {
            None
        };
        if let Some(why) = why {
            return Ok(Event::Nothing { words: format!("no item was asked: {why}") });
        }
        let items = self.items_with_tables(settings.items_max).await?;
        if items.is_empty() {
            let words = format!("no item was asked: no route that the slice exam reaches names the table `{NAME}`");
            return Ok(Event::Nothing { words });
        }
        let effect = self.effect(&items, &readers, deadline).await?;
        let words = effect.words();
        let dir = self.desk.run_dir(&self.run.order.id);
        let mut report = read(&dir).ok_or("what the writing did cannot be read again")?;
        report.effect = Some(effect);
        self.keep(report).await?;
        Ok(Event::Passed { words })
    }

    /// Items whose route uses the learned tables, with the weight that it gives them.
    async fn items_with_tables(&self, items_max: usize) -> Result<Vec<(Item, f32)>, String> {
        let set = self.desk.pipelines.current();
        let weight = |item: &Item| {
            let engram = set.get(&set.route(&item.messages).route)?.engram.as_ref()?;
            engram.tables.iter().any(|table| table == NAME).then_some(engram.lambda_max)
        };
        let slice = open(&self.desk.slice, ITEMS_MAX, self.run.order.seed).await?;
        Ok(slice.into_iter().filter_map(|item| weight(&item).map(|weight| (item, weight))).take(items_max).collect())
    }

    /// Asks each item twice, side by side, until the deadline.
    async fn effect(
        &self,
        items: &[(Item, f32)],
        readers: &[Vec<String>],
        deadline: Instant,
    ) -> Result<EngramEffect, String> {
        let (_, base_hash) = self.desk.base(ENGINE_TIMEOUT).await?;
        let contender = self.champion(&base_hash).await?;
        contender.load(&self.desk).await?;
        self.desk.begin("slice exam with and without the learned tables", 2 * items.len());
        let exam = how(&self.desk);
        let in_time = items.iter().zip(readers.iter().cycle()).take_while(|_| Instant::now() < deadline);
        let requests = in_time.flat_map(|((item, lambda_max), tables)| {
            // A table that the engine does not have must not pass for one that changes nothing.
            let with = EngramChoice {
                tables: tables.clone(),
                lambda_max: *lambda_max,
                required: true,
                ..EngramChoice::default()
            };
            let ask = |engram| golden::ask(0, item, &Exam { engram, ..exam.clone() });
            [Ok((item, ask(Some(with)))), Ok((item, ask(None)))]
        });
        let outcomes = ask_each(&self.desk, requests, &contender, self.schedule.exam.parallel).await?;
        let pairs = outcomes.chunks_exact(2).map(|both| (&both[0], &both[1]));
        EngramEffect::of(pairs).ok_or_else(|| {
            let why = outcomes.iter().find_map(|outcome| outcome.error.clone());
            format!("no item was answered both ways: {}", why.unwrap_or_else(|| "no time was left".to_owned()))
        })
    }
}

/// The tables that a reply may have, for each of those who have one of their own: it and the shared one.
fn readers(shelf: &Shelf) -> Vec<Vec<String>> {
    let (shared, own): (Vec<_>, Vec<_>) = learned_tables(shelf).into_iter().partition(|table| table.owner.is_none());
    let shared: Vec<String> = shared.into_iter().map(|table| table.name).collect();
    if own.is_empty() && !shared.is_empty() {
        return vec![shared];
    }
    own.into_iter().map(|table| [shared.as_slice(), &[table.name]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engram::shelf::Listed;

    fn table(name: &str, owner: Option<&str>) -> Listed {
        Listed {
            name: name.to_owned(),
            path: "t".into(),
            owner: owner.map(str::to_owned),
            contexts: 1,
            entries: 1,
            bytes: 1,
            ..Listed::default()
        }
    }

    #[test]
    fn nobody_is_asked_with_the_table_of_another() {
        let shelf = |tables: Vec<Listed>| Shelf { tables, refused: Vec::new() };
        let (shared, ada, bob) =
            (table("learned", None), table("learned-a", Some("ada")), table("learned-b", Some("bob")));
        let other = table("kine", None);
        assert_eq!(readers(&shelf(vec![other.clone()])), Vec::<Vec<String>>::new());
        assert_eq!(readers(&shelf(vec![other.clone(), shared.clone()])), [["learned"]]);
        assert_eq!(readers(&shelf(vec![ada.clone()])), [["learned-a"]]);
        assert_eq!(
            readers(&shelf(vec![other, shared, ada, bob])),
            [["learned", "learned-a"], ["learned", "learned-b"]]
        );
    }
}
