//! What a reply may spend. Its worst case is known before it starts; nothing is generated beyond it.

use super::stops::StepError;
use crate::pipeline::Cost;
use crate::service::ServiceError;

/// What is left.
pub(super) struct Budget(Cost);

impl Budget {
    pub(super) fn new(worst: Cost) -> Self {
        Budget(worst)
    }

    /// So many choices of at most so many tokens each.
    pub(super) fn generation(&mut self, choices: usize, tokens_max: u32) -> Result<(), StepError> {
        let tokens = choices as u64 * u64::from(tokens_max);
        let left = self.0.generations.checked_sub(choices as u32).zip(self.0.tokens.checked_sub(tokens));
        let (generations, tokens) = left.ok_or_else(|| {
            let message = "a step asked for more than the reply's program was planned to cost";
            StepError::Failed(ServiceError::Internal(message.to_owned()))
        })?;
        self.0 = Cost { generations, tokens, ..self.0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_generated_beyond_what_was_planned() {
        let mut budget = Budget::new(Cost { generations: 3, tokens: 30, ..Cost::default() });
        budget.generation(2, 10).unwrap();
        assert!(budget.generation(1, 11).is_err() && budget.generation(2, 1).is_err());
        budget.generation(1, 10).unwrap();
        assert!(budget.generation(1, 0).is_err());
    }
}
