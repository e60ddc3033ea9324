//! How much a search may try: the section `optimise` of `night.yaml`.

use serde::Deserialize;

/// A field of the section, its value, and the least and the most that it may be.
pub type Range = (&'static str, f64, f64, f64);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Routes that may change; empty: all of them.
    pub routes: Vec<String>,
    /// Instructions of the owner's, tried beside the stock and what the model proposes.
    pub instructions: Vec<String>,
    /// Instructions that the model is asked for.
    pub proposals: usize,
    /// Sets of demonstrations, and most exchanges of one.
    pub sets: usize,
    pub demonstrations_max: usize,
    /// Points of the search, and items of the slice exam that each is asked.
    pub trials: usize,
    pub batch: usize,
    /// Best points that are asked every item of the search.
    pub finalists: usize,
    /// Most items of a route: for the search and for the gate.
    pub items_max: usize,
    /// A route with fewer of either is left alone.
    pub items_min: usize,
    /// A change may come from chance in at most this share of nights, all routes together.
    pub alpha: f64,
    /// Time of a run; then it ends with what is decided.
    pub minutes_max: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            routes: Vec::new(),
            instructions: Vec::new(),
            proposals: 3,
            sets: 5,
            demonstrations_max: 3,
            trials: 24,
            batch: 40,
            finalists: 3,
            items_max: 400,
            items_min: 60,
            alpha: 0.05,
            minutes_max: 90.0,
        }
    }
}

impl Settings {
    pub fn ranges(&self) -> [Range; 10] {
        let whole = |n: usize| n as f64;
        [
            ("optimise.proposals", whole(self.proposals), 0.0, 16.0),
            ("optimise.sets", whole(self.sets), 0.0, 32.0),
            ("optimise.demonstrations_max", whole(self.demonstrations_max), 0.0, 8.0),
            ("optimise.trials", whole(self.trials), 1.0, 1_000.0),
            ("optimise.batch", whole(self.batch), 4.0, 1_000.0),
            ("optimise.finalists", whole(self.finalists), 1.0, 10.0),
            ("optimise.items_max", whole(self.items_max), 8.0, 10_000.0),
            ("optimise.items_min", whole(self.items_min), 8.0, 10_000.0),
            ("optimise.alpha", self.alpha, 0.0, 0.5),
            ("optimise.minutes_max", self.minutes_max, 0.01, 1_440.0),
        ]
    }
}
