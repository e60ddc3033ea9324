//! Random `qwen35moe` models of any shape, and dense `qwen35` ones: the 35B's layers for measurements, small ones for tests.

use chimere_ffi::DType;

use super::super::Error;
use super::{Fill, Synthetic};

/// The form of a chat.
const CHAT: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Tensor types of a model.
#[derive(Clone, Copy, Debug)]
pub struct Types {
    pub experts: DType,
    /// Attention, GDN and shared-expert matrices.
    pub dense: DType,
    pub embedding: DType,
    /// `None`: the output matrix is the embedding.
    pub head: Option<DType>,
}

/// Shape of a model.
#[derive(Clone, Copy, Debug)]
pub struct Qwen35Moe {
    /// Main layers; every fourth is full attention.
    pub layers: u32,
    /// A multi-token-prediction layer after them.
    pub mtp: bool,
    pub width: u32,
    pub vocab: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// 0: the model is dense.
    pub experts: u32,
    pub experts_used: u32,
    /// Inner width of an expert and of the shared one, or of a dense layer.
    pub expert_width: u32,
    pub key_heads: u32,
    pub value_heads: u32,
    /// Values of a GDN head.
    pub gdn_dim: u32,
    pub types: Types,
}

impl Qwen35Moe {
    /// The first `layers` layers of the 35B, with its vocabulary: what a memory-bound measurement
    /// reads is then the real thing's.
    pub fn slice_of_35b(layers: u32, types: Types) -> Qwen35Moe {
        Qwen35Moe {
            layers,
            mtp: false,
            width: 2_048,
            vocab: 248_320,
            heads: 16,
            kv_heads: 2,
            head_dim: 256,
            experts: 256,
            experts_used: 8,
            expert_width: 512,
            key_heads: 16,
            value_heads: 32,
            gdn_dim: 128,
            types,
        }
    }

    /// A model of a few million weights whose rows are whole blocks of every type.
    pub fn small(types: Types) -> Qwen35Moe {
        Qwen35Moe {
            layers: 4,
            mtp: true,
            width: 256,
            vocab: 512,
            heads: 4,
            kv_heads: 2,
            head_dim: 128,
            experts: 8,
            experts_used: 2,
            expert_width: 256,
            key_heads: 2,
            value_heads: 4,
            gdn_dim: 128,
            types,
        }
    }

    /// The model, ready to be written.
    pub fn build(&self) -> Result<Synthetic, Error> {
        let mut m = Synthetic::new(if self.experts == 0 { "qwen35" } else { "qwen35moe" })?;
        self.metadata(&mut m)?;
        m.byte_vocabulary("qwen35", self.vocab as usize)?;
        m.set("tokenizer.chat_template", CHAT)?;
        let (width, vocab) = (u64::from(self.width), u64::from(self.vocab));
        m.tensor("token_embd.weight", self.types.embedding, &[width, vocab], Fill::Normal(0.0, 0.5))?;
        if let Some(head) = self.types.head {
            m.matrix("output.weight", head, &[width, vocab])?;
        }
        m.norm("output_norm.weight", &[width])?;
        for layer in 0..self.layers {
            let p = format!("blk.{layer}");
            match (layer + 1) % 4 {
                0 => self.attention(&mut m, &p)?,
                _ => self.gdn(&mut m, &p)?,
            }
            self.ffn(&mut m, &p)?;
        }
        if self.mtp {
            let p = format!("blk.{}", self.layers);
            self.attention(&mut m, &p)?;
            self.ffn(&mut m, &p)?;
            m.matrix(&format!("{p}.nextn.eh_proj.weight"), self.types.dense, &[2 * width, width])?;
            for name in ["enorm", "hnorm", "shared_head_norm"] {
                m.norm(&format!("{p}.nextn.{name}.weight"), &[width])?;
            }
        }
        Ok(m)
    }

    fn metadata(&self, m: &mut Synthetic) -> Result<(), Error> {
        let rotary = self.head_dim / 4;
        // The first three sections cover the rotary pairs, as 11, 11, 10 do for 32 of them.
        let pairs = (rotary / 2) as i32;
        let third = (pairs + 2) / 3;
        m.set(".block_count", self.layers + u32::from(self.mtp))?;
        m.set(".context_length", 262_144_u32)?;
        m.set(".embedding_length", self.width)?;
        m.set(".attention.head_count", self.heads)?;
        m.set(".attention.head_count_kv", self.kv_heads)?;
        m.set(".attention.key_length", self.head_dim)?;
        m.set(".attention.value_length", self.head_dim)?;
        m.set(".attention.layer_norm_rms_epsilon", 1e-6_f32)?;
        m.set(".rope.freq_base", 1e7_f32)?;
        m.set(".rope.dimension_count", rotary)?;
        m.set(".rope.dimension_sections", vec![third, third, pairs - 2 * third, 0])?;
        if self.experts == 0 {
            m.set(".feed_forward_length", self.expert_width)?;
        } else {
            m.set(".expert_count", self.experts)?;
            m.set(".expert_used_count", self.experts_used)?;
            m.set(".expert_feed_forward_length", self.expert_width)?;
            m.set(".expert_shared_feed_forward_length", self.expert_width)?;
        }
        m.set(".ssm.conv_kernel", 4_u32)?;
        m.set(".ssm.state_size", self.gdn_dim)?;
        m.set(".ssm.group_count", self.key_heads)?;
        m.set(".ssm.time_step_rank", self.value_heads)?;
        m.set(".ssm.inner_size", self.value_heads * self.gdn_dim)?;
        m.set(".full_attention_interval", 4_u32)?;
        if self.mtp {
            m.set(".nextn_predict_layers", 1_u32)?;
        }
        Ok(())
    }

    fn attention(&self, m: &mut Synthetic, p: &str) -> Result<(), Error> {
        let [width, heads, kv, dim] = [self.width, self.heads, self.kv_heads, self.head_dim].map(u64::from);
        let dense = self.types.dense;
        m.norm(&format!("{p}.attn_norm.weight"), &[width])?;
        m.matrix(&format!("{p}.attn_q.weight"), dense, &[width, heads * dim * 2])?;
        m.matrix(&format!("{p}.attn_k.weight"), dense, &[width, kv * dim])?;
        m.matrix(&format!("{p}.attn_v.weight"), dense, &[width, kv * dim])?;
        m.matrix(&format!("{p}.attn_output.weight"), dense, &[heads * dim, width])?;
        m.norm(&format!("{p}.attn_q_norm.weight"), &[dim])?;
        m.norm(&format!("{p}.attn_k_norm.weight"), &[dim])
    }

    fn gdn(&self, m: &mut Synthetic, p: &str) -> Result<(), Error> {
        let [width, key_heads, value_heads, dim] =
            [self.width, self.key_heads, self.value_heads, self.gdn_dim].map(u64::from);
        let (keys, values) = (key_heads * dim, value_heads * dim);
        let dense = self.types.dense;
        m.norm(&format!("{p}.attn_norm.weight"), &[width])?;
        m.matrix(&format!("{p}.attn_qkv.weight"), dense, &[width, 2 * keys + values])?;
        m.matrix(&format!("{p}.attn_gate.weight"), dense, &[width, values])?;
        m.tensor(&format!("{p}.ssm_conv1d.weight"), DType::F32, &[4, 2 * keys + values], Fill::Normal(0.0, 0.4))?;
        m.tensor(&format!("{p}.ssm_dt.bias"), DType::F32, &[value_heads], Fill::Uniform(-6.0, -1.0))?;
        m.tensor(&format!("{p}.ssm_a"), DType::F32, &[value_heads], Fill::Uniform(-8.0, -0.5))?;
        m.matrix(&format!("{p}.ssm_alpha.weight"), DType::F32, &[width, value_heads])?;
        m.matrix(&format!("{p}.ssm_beta.weight"), DType::F32, &[width, value_heads])?;
        m.norm(&format!("{p}.ssm_norm.weight"), &[dim])?;
        m.matrix(&format!("{p}.ssm_out.weight"), dense, &[values, width])
    }

    fn ffn(&self, m: &mut Synthetic, p: &str) -> Result<(), Error> {
        let [width, experts, inner] = [self.width, self.experts, self.expert_width].map(u64::from);
        let Types { experts: routed, dense, .. } = self.types;
        m.norm(&format!("{p}.post_attention_norm.weight"), &[width])?;
        if experts == 0 {
            m.matrix(&format!("{p}.ffn_gate.weight"), routed, &[width, inner])?;
            m.matrix(&format!("{p}.ffn_up.weight"), routed, &[width, inner])?;
            return m.matrix(&format!("{p}.ffn_down.weight"), routed, &[inner, width]);
        }
        m.tensor(&format!("{p}.ffn_gate_inp.weight"), DType::F32, &[width, experts], Fill::Normal(0.0, 0.15))?;
        m.matrix(&format!("{p}.ffn_gate_exps.weight"), routed, &[width, inner, experts])?;
        m.matrix(&format!("{p}.ffn_up_exps.weight"), routed, &[width, inner, experts])?;
        m.matrix(&format!("{p}.ffn_down_exps.weight"), routed, &[inner, width, experts])?;
        m.matrix(&format!("{p}.ffn_gate_inp_shexp.weight"), DType::F32, &[width])?;
        m.matrix(&format!("{p}.ffn_gate_shexp.weight"), dense, &[width, inner])?;
        m.matrix(&format!("{p}.ffn_up_shexp.weight"), dense, &[width, inner])?;
        m.matrix(&format!("{p}.ffn_down_shexp.weight"), dense, &[inner, width])
    }
}
