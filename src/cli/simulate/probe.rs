//! A short request every two seconds, all week long: whatever the night does, somebody must always be answered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chimere::simulate::table::Probes;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::super::client::Client;

const PERIOD: Duration = Duration::from_secs(2);
/// A probe without a whole answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Probes until it is dropped.
pub struct Prober {
    seen: Arc<Mutex<Probes>>,
    task: JoinHandle<()>,
}

impl Prober {
    pub fn start(client: Client) -> Prober {
        let seen = Arc::new(Mutex::new(Probes::default()));
        let shared = seen.clone();
        let task = tokio::spawn(async move {
            let mut beat = interval(PERIOD);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for n in 0u64.. {
                beat.tick().await;
                let began = Instant::now();
                let answered = matches!(timeout(PATIENCE, probe(&client, n)).await, Ok(Ok(())));
                let longest_ms = began.elapsed().as_millis() as u64;
                let one = Probes { sent: 1, failed: usize::from(!answered), longest_ms };
                shared.lock().unwrap_or_else(PoisonError::into_inner).add(one);
            }
        });
        Prober { seen, task }
    }

    /// What was seen since the last time.
    pub fn take(&self) -> Probes {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One short reply, at the first try.
async fn probe(client: &Client, n: u64) -> anyhow::Result<()> {
    let body = json!({
        "messages": [{ "role": "user", "content": "What is 2 + 2?" }],
        "max_tokens": 4,
        "temperature": 0,
        "stream": true,
        "enable_thinking": false,
        "chimere": { "conversation": format!("probe-{n}"), "consent": false, "lessons": "none" },
    });
    let mut events = client.stream("/v1/chat/completions", &body).await?;
    while events.next().await?.is_some() {}
    Ok(())
}
