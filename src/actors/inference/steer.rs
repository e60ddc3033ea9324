//! Brings an engine to its wanted state: paused or not, with which tables, which requests cancelled. A wanted state
//! stays until the pipe has taken it, so a full queue loses none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

use super::child::Report;
use super::session::{Entry, REGISTRY_MAX, Session};
use crate::engine::protocol::{Command, RequestId};
use crate::engram::shelf::Shelf;

pub(super) struct Steering {
    /// The engine should be paused.
    pub(super) pause: watch::Receiver<bool>,
    pub(super) shelf: watch::Receiver<Arc<Shelf>>,
    /// It is paused, as far as it said.
    paused: bool,
    /// A pause or resume was written and is not answered: one at a time.
    turning: bool,
    /// Name and digest of the tables that it was told to load.
    tables: BTreeMap<String, String>,
    /// Requests that nobody wants any more and whose end is not written yet.
    unwanted: BTreeSet<RequestId>,
    /// Something may be left to be written.
    due: bool,
}

impl Steering {
    pub(super) fn new(pause: watch::Receiver<bool>, shelf: watch::Receiver<Arc<Shelf>>) -> Steering {
        let (tables, unwanted) = (BTreeMap::new(), BTreeSet::new());
        Steering { pause, shelf, paused: false, turning: false, tables, unwanted, due: true }
    }
}

impl Session {
    /// Writes what is left to be written, as far as the pipe takes it.
    pub(super) fn steer(&mut self) {
        let changed = self.steering.shelf.has_changed().unwrap_or(false);
        if !self.ready || !(self.steering.due || changed) {
            return;
        }
        let tables = self.steer_tables();
        let pause = *self.steering.pause.borrow_and_update();
        if pause != self.steering.paused && !self.steering.turning {
            self.steering.turning = self.write(if pause { &Command::Pause } else { &Command::Resume }).is_ok();
        }
        while let Some(id) = self.steering.unwanted.first().copied()
            && self.write(&Command::Cancel { id }).is_ok()
        {
            self.steering.unwanted.remove(&id);
        }
        let turned = pause == self.steering.paused || self.steering.turning;
        self.steering.due = !(tables && turned && self.steering.unwanted.is_empty());
    }

    /// The wish was changed, perhaps twice: whoever waits for a pause is told where the engine is there already.
    pub(super) async fn wished(&mut self) {
        self.steering.due = true;
        self.steer();
        if !self.steering.turning && self.steering.paused && *self.steering.pause.borrow() {
            self.report(Report::Paused).await;
        }
    }

    /// The engine says that it is paused, or is no more.
    pub(super) async fn turned(&mut self, paused: bool) {
        (self.steering.paused, self.steering.turning, self.steering.due) = (paused, false, true);
        if *self.steering.pause.borrow() == paused {
            self.report(if paused { Report::Paused } else { Report::Resumed }).await;
        }
    }

    /// Ends a request at the next token.
    pub(super) fn cancel(&mut self, id: RequestId) {
        if self.write(&Command::Cancel { id }).is_err() && self.steering.unwanted.len() < REGISTRY_MAX {
            self.steering.unwanted.insert(id);
            self.steering.due = true;
        }
    }

    /// A request has ended by itself.
    pub(super) fn uncancel(&mut self, id: RequestId) {
        self.steering.unwanted.remove(&id);
    }

    /// Tells the engine of every table that it does not have as it stands on the shelf. False: of some not yet.
    fn steer_tables(&mut self) -> bool {
        let shelf = self.steering.shelf.borrow_and_update().clone();
        let gone = |name: &&String| shelf.tables.iter().all(|t| t.name != **name);
        let gone: Vec<String> = self.steering.tables.keys().filter(gone).cloned().collect();
        for name in gone {
            let id = self.board.next_id();
            if self.write(&Command::DropTable { id, name: name.clone() }).is_err() {
                return false;
            }
            self.steering.tables.remove(&name);
            self.registry.insert(id, Entry::Table(name));
        }
        for table in &shelf.tables {
            if self.steering.tables.get(&table.name) == Some(&table.digest) {
                continue;
            }
            let (id, name, digest) = (self.board.next_id(), table.name.clone(), table.digest.clone());
            let load = Command::LoadTable { id, name, path: table.path.clone(), digest };
            if self.write(&load).is_err() {
                return false;
            }
            self.steering.tables.insert(table.name.clone(), table.digest.clone());
            self.registry.insert(id, Entry::Table(table.name.clone()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::board::Board;
    use super::super::child::EngineSpec;
    use super::*;
    use crate::engine::protocol::{Event, read_frame};
    use crate::engram::shelf::Listed;

    struct Stand {
        session: Session,
        board: Arc<Board>,
        wish: watch::Sender<bool>,
        /// Takes one command.
        pipe: mpsc::Receiver<Vec<u8>>,
        heard: mpsc::Receiver<Report>,
    }

    fn stand() -> Stand {
        let board = Arc::new(Board::default());
        let (wish, pause) = watch::channel(false);
        let (writes, pipe) = mpsc::channel(1);
        let (reports, heard) = mpsc::channel(8);
        let mut session = Session::new((Arc::new(EngineSpec::none()), board.clone()), reports, writes, pause);
        session.ready = true;
        session.steer();
        Stand { session, board, wish, pipe, heard }
    }

    impl Stand {
        /// What the engine reads next.
        fn read(&mut self) -> Option<Command> {
            let frame = self.pipe.try_recv().ok()?;
            read_frame(frame.as_slice()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_pipe_that_takes_nothing_loses_no_resume() {
        let mut stand = stand();
        stand.wish.send_replace(true);
        stand.session.wished().await;
        assert_eq!(stand.read(), Some(Command::Pause));
        stand.session.turned(true).await;
        assert!(matches!(stand.heard.try_recv(), Ok(Report::Paused)));
        stand.session.write(&Command::Stats { id: 1 }).unwrap();
        stand.wish.send_replace(false);
        stand.session.wished().await;
        assert_eq!(stand.read(), Some(Command::Stats { id: 1 }));
        stand.session.steer();
        assert_eq!(stand.read(), Some(Command::Resume));
        stand.session.turned(false).await;
        assert!(matches!(stand.heard.try_recv(), Ok(Report::Resumed)));
        stand.session.steer();
        assert_eq!(stand.read(), None, "it is said once");
    }

    #[tokio::test]
    async fn a_wish_that_changed_twice_is_answered() {
        let mut stand = stand();
        stand.wish.send_replace(true);
        stand.session.wished().await;
        assert_eq!(stand.read(), Some(Command::Pause));
        stand.session.turned(true).await;
        stand.heard.try_recv().unwrap();
        // Nothing to write: the next holder of the lease finds the engine paused.
        stand.wish.send_replace(false);
        stand.wish.send_replace(true);
        stand.session.wished().await;
        assert_eq!(stand.read(), None);
        assert!(matches!(stand.heard.try_recv(), Ok(Report::Paused)));
        // A resume under way: the pause after it waits for its answer, and nobody is told of a pause that ends.
        stand.wish.send_replace(false);
        stand.session.wished().await;
        assert_eq!(stand.read(), Some(Command::Resume));
        stand.wish.send_replace(true);
        stand.session.wished().await;
        assert!(stand.read().is_none() && stand.heard.try_recv().is_err());
        stand.session.turned(false).await;
        stand.session.steer();
        assert!(stand.heard.try_recv().is_err());
        assert_eq!(stand.read(), Some(Command::Pause));
    }

    #[tokio::test]
    async fn tables_and_cancels_wait_for_a_free_pipe() {
        let mut stand = stand();
        let table = |name: &str| Listed {
            name: name.to_owned(),
            path: name.into(),
            shipped: true,
            contexts: 1,
            entries: 1,
            bytes: 1,
            ..Listed::default()
        };
        let shelf = Shelf { tables: vec![table("a"), table("b")], ..Shelf::default() };
        stand.board.set_shelf(shelf);
        stand.session.write(&Command::Stats { id: 1 }).unwrap();
        stand.session.cancel(7);
        stand.session.steer();
        assert_eq!(stand.read(), Some(Command::Stats { id: 1 }));
        let mut said = Vec::new();
        for _ in 0..4 {
            stand.session.steer();
            said.extend(stand.read());
        }
        let names = |said: &Command| match said {
            Command::LoadTable { name, .. } => name.clone(),
            Command::Cancel { id } => id.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(said.iter().map(names).collect::<Vec<_>>(), ["a", "b", "7"]);
        assert_eq!(stand.session.registry.len(), 2);
        stand.board.set_shelf(Shelf::default());
        stand.session.steer();
        assert!(matches!(stand.read(), Some(Command::DropTable { name, .. }) if name == "a"));
        stand.board.table("b".to_owned(), Event::TableDropped { id: 1, name: "b".to_owned() });
    }
}
