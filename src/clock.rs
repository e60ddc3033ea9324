//! The daemon's clock: the one place that reads wall time, so that a simulated day can run fast.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in milliseconds from wherever the daemon takes it.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    pub fn wall() -> Self {
        Clock(Arc::new(|| match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }))
    }

    /// A clock that a test or a simulation moves itself.
    pub fn from_fn(read: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Clock(Arc::new(read))
    }

    pub fn now_ms(&self) -> i64 {
        (self.0)()
    }

    /// `YYYY-MM-DD` in the machine's time zone.
    pub fn date(&self) -> String {
        let zone = jiff::tz::TimeZone::system();
        match jiff::Timestamp::from_millisecond(self.now_ms()) {
            Ok(now) => now.to_zoned(zone).strftime("%Y-%m-%d").to_string(),
            Err(_) => String::new(),
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}
