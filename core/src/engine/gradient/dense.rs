//! The model's weights in f32, each matrix with its transpose: what first-order training reads.

use std::sync::Arc;

use chimere_ffi::cpu::dequantize;
use chimere_ffi::map::Map;

use super::linear::Linear;
use crate::engine::model::ModelError;
use crate::engine::model::weights::{Format, Packer, Tensor};

/// The weights as training holds them.
pub(super) struct Dense;

impl Format for Dense {
    type Vector = Vec<f32>;
    type Matrix = Linear;
    type Experts = Vec<Linear>;
    /// Row-major `[V, D]`.
    type Table = Vec<f32>;
}

pub(super) struct DensePacker {
    pub(super) map: Arc<Map>,
}

impl DensePacker {
    fn values(&self, t: &Tensor<'_>) -> Result<Vec<f32>, ModelError> {
        let unusable = |reason: String| ModelError::Tensor { name: t.name.into(), reason };
        let bytes = t.bytes(|range| self.map.slice(range))?;
        let mut values = vec![0.0; t.cols * t.rows * t.experts];
        dequantize(t.dtype, &bytes, &mut values).map_err(|e| unusable(e.to_string()))?;
        Ok(values)
    }
}

impl Packer for DensePacker {
    type Format = Dense;

    fn vector(&mut self, t: Tensor<'_>) -> Result<Vec<f32>, ModelError> {
        self.values(&t)
    }

    fn matrix(&mut self, t: Tensor<'_>) -> Result<Linear, ModelError> {
        Ok(Linear::new(t.name, t.cols, &self.values(&t)?))
    }

    fn router(&mut self, experts: Tensor<'_>, shared: Tensor<'_>) -> Result<Linear, ModelError> {
        let mut values = self.values(&experts)?;
        values.extend(self.values(&shared)?);
        Ok(Linear::new(experts.name, experts.cols, &values))
    }

    fn experts(&mut self, t: Tensor<'_>) -> Result<Vec<Linear>, ModelError> {
        let values = self.values(&t)?;
        Ok(values.chunks_exact(t.cols * t.rows).map(|v| Linear::new(t.name, t.cols, v)).collect())
    }

    fn table(&mut self, t: Tensor<'_>) -> Result<Vec<f32>, ModelError> {
        self.values(&t)
    }
}
