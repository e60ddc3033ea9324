//! What each kernel takes in a step of any shape.

use super::{Cuda, computing};
use crate::engine::backend::{Backend, BackendError, Chunk, Output};

impl Cuda {
    /// Runs a step launch by launch and measures each: name, launches, seconds.
    pub fn profile_step(
        &mut self,
        batch: &[Chunk<'_>],
        out: &mut Output,
    ) -> Result<Vec<(&'static str, u32, f64)>, BackendError> {
        // Whatever is recorded.
        self.graphs.clear();
        let device = self.device.clone();
        let mut done = Ok(());
        let found = device.profile(|| {
            done = self.step(batch, out);
            Ok(())
        });
        done?;
        found.map_err(computing)
    }
}
