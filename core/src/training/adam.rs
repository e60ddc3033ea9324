//! Adam (Kingma and Ba, 2015) over the changes, with the gradient's length bounded.

use crate::engine::gradient::Changes;

const BETA_FIRST: f32 = 0.9;
const BETA_SECOND: f32 = 0.99;
const EPS: f32 = 1e-8;

/// First and second moments of every number.
pub struct Adam {
    moments: Vec<(f32, f32)>,
    steps: i32,
}

impl Adam {
    pub fn new(changes: &Changes) -> Adam {
        Adam { moments: vec![(0.0, 0.0); changes.values().count()], steps: 0 }
    }

    /// Moves `changes` against `grads` at learning rate `rate`; a gradient longer than `clip` is shortened to it.
    pub fn step(&mut self, changes: &mut Changes, grads: &Changes, rate: f32, clip: f32) {
        self.steps += 1;
        let length = grads.values().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt() as f32;
        let shorten = if length > clip { clip / length } else { 1.0 };
        let (first, second) = (1.0 - BETA_FIRST.powi(self.steps), 1.0 - BETA_SECOND.powi(self.steps));
        for ((value, grad), (m, v)) in changes.values_mut().zip(grads.values()).zip(&mut self.moments) {
            let g = grad * shorten;
            *m = BETA_FIRST * *m + (1.0 - BETA_FIRST) * g;
            *v = BETA_SECOND * *v + (1.0 - BETA_SECOND) * g * g;
            *value -= rate * (*m / first) / ((*v / second).sqrt() + EPS);
        }
    }
}
