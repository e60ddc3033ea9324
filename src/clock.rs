//! The daemon's clock: the one place that reads wall time, so that a simulated day can run fast.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::files::read_bounded;

/// Largest file of an offset, bytes.
const OFFSET_BYTES_MAX: u64 = 32;

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

    /// Wall time and what the file says: milliseconds to add, as decimal text. Whoever holds the file moves the clock
    /// by replacing it; while it cannot be read, what was read last holds. Only a simulation runs a daemon so.
    pub fn moved_by(file: PathBuf) -> Self {
        let (wall, last) = (Clock::wall(), AtomicI64::new(0));
        Clock::from_fn(move || {
            if let Ok(Some(text)) = read_bounded(&file, OFFSET_BYTES_MAX)
                && let Ok(offset_ms) = text.trim().parse()
            {
                last.store(offset_ms, Ordering::Relaxed);
            }
            wall.now_ms().saturating_add(last.load(Ordering::Relaxed))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_moves_the_clock_and_nonsense_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clock");
        let (clock, wall) = (Clock::moved_by(file.clone()), Clock::wall());
        let ahead_h = || ((clock.now_ms() - wall.now_ms()) as f64 / 3_600_000.0).round();
        assert_eq!(ahead_h(), 0.0);
        for (text, hours) in [("7200000\n", 2.0), ("soon", 2.0), ("-3600000", -1.0)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(ahead_h(), hours, "{text:?}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(ahead_h(), -1.0);
    }
}
