//! The experts over many tokens and over few against plain arithmetic, without adapters and with them. Both must give
//! the same bits.

use super::check::{Finding, floats, matrix, read, rounded, worst};
use super::check_lora::{Factors, table};
use super::check_many::{dot, same, words};
use super::lora::{self, Joint, NO_ADAPTER, Part, RANK_MAX, Who};
use super::low::Low;
use super::{Packing, experts, grouped, norm};
use crate::DType;
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::Random;

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut found = Vec::new();
    let alike =
        [DType::Q4_K, DType::IQ3_S, DType::Q5_K, DType::Q6_K, DType::Q8_0, DType::Q2_K, DType::F16, DType::BF16];
    // Gate and up need not be of one type.
    let mixed = [(DType::Q4_K, DType::Q5_K), (DType::Q8_0, DType::Q6_K), (DType::BF16, DType::IQ3_S)];
    for (gate, up) in alike.map(|t| (t, t)).into_iter().chain(mixed) {
        let scene = Scene::new(d, gate, up)?;
        found.push(scene.plain()?);
        found.push(scene.joined()?);
    }
    found.push(Scene::new(d, DType::F32, DType::F32)?.joined()?);
    Ok(found)
}

const INPUTS: usize = 512;
const WIDTH: usize = 256;
/// Tokens of the kernels for many of them, and for few.
const MANY: usize = 75;
const FEW: usize = 8;

/// Three experts with two choices a token: every fifth token goes to expert 0 besides expert 2, the others to 2 twice,
/// none to 1. The shared expert is expert 0 again.
struct Scene<'a> {
    d: &'a Device,
    /// Of gate and up.
    dtypes: (DType, DType),
    gate: (Buffer, Vec<f32>),
    up: (Buffer, Vec<f32>),
    down: (Buffer, Vec<f32>),
    expert: experts::Expert,
    x: Vec<f32>,
    /// As the products read it.
    used: Vec<f32>,
}

/// Inner values as floats, and as halves, two a word; results.
struct Results {
    h: Vec<f32>,
    hh: Vec<f32>,
    y: Vec<f32>,
}

fn choice(pair: usize) -> usize {
    if pair % 10 == 1 { 0 } else { 2 }
}

/// Token and expert of a pair among those of `tokens` tokens.
fn token_of(pair: usize, tokens: usize) -> (usize, usize) {
    if pair >= 2 * tokens { (pair - 2 * tokens, 0) } else { (pair / 2, choice(pair)) }
}

/// Whether the first tokens of a run over many have the bits of the run over few.
fn alike(many: &[f32], little: &[f32], row: usize, few: usize) -> bool {
    same(&many[..2 * few * row], &little[..2 * few * row])
        && same(&many[2 * MANY * row..][..few * row], &little[2 * few * row..])
}

impl<'a> Scene<'a> {
    fn new(d: &'a Device, gate: DType, up: DType) -> Result<Scene<'a>, GpuError> {
        let dtypes = (gate, up);
        let of = |dtype| matrix(d, dtype, 3 * WIDTH, INPUTS);
        let packing = Packing::of(up, WIDTH);
        let bytes = |dtype| Packing::of(dtype, INPUTS).bytes(WIDTH, INPUTS) as u64;
        let (gate, up, down) = (of(gate)?, of(up)?, matrix(d, up, 3 * INPUTS, WIDTH)?);
        let expert = experts::Expert {
            gate: gate.0.at(),
            up: up.0.at(),
            down: down.0.at(),
            gate_bytes: bytes(dtypes.0),
            up_bytes: bytes(dtypes.1),
            down_bytes: packing.bytes(INPUTS, WIDTH) as u64,
            gate_packing: Packing::of(dtypes.0, INPUTS) as u32,
            up_packing: packing as u32,
            down_packing: packing as u32,
            width: WIDTH as u32,
            places: 0,
        };
        // Weights of the samples are large: such inputs leave inner values of the usual size.
        let x: Vec<f32> = Random(4).normals(MANY * INPUTS).into_iter().map(|v| v / 64.0).collect();
        let used = if packing.is_float() { x.clone() } else { rounded(&x) };
        Ok(Scene { d, dtypes, gate, up, down, expert, x, used })
    }

    /// The first `tokens` tokens; `joint` is given the inputs and the experts chosen.
    fn run(
        &self,
        tokens: usize,
        joint: impl FnOnce(&Buffer, &Buffer) -> Result<Joint, GpuError>,
    ) -> Result<Results, GpuError> {
        let (d, all) = (self.d, 3 * tokens);
        let chosen: Vec<u32> = (0..2 * tokens).map(|p| choice(p) as u32).collect();
        let pairs: Vec<u32> =
            [0, 2].iter().flat_map(|e| (0..2 * tokens as u32).filter(|p| chosen[*p as usize] == *e)).collect();
        let zeros = chosen.iter().filter(|e| **e == 0).count() as u32;
        let start = [0, zeros, zeros, 2 * tokens as u32];
        let mut list = vec![[0; 4]];
        for e in [0, 2] {
            for first in (start[e]..start[e + 1]).step_by(grouped::GROUP) {
                list.push([e as u32, first, (start[e + 1] - first).min(grouped::GROUP as u32), 0]);
            }
        }
        list[0][0] = list.len() as u32 - 1;
        let xs = floats(d, &self.x[..tokens * INPUTS])?;
        let halves = d.zeroed(2 * tokens * INPUTS)?;
        norm::halve(d, xs.at(), tokens, INPUTS, halves.at())?;
        let (h, hh) = (d.zeroed(4 * all * WIDTH)?, d.zeroed(2 * all * WIDTH)?);
        let active: &[u32] = if zeros > 0 { &[2, 0, 2, 0] } else { &[1, 2, 0, 0] };
        let (y, active) = (d.zeroed(4 * all * INPUTS)?, words(d, active)?);
        let (start, pairs, work) = (words(d, &start)?, words(d, &pairs)?, words(d, &list.concat())?);
        let chosen = words(d, &chosen)?;
        let a = experts::Experts {
            routed: self.expert,
            shared: self.expert,
            active: active.at(),
            start: start.at(),
            pairs: pairs.at(),
            x: xs.at(),
            halves: halves.at(),
            h: h.at(),
            hh: hh.at(),
            y: y.at(),
            work: work.at(),
            inputs: INPUTS as u32,
            tokens: tokens as u32,
            used: 2,
            stride: WIDTH as u32,
            joint: joint(&xs, &chosen)?,
            ..Default::default()
        };
        experts::up(d, &a, &Low::default(), 3)?;
        if tokens > 2 {
            experts::down(d, &a, &Low::default(), 3)?;
        }
        Ok(Results { h: read(&h, all * WIDTH)?, hh: read(&hh, all * WIDTH / 2)?, y: read(&y, all * INPUTS)? })
    }

    /// What gate and up make of a row of activations, before adapters.
    fn products(&self, e: usize, row: usize, x: &[f32]) -> [f64; 2] {
        [&self.gate.1, &self.up.1].map(|m| dot(&m[(e * WIDTH + row) * INPUTS..][..INPUTS], x))
    }

    fn types(&self) -> String {
        let (gate, up) = self.dtypes;
        if gate == up { format!("{gate:?}") } else { format!("{gate:?} and {up:?}") }
    }

    fn plain(&self) -> Result<Finding, GpuError> {
        let none = |_: &Buffer, _: &Buffer| Ok(Joint::default());
        let (many, little) = (self.run(MANY, none)?.y, self.run(FEW, none)?.y);
        let mut error = if alike(&many, &little, INPUTS, FEW) { 0.0 } else { f64::INFINITY };
        for pair in [0, 1, 2 * MANY - 2, 2 * MANY, 3 * MANY - 1] {
            let (token, e) = token_of(pair, MANY);
            let row = &self.used[token * INPUTS..][..INPUTS];
            let inner = |r: usize| {
                let [g, u] = self.products(e, r, row);
                (g / (1.0 + (-g).exp()) * u) as f32
            };
            let inner = rounded(&(0..WIDTH).map(inner).collect::<Vec<_>>());
            let size = dot(&inner, &inner).sqrt();
            for r in 0..INPUTS {
                let weights = &self.down.1[(e * INPUTS + r) * WIDTH..][..WIDTH];
                let wanted = dot(weights, &inner);
                let scale = size * dot(weights, weights).sqrt();
                error = worst(error, (f64::from(many[pair * INPUTS + r]) - wanted).abs() / scale);
            }
        }
        let what = format!("{} {INPUTS}→{WIDTH}, {MANY} tokens", self.types());
        Ok(Finding { kernel: "grouped", what, error, limit: 5e-3 })
    }

    /// Inner values under two adapters, of which one has no factors for `up`, and under none.
    fn joined(&self) -> Result<Finding, GpuError> {
        let d = self.d;
        let make = |rank, experts, seed| Factors::new(d, rank, INPUTS, WIDTH, experts, seed);
        let (gate, up) = (make(5, 3, 1)?, make(5, 3, 2)?);
        let (shared_gate, shared_up, other) = (make(5, 1, 3)?, make(5, 1, 4)?, make(12, 3, 5)?);
        let one = [Some(&gate), Some(&up), Some(&shared_gate), Some(&shared_up)];
        let two = [Some(&other), None, None, None];
        let list = table(d, &[&one, &two])?;
        let adapters = words(d, &[0, 1, NO_ADAPTER])?;
        let slots = words(d, &(0..MANY as u32).map(|t| t / 10 % 3).collect::<Vec<_>>())?;
        let inner = d.zeroed(2 * 4 * 3 * MANY * RANK_MAX)?;
        let run = |tokens: usize| {
            self.run(tokens, |x, chosen| {
                let who =
                    Who { factors: list.at(), adapter: adapters.at(), slot: slots.at(), places: 4, ..Who::default() };
                let up_at = 4 * 3 * MANY * RANK_MAX;
                let part = |place: usize| {
                    let (routed, is_up) = (place < 2, place % 2 == 1);
                    let first = if routed { 0 } else { 2 * tokens };
                    Part {
                        x: x.at(),
                        inner: inner.from(usize::from(is_up) * up_at + 4 * first * RANK_MAX),
                        chosen: if routed { chosen.at() } else { 0 },
                        place: place as u32,
                        inputs: INPUTS as u32,
                        outputs: WIDTH as u32,
                        stride: INPUTS as u32,
                        rows: if routed { 2 * tokens } else { tokens } as u32,
                        fan: if routed { 2 } else { 1 },
                        used: if routed { 2 } else { 1 },
                        ..Part::default()
                    }
                };
                lora::inner(d, who, &[part(0), part(1), part(2), part(3)])?;
                Ok(Joint {
                    who,
                    gate: inner.at(),
                    up: inner.from(up_at),
                    gate_place: 0,
                    up_place: 1,
                    shared_gate_place: 2,
                    shared_up_place: 3,
                })
            })
        };
        let (many, little, single) = (run(MANY)?, run(FEW)?, run(1)?);
        let mut bits = alike(&many.h, &little.h, WIDTH, FEW) && alike(&many.h, &single.h, WIDTH, 1);
        bits &= alike(&many.hh, &little.hh, WIDTH / 2, FEW);
        let base = self.run(MANY, |_, _| Ok(Joint::default()))?.hh;
        let mut error = 0.0;
        for pair in 0..3 * MANY {
            let (token, e) = token_of(pair, MANY);
            let mine = [one, two, [None; 4]][token / 10 % 3];
            if mine[0].is_none() {
                let row = pair * WIDTH / 2..(pair + 1) * WIDTH / 2;
                bits &= same(&many.hh[row.clone()], &base[row]);
            }
            if pair % 7 > 0 {
                continue;
            }
            let (x, used) = (&self.x[token * INPUTS..][..INPUTS], &self.used[token * INPUTS..][..INPUTS]);
            let (g, u) = if pair >= 2 * MANY { (mine[2], mine[3]) } else { (mine[0], mine[1]) };
            for r in 0..WIDTH {
                let product = self.products(e, r, used);
                let adds = |f: Option<&Factors>| f.map_or(0.0, |f| f.adds(e, x, WIDTH, r));
                let (g, u) = (product[0] + adds(g), product[1] + adds(u));
                let wanted = g / (1.0 + (-g).exp()) * u;
                error = worst(
                    error,
                    (f64::from(many.h[pair * WIDTH + r]) - wanted).abs() / ((1.0 + g.abs()) * (1.0 + u.abs())),
                );
            }
        }
        let error = if bits { error } else { f64::INFINITY };
        let what = format!("{} {INPUTS}→{WIDTH}, {MANY} tokens under adapters", self.types());
        Ok(Finding { kernel: "experts_up_joined", what, error, limit: 4e-3 })
    }
}
