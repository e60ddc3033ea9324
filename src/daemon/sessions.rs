//! Named sessions as the server asks for them. A principal sees its own, and nothing says whether another has one.

use std::time::Duration;

use actix::Message as Asked;

use super::Daemon;
use super::face::{link, memory};
use crate::actors::memory::{DeleteSession, Memory, MemoryError, Resume, SaveSession, Sessions};
use crate::scoring::correction::said_right;
use crate::service::{SESSION_NAMES, ServiceError, Session, SessionAt, is_session_name};
use crate::store::StoreError;
use crate::turn::Message;

/// A few records of the log.
const TIMEOUT: Duration = Duration::from_secs(15);

async fn ask<M, T>(daemon: &Daemon, message: M) -> Result<T, ServiceError>
where
    M: Asked<Result = Result<T, MemoryError>> + Send + 'static,
    T: Send + 'static,
    Memory: actix::Handler<M>,
{
    daemon.cast.memory.send_within(message, TIMEOUT).await.map_err(|error| link(&error))?.map_err(memory)
}

fn named(name: &str) -> Result<(), ServiceError> {
    if is_session_name(name) {
        return Ok(());
    }
    let message = format!("`{name}` is no name of a session: {SESSION_NAMES}");
    Err(ServiceError::Invalid { message, param: Some("name".to_owned()) })
}

fn none(name: String) -> ServiceError {
    memory(StoreError::NoSession(name).into())
}

pub(super) async fn list(daemon: &Daemon, principal: String) -> Result<Vec<Session>, ServiceError> {
    ask(daemon, Sessions(principal)).await
}

pub(super) async fn show(
    daemon: &Daemon,
    principal: String,
    name: String,
) -> Result<(Session, Vec<Message>), ServiceError> {
    named(&name)?;
    match ask(daemon, Resume { principal, name: name.clone(), begins: false }).await {
        Ok(Some((session, turn))) => Ok((session, said_right(turn))),
        Ok(None) => Err(none(name)),
        Err(error) => Err(error),
    }
}

pub(super) async fn save(
    daemon: &Daemon,
    principal: String,
    name: String,
    at: SessionAt,
    replace: bool,
) -> Result<Session, ServiceError> {
    named(&name)?;
    if let SessionAt::Session(from) = &at {
        named(from)?;
    }
    daemon.replies.sessions.refuse(&principal, &name)?;
    ask(daemon, SaveSession { principal, name, at, replace, now_ms: daemon.clock.now_ms() }).await
}

pub(super) async fn delete(daemon: &Daemon, principal: String, name: String) -> Result<(), ServiceError> {
    named(&name)?;
    daemon.replies.sessions.refuse(&principal, &name)?;
    let there = ask(daemon, DeleteSession { principal, name: name.clone() }).await?;
    if there { Ok(()) } else { Err(none(name)) }
}
