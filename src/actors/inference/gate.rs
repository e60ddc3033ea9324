//! The lock between requests and a change of the model. Many requests hold a [`Pass`] at once. A change shuts the
//! gate: requests inside finish, all others wait in line.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// First come, first served: who comes after the gate began to shut waits for it to open.
#[derive(Default)]
pub struct Gate {
    line: Arc<RwLock<()>>,
    cut: Mutex<CancellationToken>,
}

/// The same model serves for as long as this is held.
pub struct Pass {
    _held: OwnedRwLockReadGuard<()>,
    cut: CancellationToken,
}

/// Nobody holds a [`Pass`]. Dropping it opens the gate.
pub struct Shut {
    _held: OwnedRwLockWriteGuard<()>,
}

impl Gate {
    /// Waits in line for at most `patience`.
    pub async fn enter(&self, patience: Duration) -> Option<Pass> {
        let _held = timeout(patience, self.line.clone().read_owned()).await.ok()?;
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(Pass { _held, cut })
    }

    /// Lets those inside finish for at most `patience`, then tells them to end. What they do has deadlines of its own,
    /// and so has this.
    pub async fn shut(&self, patience: Duration) -> Shut {
        let mut inside = std::pin::pin!(self.line.clone().write_owned());
        let _held = match timeout(patience, &mut inside).await {
            Ok(held) => held,
            Err(_) => {
                // Whoever comes next gets another one.
                std::mem::take(&mut *self.cut.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
                inside.await
            }
        };
        Shut { _held }
    }
}

impl Gate {
    /// Shuts it where nobody is inside, or on the way in.
    pub fn try_shut(&self) -> Option<Shut> {
        self.line.clone().try_write_owned().ok().map(|_held| Shut { _held })
    }

    /// Shuts it as soon as those inside have left by themselves. Dropped before that, it changes nothing.
    pub async fn shut_empty(&self) -> Shut {
        Shut { _held: self.line.clone().write_owned().await }
    }
}

impl Pass {
    /// Resolves when the model must be changed now: a request under way ends with an error.
    pub async fn cut(&self) {
        self.cut.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn those_inside_finish_and_the_next_ones_wait() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.enter(SOON).await.unwrap(), gate.enter(SOON).await.unwrap());
        let shutting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.shut(LONG).await }
        });
        // The writer stands in line as soon as it was polled.
        while gate.enter(SOON).await.is_some() {}
        drop(one);
        assert!(!shutting.is_finished());
        drop(two);
        let shut = shutting.await.unwrap();
        assert!(gate.enter(SOON).await.is_none());
        drop(shut);
        assert!(gate.enter(SOON).await.is_some());
    }

    #[tokio::test]
    async fn who_does_not_finish_is_told_to_end_and_the_next_one_is_not() {
        let gate = Arc::new(Gate::default());
        let pass = gate.enter(SOON).await.unwrap();
        let slow = tokio::spawn(async move {
            pass.cut().await;
        });
        drop(gate.shut(SOON).await);
        slow.await.unwrap();
        let next = gate.enter(SOON).await.unwrap();
        assert!(timeout(SOON, next.cut()).await.is_err());
    }
}
