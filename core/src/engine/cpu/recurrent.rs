//! The GDN stages, and the output projection that both mixers share.

use super::attention::gated;
use super::buffers::set_len;
use super::run::Run;
use super::sequence::{LayerState, Sequence};
use crate::engine::model::passes::{GRID, Span};
use crate::engine::model::state::Slots;
use crate::engine::model::weights::Mixer;
use chimere_ffi::cpu::{GdnRows, GdnSpan, Product, gdn, matmul_adapted};

impl Run<'_> {
    pub(super) fn gdn_project(&mut self, i: usize) {
        let layer = self.layer(i);
        let Mixer::Gdn(w) = &layer.mixer else { return };
        let (b, p) = (&mut *self.b, &self.hp.gdn);
        b.input.rms_norm(self.pool, &b.x, &layer.norm, self.hp.rms_eps, self.forms[i].input);
        set_len(&mut b.qkv, self.rows * p.channels());
        set_len(&mut b.z, self.rows * p.value_dim());
        set_len(&mut b.alpha, self.rows * p.value_heads);
        set_len(&mut b.beta, self.rows * p.value_heads);
        let mut products = [
            Product { weight: &w.qkv, out: &mut b.qkv, add: false },
            Product { weight: &w.gate, out: &mut b.z, add: false },
            Product { weight: &w.alpha, out: &mut b.alpha, add: false },
            Product { weight: &w.beta, out: &mut b.beta, add: false },
        ];
        let who = &self.who;
        let (qkv, z, alpha, beta) = (
            |t: usize| who.layer(t, i)?.qkv.as_ref(),
            |t: usize| who.layer(t, i)?.z.as_ref(),
            |t: usize| who.layer(t, i)?.alpha.as_ref(),
            |t: usize| who.layer(t, i)?.beta.as_ref(),
        );
        matmul_adapted(self.pool, &b.input, &mut products, who.picks(&[&qkv, &z, &alpha, &beta]));
    }

    /// The kernel uses the chunked form for every 64 rows from the start of a span, so a span that starts off the
    /// grid is brought onto it first.
    pub(super) fn gdn_mix(&mut self, i: usize) {
        self.b.gdn_out.set_rows(self.rows);
        let lead = |s: &Span| if s.len >= GRID { (GRID - s.position % GRID) % GRID } else { 0 };
        if self.pass.spans.iter().any(|s| lead(s) > 0) {
            self.gdn_spans(i, |s| (s.start, lead(s)));
        }
        self.gdn_spans(i, |s| (s.start + lead(s), s.len - lead(s)));
    }

    /// Runs the kernel over part of each span: `part` gives its first row and its length.
    fn gdn_spans(&mut self, i: usize, part: impl Fn(&Span) -> (usize, usize)) {
        let Some(layer) = &self.gdn[i] else { return };
        let b = &mut *self.b;
        let rows = GdnRows { qkv: &b.qkv, z: &b.z, alpha: &b.alpha, beta: &b.beta };
        let mut spans = gdn_spans(self.slots, &self.pass.spans, i, part);
        gdn(self.pool, layer, rows, &mut spans, b.gdn_out.data_mut(), &mut b.gdn_scratch);
    }

    pub(super) fn mixer_output(&mut self, i: usize) {
        let layer = self.layer(i);
        let b = &mut *self.b;
        let (pool, forms) = (self.pool, self.forms[i].output);
        let (act, weight) = match &layer.mixer {
            Mixer::Gdn(w) => {
                b.gdn_out.quantize(pool, forms);
                (&b.gdn_out, &w.out)
            }
            Mixer::Attention(w) => {
                gated(pool, &mut b.attention_out, &b.mixed, &b.query_gate, self.hp.attention.head_dim, forms);
                (&b.attention_out, &w.out)
            }
        };
        let pick = |t: usize| self.who.layer(t, i)?.out.as_ref();
        let mut product = [Product { weight, out: &mut b.x, add: true }];
        matmul_adapted(pool, act, &mut product, self.who.picks(&[&pick]));
    }
}

/// The states of layer `i` with their rows, in the order of the slots (each sequence occurs once).
fn gdn_spans<'s>(
    slots: &'s mut Slots<Sequence>,
    spans: &[Span],
    i: usize,
    part: impl Fn(&Span) -> (usize, usize),
) -> Vec<GdnSpan<'s>> {
    let mut list = Vec::with_capacity(spans.len());
    for (slot, sequence) in slots.states_mut().enumerate() {
        let Some(span) = spans.iter().find(|s| s.slot == slot) else { continue };
        let (start, len) = part(span);
        if let (LayerState::Gdn(state), 1..) = (sequence.layer_mut(i), len) {
            list.push(GdnSpan { start, len, state });
        }
    }
    list
}
