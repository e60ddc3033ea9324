//! How many threads the library computes with. They wait for each other by spinning, many times a token, so a thread
//! without a core to itself holds up all others. On a busy machine two threads can take ten times as long as one. So
//! fewer are used as soon as they get less time than they ask for, and more are tried again after a while.

use std::time::Duration;

/// Time after which what the threads got is judged.
const JUDGED_AFTER: Duration = Duration::from_millis(10);
/// Share of the time that threads must get for their number to be kept.
const SHARE_MIN: f64 = 0.9;
/// Computing time after which more threads are tried: at first, and when that failed again and again.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// The threads of a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crew {
    most: usize,
    now: usize,
    /// Since the last judgement: time that passed, and time that all threads got.
    wall: Duration,
    got: Duration,
    /// Time of good judgements since the number last changed, and after how much more are tried.
    good: Duration,
    patience: Duration,
}

impl Crew {
    pub(super) fn new(most: usize) -> Crew {
        let (wall, got, good) = Default::default();
        Crew { most: most.max(1), now: most.max(1), wall, got, good, patience: PATIENCE.0 }
    }

    /// Threads for the next call.
    pub(super) fn threads(&self) -> usize {
        self.now
    }

    /// A call took so long, and its threads got so much time together.
    pub(super) fn ran(&mut self, wall: Duration, got: Duration) {
        self.wall += wall;
        self.got += got;
        if self.wall < JUDGED_AFTER || self.most == 1 {
            return;
        }
        let share = self.got.as_secs_f64() / (self.wall.as_secs_f64() * self.now as f64);
        let wall = std::mem::take(&mut self.wall);
        self.got = Duration::ZERO;
        if share < SHARE_MIN {
            self.good = Duration::ZERO;
            if self.now > 1 {
                self.now = ((self.now as f64 * share) as usize).clamp(1, self.now - 1);
                self.patience = (self.patience * 2).min(PATIENCE.1);
            }
            return;
        }
        self.good += wall;
        if self.now == self.most {
            // A machine that was quiet for so long is trusted again.
            if self.good > self.patience * 4 {
                self.patience = PATIENCE.0;
            }
        } else if self.good >= self.patience {
            self.now = (self.now * 2).min(self.most);
            self.good = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs calls of 12 ms on a machine with so many free cores; how many used each number of threads.
    fn run(crew: &mut Crew, free: usize, calls: usize) -> Vec<usize> {
        let mut used = vec![0; crew.most + 1];
        for _ in 0..calls {
            used[crew.threads()] += 1;
            let wall = Duration::from_millis(12);
            crew.ran(wall, wall * crew.threads().min(free) as u32);
        }
        used
    }

    #[test]
    fn as_many_threads_compute_as_there_are_free_cores() {
        let mut crew = Crew::new(8);
        assert_eq!(run(&mut crew, 8, 100)[8], 100, "all on a quiet machine");
        let used = run(&mut crew, 2, 1_000);
        assert!(used[2] > 900 && used[8] <= 2, "few calls with more threads than cores: {used:?}");
        let used = run(&mut crew, 8, 10_000);
        assert!(used[8] > 8_000, "all again once it is quiet: {used:?}");
    }

    #[test]
    fn one_thread_stays_one_and_short_calls_are_judged_together() {
        let mut crew = Crew::new(1);
        run(&mut crew, 0, 100);
        assert_eq!(crew.threads(), 1);
        let mut crew = Crew::new(4);
        for _ in 0..9 {
            crew.ran(Duration::from_millis(1), Duration::from_millis(1));
            assert_eq!(crew.threads(), 4);
        }
        crew.ran(Duration::from_millis(1), Duration::from_millis(1));
        assert_eq!(crew.threads(), 1);
    }
}
