//! An engine that is started when somebody asks for its model, and ends when nobody does.

use actix::prelude::*;

use super::Inference;
use super::board::EngineState;

/// Starts the engine, unless it was started; answered as soon as it is on its way.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Wake;

/// Ends the engine until the next [`Wake`]: it is gone when the board says `Unloaded`. Whoever asks holds the gate shut,
/// so that no request is under way.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Rest;

impl Handler<Wake> for Inference {
    type Result = ();

    fn handle(&mut self, _: Wake, context: &mut Self::Context) {
        if !self.stopping && self.board.wake() {
            self.failures = 0;
            self.launch(context);
        }
    }
}

impl Handler<Rest> for Inference {
    type Result = ();

    fn handle(&mut self, _: Rest, context: &mut Self::Context) {
        self.board.sleep();
        if let Some(due) = self.due.take() {
            context.cancel_future(due);
        }
        (self.commands, self.alive) = (None, None);
        if !self.running && !self.stopping {
            self.board.set(EngineState::Unloaded);
        }
    }
}
