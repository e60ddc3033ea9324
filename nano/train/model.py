"""nano: a `qwen35moe` model (gated-delta-net and attention layers, mixture of experts, one MTP layer) in plain PyTorch.

Every parameter has the name, the shape and the convention of its GGUF tensor: norm weights are the full factor, value heads tile
over key heads (value head h reads key head h mod key_heads), per head the query rows are followed by the gate rows. Export and
fine-tuning from a GGUF are then plain copies; only ssm_a = -exp(A_log) is a formula.

Tokens of a batch are one flat axis N = B*T except inside the two mixers; `pos` is the distance to the start of the document (or
of the row), which is all that is needed to keep documents of one row apart: convolution taps are masked, the recurrent state is
wiped by adding -60 to the log decay, attention is masked.
"""
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from . import gdn


@dataclass
class Config:
    vocab: int = 8192
    hidden: int = 512
    layers: int = 8                 # layer i is attention when (i + 1) % 4 == 0, else gated delta net
    experts: int = 8
    experts_used: int = 2
    ff: int = 256                   # width of an expert and of the shared expert
    key_heads: int = 2
    value_heads: int = 4
    gdn_dim: int = 128
    heads: int = 4
    kv_heads: int = 1
    head_dim: int = 128
    conv: int = 4
    rope_base: float = 1e4
    eps: float = 1e-6

    @property
    def rope_dim(self):
        return self.head_dim // 4

    @property
    def key_dim(self):
        return self.key_heads * self.gdn_dim

    @property
    def value_dim(self):
        return self.value_heads * self.gdn_dim

    def is_attention(self, i):
        return (i + 1) % 4 == 0

    def dict(self):
        return asdict(self)


NANO = Config()
TINY = Config(vocab=8192, hidden=256, layers=4, experts=4, ff=256, key_heads=1, value_heads=2, gdn_dim=128, heads=2, head_dim=128)


def rms(x, w, eps=1e-6):
    return (F.rms_norm(x.float(), (x.shape[-1],), eps=eps) * w).to(x.dtype)


def matrix(rows, cols, std=0.02):
    return nn.Parameter(torch.randn(rows, cols) * std)


class Block(nn.Module):
    """Mixer and experts of one layer. Parameter names are the GGUF names without "blk.N." (dots written as "__")."""

    def __init__(self, c, attention):
        super().__init__()
        self.c, self.attention, h = c, attention, c.hidden
        out_std = 0.02 / math.sqrt(2 * c.layers)
        self.attn_norm = nn.Parameter(torch.ones(h))
        self.post_attention_norm = nn.Parameter(torch.ones(h))
        if attention:
            self.attn_q = matrix(c.heads * c.head_dim * 2, h)
            self.attn_k = matrix(c.kv_heads * c.head_dim, h)
            self.attn_v = matrix(c.kv_heads * c.head_dim, h)
            self.attn_output = matrix(h, c.heads * c.head_dim, out_std)
            self.attn_q_norm = nn.Parameter(torch.ones(c.head_dim))
            self.attn_k_norm = nn.Parameter(torch.ones(c.head_dim))
        else:
            channels, v = 2 * c.key_dim + c.value_dim, c.value_heads
            self.attn_qkv = matrix(channels, h)
            self.attn_gate = matrix(c.value_dim, h)
            self.ssm_alpha = matrix(v, h)
            self.ssm_beta = matrix(v, h)
            self.ssm_conv1d = nn.Parameter(torch.randn(channels, c.conv) * 0.3)
            # memory from a few to about 1,000 tokens at the start; the all-ones of some libraries forgets within a few
            self.ssm_a_log = nn.Parameter((torch.rand(v) * 15 + 1).log())
            dt = torch.exp(torch.rand(v) * math.log(100) + math.log(1e-3))
            self.ssm_dt = nn.Parameter(torch.log(torch.expm1(dt)))
            self.ssm_norm = nn.Parameter(torch.ones(c.gdn_dim))
            self.ssm_out = matrix(h, c.value_dim, out_std)
        e, f = c.experts, c.ff
        self.ffn_gate_inp = matrix(e, h)
        self.ffn_gate_inp_shexp = nn.Parameter(torch.zeros(h))
        self.ffn_gate_exps = nn.Parameter(torch.randn(e, f, h) * 0.02)
        self.ffn_up_exps = nn.Parameter(torch.randn(e, f, h) * 0.02)
        self.ffn_down_exps = nn.Parameter(torch.randn(e, h, f) * out_std)
        self.ffn_gate_shexp = matrix(f, h)
        self.ffn_up_shexp = matrix(f, h)
        self.ffn_down_shexp = matrix(h, f, out_std)

    # ---- gated delta net ----
    def gdn_inputs(self, x, pos, taps=None):
        """x [N,h] -> q, k [N,H,K], v [N,H,V] f32, g, b [N,H] f32, z [N,H,V], conv inputs [N,channels].
        `taps` (decoding) are the three earlier conv inputs [N,3,channels]; in training they are the rows before, masked by `pos`."""
        c, n = self.c, rms(x, self.attn_norm)
        m = F.linear(n, self.attn_qkv.to(x.dtype))
        w = self.ssm_conv1d.to(x.dtype)
        y = m * w[:, 3]
        for j in (1, 2, 3):
            past = F.pad(m, (0, 0, j, 0))[:-j] * (pos >= j)[:, None].to(x.dtype) if taps is None else taps[:, 3 - j]
            y = y + past * w[:, 3 - j]
        q, k, v = F.silu(y).split([c.key_dim, c.key_dim, c.value_dim], -1)
        unit = lambda t: t * torch.rsqrt(t.square().sum(-1, keepdim=True) + c.eps)
        rep = c.value_heads // c.key_heads
        q = unit(q.float().view(-1, c.key_heads, c.gdn_dim)).repeat(1, rep, 1)          # tiled: head h uses h mod key_heads
        k = unit(k.float().view(-1, c.key_heads, c.gdn_dim)).repeat(1, rep, 1)
        v = v.float().view(-1, c.value_heads, c.gdn_dim)
        g = -self.ssm_a_log.exp() * F.softplus(F.linear(n, self.ssm_alpha.to(x.dtype)).float() + self.ssm_dt)
        g = g + (pos == 0)[:, None] * -60.0
        b = F.linear(n, self.ssm_beta.to(x.dtype)).float().sigmoid()
        z = F.linear(n, self.attn_gate.to(x.dtype)).view(-1, c.value_heads, c.gdn_dim)
        return q, k, v, g, b, z, m

    def gdn_output(self, x, o, z, even=None):
        y = F.rms_norm(o.float(), (self.c.gdn_dim,), eps=self.c.eps) * self.ssm_norm * F.silu(z.float())
        return self.ffn(x + F.linear(y.to(x.dtype).flatten(1), self.ssm_out.to(x.dtype)), even)

    # ---- attention ----
    def attn_inputs(self, x, place):
        """x [N,h], place [N] position for the rotation -> q [N,heads,d], gate, k, v [N,kv,d]."""
        c, n = self.c, rms(x, self.attn_norm)
        q, gate = F.linear(n, self.attn_q.to(x.dtype)).view(-1, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = F.linear(n, self.attn_k.to(x.dtype)).view(-1, c.kv_heads, c.head_dim)
        v = F.linear(n, self.attn_v.to(x.dtype)).view(-1, c.kv_heads, c.head_dim)
        r = c.rope_dim
        freq = c.rope_base ** (-torch.arange(0, r, 2, device=x.device).float() / r)
        angle = place[:, None].float() * freq
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]

        def rope(t, w):
            t = rms(t, w, c.eps).float()
            a, b2, rest = t[..., :r // 2], t[..., r // 2:r], t[..., r:]
            return torch.cat([a * cos - b2 * sin, b2 * cos + a * sin, rest], -1).to(x.dtype)
        return rope(q, self.attn_q_norm), gate, rope(k, self.attn_k_norm), v

    def attn_output_ffn(self, x, o, gate, even=None):
        return self.ffn(x + F.linear((o * gate.sigmoid()).flatten(1), self.attn_output.to(x.dtype)), even)

    # ---- experts ----
    def ffn(self, x, even=None):
        """Residual and experts: every expert on every token (static shapes). Returns x', balance loss, load [experts].
        `even` [N] weighs tokens whose loads shall be even among themselves too: experts that are in balance over all text may
        still divide it by domain."""
        c, n, t = self.c, rms(x, self.post_attention_norm), x.dtype
        p = F.linear(n.float(), self.ffn_gate_inp).softmax(-1)
        w, ix = p.topk(c.experts_used, -1)
        w = w / w.sum(-1, keepdim=True)
        mask = F.one_hot(ix, c.experts).float()
        load = mask.mean((0, 1))
        aux = c.experts * (load * p.mean(0)).sum()
        if even is not None:
            part = even[:, None] / even.sum().clamp(min=1)
            aux = aux + c.experts * ((mask.mean(1) * part).sum(0) * (p * part).sum(0)).sum()
        gates = (mask * w[..., None]).sum(1).to(t)
        flat = lambda m: m.to(t).flatten(0, 1)
        a = (F.silu(F.linear(n, flat(self.ffn_gate_exps))) * F.linear(n, flat(self.ffn_up_exps))).view(-1, c.experts, c.ff) * gates[..., None]
        y = a.flatten(1) @ self.ffn_down_exps.to(t).transpose(1, 2).flatten(0, 1)
        shared = F.linear(F.silu(F.linear(n, self.ffn_gate_shexp.to(t))) * F.linear(n, self.ffn_up_shexp.to(t)), self.ffn_down_shexp.to(t))
        y = y + (n.float() @ self.ffn_gate_inp_shexp).sigmoid()[:, None].to(t) * shared
        return x + y, aux, load

    def forward(self, x, batch):
        B, T = batch.shape
        if self.attention:
            q, gate, k, v = self.attn_inputs(x, batch.place)
            heads = lambda t: t.view(B, T, -1, self.c.head_dim).transpose(1, 2)
            kv = lambda t: heads(t).expand(B, self.c.heads, T, self.c.head_dim) if self.c.kv_heads == 1 else heads(t).repeat_interleave(self.c.heads // self.c.kv_heads, 1)
            o = F.scaled_dot_product_attention(heads(q), kv(k), kv(v), attn_mask=batch.mask(x.dtype)).transpose(1, 2)
            return self.attn_output_ffn(x, o.reshape(B * T, self.c.heads, self.c.head_dim), gate, batch.even)
        q, k, v, g, b, z, _ = self.gdn_inputs(x, batch.pos)
        rows = lambda t: t.view(B, T, *t.shape[1:])
        q, k, v, g, b = map(rows, (q, k, v, g, b))
        carried = T > gdn.SEGMENT and torch.is_grad_enabled()           # one graph for first and later segments
        state = torch.zeros(B, self.c.value_heads, self.c.gdn_dim, self.c.gdn_dim, device=x.device, requires_grad=carried)
        out = []
        for s in range(0, T, gdn.SEGMENT):
            part = slice(s, s + gdn.SEGMENT)
            o, state = GDN_CORE(q[:, part], k[:, part], v[:, part], g[:, part], b[:, part], state)
            out.append(o)
        return self.gdn_output(x, torch.cat(out, 1).reshape(B * T, self.c.value_heads, self.c.gdn_dim), z, batch.even)


GDN_CORE = gdn.chunked


class Batch:
    """Token rows [B,T] with what keeps documents apart. A document starts at row start and after <|endoftext|>."""

    def __init__(self, ids, even=None):
        self.shape, dev = ids.shape, ids.device
        self.even = None if even is None else even.flatten().float()
        T = ids.shape[1]
        at = torch.arange(T, device=dev)
        first = torch.zeros_like(ids, dtype=torch.bool)
        first[:, 0] = True
        first[:, 1:] = ids[:, :-1] == 0
        self.start = torch.where(first, at, 0).cummax(1).values       # row index of the document's first token
        self.pos = (at - self.start).flatten()
        self.place = at.expand_as(ids).flatten()
        self._mask = None

    def mask(self, dtype):
        if self._mask is None:
            at = torch.arange(self.shape[1], device=self.start.device)
            seen = (at[None, None, :] <= at[None, :, None]) & (at[None, None, :] >= self.start[:, :, None])
            self._mask = torch.zeros(seen.shape, device=seen.device, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]
        return self._mask


def head_loss(h, embed, target, weight):
    """Weighted cross entropy and z-loss of hidden states h [N,h] against target [N]; weight 0 leaves a position out."""
    logits = F.linear(h, embed.to(h.dtype)).float()
    lse = logits.logsumexp(-1)
    nll = lse - logits.gather(1, target[:, None])[:, 0]
    total = weight.sum().clamp(min=1)
    return (nll * weight).sum() / total, (lse.square() * weight).sum() / total


class Nano(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.token_embd = matrix(c.vocab, c.hidden)
        self.blk = nn.ModuleList(Block(c, c.is_attention(i)) for i in range(c.layers))
        self.output_norm = nn.Parameter(torch.ones(c.hidden))
        self.nextn_eh_proj = matrix(c.hidden, 2 * c.hidden)           # columns: embedding of token t+1, then hidden state t
        self.nextn_enorm = nn.Parameter(torch.ones(c.hidden))
        self.nextn_hnorm = nn.Parameter(torch.ones(c.hidden))
        self.nextn_shared_head_norm = nn.Parameter(torch.ones(c.hidden))
        self.nextn_blk = Block(c, True)

    def compute_dtype(self):
        return torch.bfloat16 if self.token_embd.is_cuda else torch.float32

    def trunk(self, ids, batch):
        """Hidden states before the final norm [N,h], summed balance loss, loads [layers, experts]."""
        x = F.embedding(ids.flatten(), self.token_embd).to(self.compute_dtype())
        aux, loads = 0.0, []
        for b in self.blk:
            x, a, load = b(x, batch)
            aux = aux + a
            loads.append(load)
        return x, aux, torch.stack(loads)

    def mtp(self, x, ids, batch):
        """Normed MTP states [N,h]: row t saw the hidden state t and token t+1 (the last row of a sequence is void)."""
        nxt = F.pad(ids[:, 1:], (0, 1)).flatten()
        e = rms(F.embedding(nxt, self.token_embd).to(x.dtype), self.nextn_enorm)
        m = F.linear(torch.cat([e, rms(x, self.nextn_hnorm)], -1), self.nextn_eh_proj.to(x.dtype))
        m, aux, _ = self.nextn_blk(m, batch)
        return rms(m, self.nextn_shared_head_norm), aux

    def forward(self, ids, weight, even=None):
        """ids [B,T], weight [B,T] of each token as a target, even [B,T] or None as in `Block.ffn`. Returns (loss, main nll, mtp nll,
        loads)."""
        batch = Batch(ids, even)
        x, aux, loads = self.trunk(ids, batch)
        shift = lambda t, k: F.pad(t[:, k:], (0, k)).flatten()
        l0, z0 = HEAD_LOSS(rms(x, self.output_norm), self.token_embd, shift(ids, 1), shift(weight, 1))
        m, aux_m = self.mtp(x, ids, batch)
        both = shift(weight, 2) * (shift(weight, 1) > 0)                # not across a document start
        l1, z1 = HEAD_LOSS(m, self.token_embd, shift(ids, 2), both)
        loss = l0 + 0.3 * l1 + 1e-4 * (z0 + 0.3 * z1) + 0.01 * (aux + aux_m) / (self.c.layers + 1)
        return loss, l0.detach(), l1.detach(), loads.detach()

    @torch.no_grad()
    def logits(self, ids, mtp=False):
        """Logits [B,T,vocab] (and MTP logits) of whole rows, T padded to the chunk size inside; each row is one document."""
        T = ids.shape[1]
        pad = F.pad(ids, (0, -T % gdn.CHUNK), value=1)
        batch = Batch(pad)
        x, _, _ = self.trunk(pad, batch)
        head = lambda h: F.linear(h, self.token_embd.to(h.dtype)).float().view(*pad.shape, -1)[:, :T]
        out = head(rms(x, self.output_norm))
        return (out, head(self.mtp(x, pad, batch)[0])) if mtp else out


HEAD_LOSS = head_loss


def compile_parts(model):
    """Compile the pieces between the mixers: shapes are flat, so a change of row length recompiles the delta rule alone."""
    global GDN_CORE, HEAD_LOSS
    GDN_CORE = torch.compile(gdn.chunked, dynamic=False)
    HEAD_LOSS = torch.compile(head_loss, dynamic=False)
    for name in ("gdn_inputs", "gdn_output", "attn_inputs", "attn_output_ffn"):
        setattr(Block, name, torch.compile(getattr(Block, name), dynamic=False))
