//! The Scheduler owns cron and will own the night's phase. Its clock runs, but no job is installed: there is
//! no night to run yet, and every command says so.

use actix::fut::wrap_future;
use actix::prelude::*;
use serde_json::{Value, json};
use tokio_cron_scheduler::JobScheduler;

use crate::service::{NightCommand, ServiceError};

/// A command for the night.
#[derive(Message)]
#[rtype(result = "Result<Value, ServiceError>")]
pub struct Night(pub NightCommand);

#[derive(Message)]
#[rtype(result = "Value")]
pub struct SchedulerStatus;

pub struct Scheduler {
    /// The configuration asks for nights.
    enabled: bool,
    cron: Result<JobScheduler, String>,
}

impl Scheduler {
    pub fn new(enabled: bool) -> Self {
        Scheduler { enabled, cron: Err("starting".to_owned()) }
    }

    fn status(&self) -> Value {
        json!({
            "state": "not_built",
            "enabled_in_config": self.enabled,
            "jobs": 0,
            "cron": match &self.cron {
                Ok(_) => "running",
                Err(why) => why,
            },
        })
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        if self.enabled {
            tracing::warn!("night.enabled is set, but the night is not built yet: nothing will run");
        }
        let start = async {
            let cron = JobScheduler::new().await?;
            cron.start().await?;
            Ok::<_, tokio_cron_scheduler::JobSchedulerError>(cron)
        };
        context.spawn(wrap_future::<_, Self>(start).map(|cron, scheduler, _| {
            scheduler.cron = cron.map_err(|error| error.to_string());
        }));
    }
}

impl Handler<Night> for Scheduler {
    type Result = Result<Value, ServiceError>;

    fn handle(&mut self, Night(command): Night, _: &mut Self::Context) -> Self::Result {
        match command {
            NightCommand::Status => Ok(self.status()),
            NightCommand::RunNow | NightCommand::Report | NightCommand::Pause => {
                Err(ServiceError::NotBuilt("the night is not built yet: nothing was run".to_owned()))
            }
        }
    }
}

impl Handler<SchedulerStatus> for Scheduler {
    type Result = MessageResult<SchedulerStatus>;

    fn handle(&mut self, _: SchedulerStatus, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.status())
    }
}
