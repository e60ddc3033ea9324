//! Which type a tensor gets: one type for all matrices, and rules by name. Some tensors stay f32
//! because they are small and the model is sensitive to them.

use chimere_ffi::DType;
use regex::Regex;

use super::Error;
use crate::gguf::TensorInfo;

/// One type for all matrices and rules for some of them.
#[derive(Clone, Debug)]
pub struct Choice {
    all: DType,
    rules: Vec<(Regex, DType)>,
}

impl Choice {
    /// `all` for every matrix; each rule is `REGEX=TYPE`, matched anywhere in the tensor's name; the
    /// first that matches wins.
    pub fn new<S: AsRef<str>>(all: &str, rules: &[S]) -> Result<Choice, Error> {
        let named = |name: &str| DType::from_name(name).ok_or_else(|| Error::UnknownType { found: name.into() });
        let rule = |rule: &S| {
            let rule = rule.as_ref();
            let (pattern, name) = rule.rsplit_once('=').ok_or_else(|| Error::Rule { found: rule.into() })?;
            let bad = |e| Error::Pattern { pattern: pattern.into(), source: Box::new(e) };
            Ok((Regex::new(pattern).map_err(bad)?, named(name)?))
        };
        Ok(Choice { all: named(all)?, rules: rules.iter().map(rule).collect::<Result<_, Error>>()? })
    }

    /// The type for `tensor`. One-dimensional tensors stay f32 whatever the rules say: the library
    /// adds and multiplies them as they are.
    pub fn of(&self, tensor: &TensorInfo) -> DType {
        if tensor.dims().len() == 1 {
            return DType::F32;
        }
        let rule = self.rules.iter().find(|(pattern, _)| pattern.is_match(&tensor.name));
        match rule {
            Some((_, dtype)) => *dtype,
            None if stays_f32(&tensor.name) => DType::F32,
            None => self.all,
        }
    }
}

/// Small tensors that decide much: norms, biases, the router, the recurrence's own parameters.
pub fn stays_f32(name: &str) -> bool {
    name.contains("norm")
        || name.ends_with(".bias")
        || name.contains("ffn_gate_inp")
        || [".ssm_conv1d", ".ssm_a", ".ssm_alpha", ".ssm_beta", ".ssm_d", ".ssm_dt", ".ssm_x"]
            .iter()
            .any(|part| name.contains(part))
        || ["token_types", "position_embd"].iter().any(|part| name.starts_with(part))
}

/// `asked`, or the nearest type whose blocks divide rows of `row_len` values.
pub(super) fn that_fits(asked: DType, row_len: u64) -> DType {
    let fits = |t: DType| row_len.is_multiple_of(t.block_len() as u64);
    if fits(asked) {
        return asked;
    }
    let smaller = match asked {
        DType::Q6_K => DType::Q8_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q4_K => DType::Q5_0,
        _ => DType::IQ4_NL,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}

/// `general.file_type` of a file whose bytes are mostly of this type: llama.cpp's `llama_ftype`,
/// which only informs people.
pub(super) fn file_type(most: DType) -> u32 {
    match most {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q8_0 => 7,
        DType::Q5_0 => 8,
        DType::Q5_1 => 9,
        DType::Q2_K => 10,
        DType::Q3_K => 12,
        DType::Q4_K => 15,
        DType::Q5_K => 17,
        DType::Q6_K => 18,
        DType::IQ2_XXS => 19,
        DType::IQ2_XS => 20,
        DType::IQ3_XXS => 23,
        DType::IQ4_NL => 25,
        DType::IQ3_S => 26,
        DType::IQ2_S => 28,
        DType::IQ4_XS => 30,
        DType::BF16 => 32,
        DType::MXFP4 => 38,
        // What nothing here writes has none of these numbers.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_sensitive_tensors_stay_f32() {
        let f32s = "blk.0.attn_norm.weight blk.0.ffn_gate_inp.weight blk.0.ffn_gate_inp_shexp.weight \
            blk.0.ssm_a blk.0.ssm_dt.bias blk.0.ssm_conv1d.weight blk.3.attn_q_norm.weight";
        let quantised = "token_embd.weight output.weight blk.0.ssm_out.weight blk.0.ffn_gate_exps.weight \
            blk.0.attn_qkv.weight blk.40.nextn.eh_proj.weight blk.0.ffn_gate_shexp.weight";
        assert!(f32s.split_whitespace().all(stays_f32));
        assert!(!quantised.split_whitespace().any(stays_f32));
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_type_that_fits() {
        assert_eq!(that_fits(DType::Q4_K, 512), DType::Q4_K);
        assert_eq!(that_fits(DType::Q4_K, 64), DType::Q5_0);
        assert_eq!(that_fits(DType::IQ3_S, 96), DType::IQ4_NL);
        assert_eq!(that_fits(DType::Q8_0, 4), DType::F16);
    }

    #[test]
    fn rules_are_checked() {
        assert!(matches!(Choice::new("Q4", &[""; 0]), Err(Error::UnknownType { .. })));
        assert!(matches!(Choice::new("Q4_K", &["ffn"]), Err(Error::Rule { .. })));
        assert!(matches!(Choice::new("Q4_K", &["(=Q6_K"]), Err(Error::Pattern { .. })));
        assert!(Choice::new("q4_k", &["ffn_.*_exps=IQ3_S", "^output=Q6_K"]).is_ok());
    }
}
