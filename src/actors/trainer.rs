//! The Trainer will own the candidate adapter. Nothing stands behind it yet, and it says so.

use actix::prelude::*;
use serde_json::{Value, json};

use crate::service::ServiceError;

/// Trains a candidate.
#[derive(Message)]
#[rtype(result = "Result<(), ServiceError>")]
pub struct Train;

#[derive(Message)]
#[rtype(result = "Value")]
pub struct TrainerStatus;

#[derive(Default)]
pub struct Trainer;

impl Actor for Trainer {
    type Context = Context<Self>;
}

impl Handler<Train> for Trainer {
    type Result = Result<(), ServiceError>;

    fn handle(&mut self, _: Train, _: &mut Self::Context) -> Self::Result {
        Err(ServiceError::NotBuilt("training is not built yet: no candidate was made".to_owned()))
    }
}

impl Handler<TrainerStatus> for Trainer {
    type Result = MessageResult<TrainerStatus>;

    fn handle(&mut self, _: TrainerStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(json!({ "state": "not_built" }))
    }
}
