//! Tests only: writes a very small random model of this architecture, every part of it present.

use super::weights::FUSED_GATE_UP;
use crate::gguf::{Layout, Value};
use chimere_ffi::DType;
use std::path::{Path, PathBuf};

/// What a test may change of the tiny model.
pub(crate) struct Tiny {
    pub(crate) width: u64,
    pub(crate) interval: u32,
    pub(crate) layers: u32,
    /// Of the recurrent layers: from 16 on they use the chunked form.
    pub(crate) value_heads: u64,
    pub(crate) mtp: bool,
    pub(crate) tied: bool,
    pub(crate) dtype: DType,
    /// Types of the tensors whose names have a part, in place of that.
    pub(crate) odd: Vec<(&'static str, DType)>,
    /// Gate and up of the experts are one tensor; their values are the same.
    pub(crate) fused: bool,
    /// No experts, and the architecture's name without them.
    pub(crate) dense: bool,
    /// The first layer's results of its experts are scaled.
    pub(crate) scales: bool,
    /// Values that replace those of the metadata (keys without the architecture), or add to them.
    pub(crate) keys: Vec<(&'static str, Value)>,
    /// Tensor left out, and tensor written with another shape.
    pub(crate) without: Option<&'static str>,
    pub(crate) reshaped: Option<(&'static str, Vec<u64>)>,
}

pub(crate) const VOCAB: u32 = 99;
pub(crate) const CONTEXT: u32 = 4_096;

impl Default for Tiny {
    fn default() -> Self {
        Tiny {
            width: 64,
            interval: 3,
            layers: 3,
            value_heads: 4,
            mtp: true,
            tied: false,
            dtype: DType::F32,
            odd: Vec::new(),
            fused: false,
            dense: false,
            scales: false,
            keys: Vec::new(),
            without: None,
            reshaped: None,
        }
    }
}

/// A file that disappears with the test.
pub(crate) struct TempModel {
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Tiny {
    /// Writes the file.
    pub(crate) fn write(self) -> TempModel {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let mut layout = Layout::new();
        self.metadata(&mut layout);
        for (name, dtype, dims) in self.tensors() {
            layout.tensor(&name, dtype, &dims).unwrap();
        }
        self.fill(layout, &path);
        TempModel { path, _dir: dir }
    }

    fn metadata(&self, layout: &mut Layout) {
        let blocks = self.layers + u32::from(self.mtp);
        let mut keys: Vec<(&str, Value)> = vec![
            ("block_count", blocks.into()),
            ("context_length", CONTEXT.into()),
            ("embedding_length", (self.width as u32).into()),
            ("attention.head_count", 4_u32.into()),
            ("attention.head_count_kv", 2_u32.into()),
            ("attention.key_length", 64_u32.into()),
            ("attention.value_length", 64_u32.into()),
            ("attention.layer_norm_rms_epsilon", 1e-6_f32.into()),
            ("rope.freq_base", 1e4_f32.into()),
            ("rope.dimension_count", 32_u32.into()),
            ("rope.dimension_sections", Value::Array(crate::gguf::Array::I32(vec![6, 5, 5, 0]))),
            ("full_attention_interval", self.interval.into()),
            ("ssm.conv_kernel", 4_u32.into()),
            ("ssm.state_size", 128_u32.into()),
            ("ssm.group_count", 2_u32.into()),
            ("ssm.time_step_rank", (self.value_heads as u32).into()),
            ("ssm.inner_size", (128 * self.value_heads as u32).into()),
            ("expert_count", 5_u32.into()),
            ("expert_used_count", 2_u32.into()),
            ("expert_feed_forward_length", 32_u32.into()),
            ("expert_shared_feed_forward_length", 64_u32.into()),
            ("nextn_predict_layers", 1_u32.into()),
        ];
        for (key, value) in &self.keys {
            keys.retain(|(k, _)| k != key);
            keys.push((key, value.clone()));
        }
        let name = if self.dense { "qwen35" } else { "qwen35moe" };
        if self.dense {
            keys.retain(|(key, _)| !key.starts_with("expert_"));
            keys.push(("feed_forward_length", 64_u32.into()));
        }
        layout.set("general.architecture", name).unwrap();
        for (key, value) in keys {
            layout.set(&format!("{name}.{key}"), value).unwrap();
        }
    }

    fn tensors(&self) -> Vec<(String, DType, Vec<u64>)> {
        let (d, v) = (self.width, u64::from(VOCAB));
        let mut list = vec![("token_embd".into(), vec![d, v]), ("output_norm".into(), vec![d])];
        if !self.tied {
            list.push(("output".into(), vec![d, v]));
        }
        for i in 0..self.layers {
            let attention = (i + 1) % self.interval == 0;
            self.layer(i, attention, &mut list);
        }
        if self.scales {
            list.push(("blk.0.ffn_down_exps.scale".into(), vec![5]));
        }
        if self.mtp {
            self.layer(self.layers, true, &mut list);
            let name = |s: &str| format!("blk.{}.nextn.{s}", self.layers);
            list.push((name("eh_proj"), vec![2 * d, d]));
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                list.push((name(norm), vec![d]));
            }
        }
        let finish = |(name, dims): (String, Vec<u64>)| {
            let name = if [".ssm_a", ".bias", ".scale"].iter().any(|end| name.ends_with(end)) {
                name
            } else {
                format!("{name}.weight")
            };
            let dims = match &self.reshaped {
                Some((n, other)) if *n == name => other.clone(),
                _ => dims,
            };
            let small = dims.len() == 1 || name.contains("conv1d") || name.contains("ffn_gate_inp");
            let odd = self.odd.iter().find(|(part, _)| name.contains(part)).map(|(_, dtype)| *dtype);
            let dtype = odd.unwrap_or(if small { DType::F32 } else { self.dtype });
            (name, dtype, dims)
        };
        list.into_iter().map(finish).filter(|(n, ..)| Some(n.as_str()) != self.without).collect()
    }

    fn layer(&self, i: u32, attention: bool, list: &mut Vec<(String, Vec<u64>)>) {
        let (d, h) = (self.width, self.value_heads);
        let mixer: &[(&str, &[u64])] = if attention {
            &[
                ("attn_q", &[d, 512]),
                ("attn_k", &[d, 128]),
                ("attn_v", &[d, 128]),
                ("attn_output", &[256, d]),
                ("attn_q_norm", &[64]),
                ("attn_k_norm", &[64]),
            ]
        } else {
            &[
                ("attn_qkv", &[d, 512 + 128 * h]),
                ("attn_gate", &[d, 128 * h]),
                ("ssm_conv1d", &[4, 512 + 128 * h]),
                ("ssm_norm", &[128]),
                ("ssm_a", &[h]),
                ("ssm_dt.bias", &[h]),
                ("ssm_alpha", &[d, h]),
                ("ssm_beta", &[d, h]),
                ("ssm_out", &[128 * h, d]),
            ]
        };
        let norms: &[(&str, &[u64])] = &[("attn_norm", &[d]), ("post_attention_norm", &[d])];
        let dense: &[(&str, &[u64])] = &[("ffn_gate", &[d, 64]), ("ffn_up", &[d, 64]), ("ffn_down", &[64, d])];
        let experts: &[(&str, &[u64])] = &[
            ("ffn_gate_inp", &[d, 5]),
            ("ffn_gate_inp_shexp", &[d]),
            ("ffn_gate_exps", &[d, 32, 5]),
            ("ffn_up_exps", &[d, 32, 5]),
            ("ffn_down_exps", &[32, d, 5]),
            ("ffn_gate_shexp", &[d, 64]),
            ("ffn_up_shexp", &[d, 64]),
            ("ffn_down_shexp", &[64, d]),
        ];
        let ffn = if self.dense { dense } else { experts };
        let all = mixer.iter().chain(norms).chain(ffn).filter(|(n, _)| !self.fused || *n != "ffn_up_exps");
        list.extend(all.map(|(n, dims)| match *n {
            "ffn_gate_exps" if self.fused => (format!("blk.{i}.{FUSED_GATE_UP}"), vec![d, 64, 5]),
            n => (format!("blk.{i}.{n}"), dims.to_vec()),
        }));
    }

    fn fill(&self, layout: Layout, path: &Path) {
        let tensors = self.tensors();
        let mut random = Random(0x5eed);
        let mut writer = layout.create(path).unwrap();
        for (name, dtype, dims) in tensors {
            let n = dims.iter().product::<u64>() as usize;
            let scale = (dims[0] as f32).sqrt().recip();
            let values: Vec<f32> = (0..n)
                .map(|_| match name.as_str() {
                    s if s.ends_with("ssm_a") => -1.5 - random.next(),
                    s if s.contains("norm") => 1.0 + 0.2 * random.next(),
                    _ => 1.7 * scale * random.next(),
                })
                .collect();
            let values = if name.contains(FUSED_GATE_UP) { side_by_side(&values, dims[2] as usize) } else { values };
            writer.write(&name, &encode(dtype, &values)).unwrap();
        }
        writer.finish().unwrap();
    }
}

/// All experts' gates, then all their ups, as one matrix for each expert.
fn side_by_side(values: &[f32], experts: usize) -> Vec<f32> {
    let (gate, up) = values.split_at(values.len() / 2);
    let each = gate.len() / experts;
    gate.chunks(each).zip(up.chunks(each)).flat_map(|(g, u)| [g, u].concat()).collect()
}

/// Values in the bytes of `dtype`: plain floats, or Q8_0 as its definition says (blocks of 32, one f16 scale).
fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let f16 = |v: f32| half::f16::from_f32(v).to_le_bytes();
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16(*v)).collect(),
        DType::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::Q8_0 => {
            let block = |b: &[f32]| {
                let scale = b.iter().fold(0.0_f32, |m, v| m.max(v.abs())) / 127.0;
                let codes = b.iter().map(move |v| (v / scale).round() as i8 as u8);
                f16(scale).into_iter().chain(codes).collect::<Vec<u8>>()
            };
            values.chunks(32).flat_map(block).collect()
        }
        other => panic!("no test model in {other:?}"),
    }
}

/// Numbers between −1 and 1 from a 64-bit linear congruence (Knuth's MMIX constants).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32) / ((1_u64 << 23) as f32) - 1.0
    }

    pub(crate) fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| ((self.next() + 1.0) * 0.5 * VOCAB as f32) as u32 % VOCAB).collect()
    }
}
