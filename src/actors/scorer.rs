//! The Scorer will own the PRM engine. Nothing stands behind it yet, and it says so: turns stay unscored, are
//! counted as such, and no verdict is ever made up.

use actix::prelude::*;
use serde_json::{Value, json};

use crate::service::ServiceError;
use crate::turn::TurnId;

/// Judges a turn. → a verdict, 1–5.
#[derive(Message)]
#[rtype(result = "Result<u8, ServiceError>")]
pub struct ScoreTurn(pub TurnId);

#[derive(Message)]
#[rtype(result = "Value")]
pub struct ScorerStatus;

#[derive(Default)]
pub struct Scorer {
    /// Turns that asked for a verdict in this life and got none.
    refused: u64,
}

impl Actor for Scorer {
    type Context = Context<Self>;
}

impl Handler<ScoreTurn> for Scorer {
    type Result = Result<u8, ServiceError>;

    fn handle(&mut self, _: ScoreTurn, _: &mut Self::Context) -> Self::Result {
        self.refused += 1;
        Err(ServiceError::NotBuilt("scoring is not built yet: the turn stays without a verdict".to_owned()))
    }
}

impl Handler<ScorerStatus> for Scorer {
    type Result = MessageResult<ScorerStatus>;

    fn handle(&mut self, _: ScorerStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(json!({ "state": "not_built", "refused": self.refused }))
    }
}
