//! Whether a file holds every tensor of the model, in its shape: what a backend would find out while it loads the weights.

use super::ModelError;
use super::hparams::HParams;
use super::weights::{Format, Packer, Tensor, Weights};
use crate::gguf::Gguf;

/// Makes nothing of any tensor.
struct Nothing;

impl Format for Nothing {
    type Vector = ();
    type Matrix = ();
    type Experts = ();
    type Table = ();
}

impl Packer for Nothing {
    type Format = Nothing;

    fn vector(&mut self, _: Tensor<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn matrix(&mut self, _: Tensor<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn router(&mut self, _: Tensor<'_>, _: Tensor<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn experts(&mut self, _: Tensor<'_>) -> Result<(), ModelError> {
        Ok(())
    }

    fn table(&mut self, _: Tensor<'_>) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Checks the header of a native model, its prediction block only where that is loaded too.
pub fn check(file: &Gguf, prediction: bool) -> Result<HParams, ModelError> {
    let hp = HParams::read(file)?.with_prediction(prediction);
    Weights::load(&hp, file, &mut Nothing, &mut |_| {})?;
    Ok(hp)
}
