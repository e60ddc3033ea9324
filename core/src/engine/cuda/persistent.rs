//! A pass of few rows as one launch: the stages of the trunk become the steps of a program that blocks go through
//! together. Whether a model and a card allow it is decided once, when the model is loaded.

use chimere_ffi::gpu::{Buffer, Device, GpuError, Together};
use chimere_ffi::kernels::embed::Embed;
use chimere_ffi::kernels::persistent::{self, Dense, Experts, Kind, Persist, Placed, Program, ROWS_MAX};
use serde::Serialize;

use super::adapters::Touched;
use super::run::Run;
use super::weights::Matrix;
use super::{Cuda, computing};
use crate::engine::backend::{BackendError, SeqId};
use crate::engine::model::stages::Stage;
use crate::engine::model::state::Part;
use crate::engine::model::weights::Mixer;

/// How few rows are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Decode {
    /// A launch for each kernel, recorded in a graph.
    #[default]
    Launches,
    /// One launch for all of them, where the card can run its blocks at the same time.
    Persistent,
}

pub(super) struct Persistent {
    args: Persist,
    together: Together,
    kinds: Vec<Kind>,
    /// What the addresses in `args` and in the program name.
    _buffers: [Buffer; 5],
}

/// What the steps of a kind took in one pass, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepTime {
    pub step: &'static str,
    pub count: u32,
    /// From the end of the slowest block of the step before to that of this one: these add up to the pass.
    pub total: f64,
    /// Of that, until the blocks knew that the step before was over (mean).
    pub barrier: f64,
    /// Of a block, mean and longest, after that.
    pub mean: f64,
    pub longest: f64,
}

/// Why this model, as it is hosted, cannot be decoded by one launch.
fn unfit(c: &Cuda) -> Option<&'static str> {
    let (hp, s) = (&c.hp, &c.sizes);
    let rules = [
        (s.packed, "its experts are floats"),
        (hp.moe.used <= persistent::USED_MAX, "a token goes to more than 8 experts"),
        (s.kv_bytes == 2, "keys and values are kept as floats"),
        (s.attention_rows >= ROWS_MAX, "its context is too long for eight rows at once"),
        (hp.width % 32 == 0, "its width is no multiple of 32"),
    ];
    rules.iter().find(|rule| !rule.0).map(|rule| rule.1)
}

impl Persistent {
    /// The program of `c`'s trunk on its device, or why there is none.
    pub(super) fn new(c: &Cuda) -> Result<Result<Persistent, &'static str>, GpuError> {
        if let Some(reason) = unfit(c) {
            return Ok(Err(reason));
        }
        let d = &c.device;
        let Some(together) = persistent::together(d)? else {
            return Ok(Err("the card does not run blocks that wait for each other"));
        };
        let shared = c.weights.layers.iter().map(|layer| layer.moe.shared_gate.rows).max().unwrap_or(0);
        let [gate, up] = [d.zeroed(4 * ROWS_MAX * shared)?, d.zeroed(4 * ROWS_MAX * shared)?];
        let Some(placed) = program(c, &gate, &up).place(together) else {
            return Ok(Err("a block of the card has too little shared memory"));
        };
        let Placed { layout, steps, items, kinds } = placed;
        let (stages, items, state) = (d.buffer(&steps)?, d.buffer(&items)?, d.zeroed(16)?);
        let args = Persist { stages: stages.at(), items: items.at(), state: state.at(), ..layout.args(kinds.len()) };
        Ok(Ok(Persistent { args, together, kinds, _buffers: [gate, up, stages, items, state] }))
    }

    /// Whether a pass of so many rows is its own.
    pub(super) fn serves(&self, part: Part, rows: usize, wanted: usize) -> bool {
        part == Part::Trunk && rows == wanted && (1..=ROWS_MAX).contains(&rows)
    }

    pub(super) fn launch(
        &self,
        d: &Device,
        rows: usize,
        spans: usize,
        stamps: Option<&Buffer>,
    ) -> Result<(), GpuError> {
        let a = Persist { rows: rows as u32, spans: spans as u32, stamps: stamps.map_or(0, Buffer::at), ..self.args };
        persistent::launch(d, &a, self.together)
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let Together { blocks, shared_bytes } = self.together;
        let (steps, ring) = (self.kinds.len(), self.args.ring_bytes >> 10);
        format!(
            "one launch of {blocks} blocks, {steps} steps, {} KB a block, {ring} of them for weights ahead",
            shared_bytes >> 10
        )
    }

    /// Sums over the steps of each kind; `stamps` as [blocks][steps][2].
    fn times(&self, stamps: &[u64]) -> Vec<StepTime> {
        let steps = self.kinds.len();
        let blocks: Vec<&[u64]> = stamps.chunks(2 * steps).collect();
        let us = |ns: f64| ns / 1e3;
        let mean = |values: &dyn Fn(&[u64]) -> u64| {
            blocks.iter().map(|b| values(b) as f64).sum::<f64>() / blocks.len().max(1) as f64
        };
        let mut found: Vec<StepTime> = Vec::new();
        let mut over = blocks.iter().map(|b| b[0]).min().unwrap_or(0);
        for (s, kind) in self.kinds.iter().enumerate() {
            let name = name(*kind, self.kinds.get(s + 1).copied());
            let at = found.iter().position(|t| t.step == name).unwrap_or(found.len());
            if at == found.len() {
                found.push(StepTime { step: name, count: 0, total: 0.0, barrier: 0.0, mean: 0.0, longest: 0.0 });
            }
            let took = |b: &[u64]| b[2 * s + 1].saturating_sub(b[2 * s]);
            let end = blocks.iter().map(|b| b[2 * s + 1]).max().unwrap_or(over);
            let t = &mut found[at];
            t.count += 1;
            t.total += us(end.saturating_sub(over) as f64);
            t.barrier += us(mean(&|b| b[2 * s].saturating_sub(over)));
            t.mean += us(mean(&took));
            t.longest += us(blocks.iter().map(|b| took(b)).max().unwrap_or(0) as f64);
            over = end;
        }
        found
    }
}

/// A product is called after what comes next.
fn name(kind: Kind, next: Option<Kind>) -> &'static str {
    match (kind, next) {
        (Kind::Embed, _) => "embed",
        (Kind::Dense, None) => "head",
        (Kind::Dense, Some(Kind::Gdn)) => "project, gdn",
        (Kind::Dense, Some(Kind::Cache)) => "project, attention",
        (Kind::Dense, Some(Kind::Dense)) => "mixer's output",
        (Kind::Dense, Some(_)) => "router and shared",
        (Kind::Gdn, _) => "gdn",
        (Kind::Cache, _) => "cache",
        (Kind::Attend, _) => "attend",
        (Kind::Join, _) => "join",
        (Kind::Up, _) => "experts up",
        (Kind::Down, _) => "experts down",
    }
}

fn program(c: &Cuda, gate: &Buffer, up: &Buffer) -> Program {
    let (m, hp, w, run) = (&c.memory, &c.hp, &c.weights, Run::new(c, Part::Trunk, 1, 1, 1));
    let mut p = Program::default();
    let list = |all: &[(&Matrix, u64)]| all.iter().map(|(m, out)| (m.weight(), *out)).collect::<Vec<_>>();
    let normed = |norm: &Buffer| Dense {
        x: m.x.at(),
        norm: norm.at(),
        inputs: hp.width as u32,
        eps: hp.rms_eps,
        ..Default::default()
    };
    for stage in &c.trunk {
        match *stage {
            Stage::Embed => p.embed(&Embed {
                table: w.embedding.buffer.at(),
                tokens: m.plan.at(),
                out: m.x.at(),
                inputs: hp.width as u32,
                packing: w.embedding.packing as u32,
            }),
            Stage::GdnProject(i) | Stage::AttentionProject(i) => {
                let layer = &w.layers[i];
                let products = match &layer.mixer {
                    Mixer::Gdn(g) => {
                        let out = [m.qkv.at(), m.z.at(), m.alpha.at(), m.beta.at()];
                        list(&[(&g.qkv, out[0]), (&g.gate, out[1]), (&g.alpha, out[2]), (&g.beta, out[3])])
                    }
                    Mixer::Attention(a) => list(&[(&a.q, m.query_gate.at()), (&a.k, m.k.at()), (&a.v, m.v.at())]),
                };
                p.dense(normed(&layer.norm), &products);
            }
            Stage::GdnMix(i) => run.gdn(i).iter().for_each(|a| p.gdn(a)),
            Stage::AttentionMix(i) => {
                if let (Some(cache), Some((attend, join))) = (run.cache(i), run.attend_few(i)) {
                    p.attention(&cache, &attend, &join);
                }
            }
            Stage::MixerOutput(i) => {
                let (out, inputs) = match &w.layers[i].mixer {
                    Mixer::Gdn(g) => (&g.out, hp.gdn.value_dim()),
                    Mixer::Attention(a) => (&a.out, hp.attention.heads * hp.attention.head_dim),
                };
                let from = m.mixed.quantised();
                let (x, inputs) = (m.mixed.x.at(), inputs as u32);
                let a = Dense { x, q: from.q, side: from.side, inputs, add: 1, ..Default::default() };
                p.dense(a, &list(&[(out, m.x.at())]));
            }
            Stage::Route(i) => {
                let moe = &w.layers[i].moe;
                let shared = [(&moe.shared_gate, gate.at()), (&moe.shared_up, up.at())];
                p.dense(normed(&w.layers[i].post_norm), &list(&[(&moe.router, m.router.at()), shared[0], shared[1]]));
            }
            Stage::Experts(i) => p.experts(&experts(c, &run, i, gate, up)),
            Stage::Head => p.dense(normed(&w.output_norm), &list(&[(&w.head, m.logits.at())])),
            // The cache is filled with the mix; nothing is narrowed where every row is wanted.
            Stage::AttentionCache(_) | Stage::Narrow(_) | Stage::Combine => {}
        }
    }
    p
}

fn experts(c: &Cuda, run: &Run<'_>, i: usize, gate: &Buffer, up: &Buffer) -> Experts {
    let (m, p, (routed, shared)) = (&c.memory, &c.hp.moe, run.matrices(i));
    Experts {
        routed,
        shared,
        logits: m.router.at(),
        h: m.h.x.at(),
        gate: gate.at(),
        up: up.at(),
        residual: m.x.at(),
        inputs: c.hp.width as u32,
        used: p.used as u32,
        experts: p.experts as u32,
        stride: c.sizes.inner as u32,
    }
}

impl Cuda {
    /// What runs such a pass as one launch, if anything does; adapters are computed launch by launch.
    pub(super) fn one_launch(&self, part: Part, rows: usize, wanted: usize, touched: &Touched) -> Option<&Persistent> {
        self.persistent.as_ref().filter(|p| touched.is_empty() && p.serves(part, rows, wanted))
    }

    /// Takes the way of decoding that was asked for, where it can be.
    pub(super) fn decode_by(&mut self, decode: Decode) -> Result<(), GpuError> {
        if decode == Decode::Persistent {
            match Persistent::new(self)? {
                Ok(persistent) => self.persistent = Some(persistent),
                Err(reason) => tracing::warn!(reason, "few rows are decoded launch by launch"),
            }
        }
        tracing::info!(by = %self.decodes_by(), "decoding");
        Ok(())
    }

    /// How few rows are decoded, for people.
    pub fn decodes_by(&self) -> String {
        self.persistent.as_ref().map_or_else(|| "a launch for each kernel".into(), Persistent::describe)
    }

    /// What each step of one pass of these sequences takes; nothing where it is no single launch.
    pub fn step_times(&mut self, seqs: &[SeqId], first: &[u32]) -> Result<Vec<StepTime>, BackendError> {
        let slots = self.place(seqs, first, 1)?;
        let rows = slots.len();
        let Some(p) = self.one_launch(Part::Trunk, rows, rows, &self.touched(slots.iter().copied())) else {
            return Ok(Vec::new());
        };
        let words = 2 * p.kinds.len() * p.together.blocks as usize;
        let measure = || -> Result<Vec<u64>, GpuError> {
            let stamps = self.device.zeroed(8 * words)?;
            // The second pass finds code and tables where they stay.
            for _ in 0..2 {
                stamps.zero(0..8 * words)?;
                p.launch(&self.device, rows, rows, Some(&stamps))?;
            }
            let mut found = vec![0_u8; 8 * words];
            stamps.read(0, &mut found)?;
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |w, b| w << 8 | u64::from(*b));
            Ok(found.chunks(8).map(word).collect())
        };
        let times = p.times(&measure().map_err(computing)?);
        slots.into_iter().for_each(|slot| self.slots.advance(slot, Part::Trunk, 1));
        Ok(times)
    }
}
