"""nano with P adapters at once: one forward pass in which every slot has its own low-rank update of the chosen matrices.

A slot is what the daemon calls an adapter slot: y = W x + B (A x), A [P,rank,in], B [P,out,rank] (the factor alpha/rank is inside B).
The arithmetic is that of `train.model` (the check is `python3 -m effect.check`); the residual stream is kept in float32.
"""
import os

import torch
import torch.nn.functional as F

from train import gdn

ATTENTION = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
DELTA = {"qkv": "attn_qkv", "gate": "attn_gate", "out": "ssm_out"}
SHARED = {"sg": "ffn_gate_shexp", "su": "ffn_up_shexp", "sd": "ffn_down_shexp"}


def rms(x, w):
    return F.rms_norm(x, (x.shape[-1],), eps=1e-6) * w


def swiglu(g, u):
    return F.silu(g) * u


def expert_gates(n, router, used, experts):
    """Normalised weights of the chosen experts, 0 elsewhere: [P,n,experts]."""
    p = (n.float() @ router.mT).softmax(-1)
    w, ix = p.topk(used, -1)
    return torch.zeros_like(p).scatter(-1, ix, w / w.sum(-1, keepdim=True))


def delta_inputs(y, a, b, pos, w, kd, vd):
    """Of the convolved rows [N,channels]: q, k [N,H,K], v [N,H,V], log decay and beta [N,H]."""
    q, k, v = F.silu(y.float()).split([kd, kd, vd], -1)
    H, D = a.shape[-1], 128
    unit = lambda t: t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)
    q, k = (unit(t.view(-1, t.shape[-1] // D, D)).repeat(1, H // (kd // D), 1) for t in (q, k))
    g = -w["ssm_a_log"].exp() * F.softplus(a.float() + w["ssm_dt"]) + (pos == 0)[:, None] * -60.0
    return q, k, v.view(-1, H, D), g, b.float().sigmoid()


def delta_rows(m, a, b, z, pos, w, kd, vd, T):
    """Everything of a delta-net layer between its projections, whole rows: [N,channels] -> [N,value] and the last state."""
    y = m * w["ssm_conv1d"][:, 3]
    for j in (1, 2, 3):
        y = y + F.pad(m, (0, 0, j, 0))[:-j] * (pos >= j)[:, None].to(m.dtype) * w["ssm_conv1d"][:, 3 - j]
    q, k, v, g, beta = (t.view(-1, T, *t.shape[1:]) for t in delta_inputs(y, a, b, pos, w, kd, vd))
    zero = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], device=q.device)
    o, state = gdn.chunked(q, k, v, g, beta, zero)
    return delta_out(o.flatten(0, 1), z, w), state


def delta_out(o, z, w):
    return (rms(o, w["ssm_norm"]) * F.silu(z.float().view(o.shape))).flatten(1).to(z.dtype)


class Rows:
    """Token rows [R,T]; a document begins at the row's start and after token 0, or, for right-aligned prompts, at `start` [R]."""

    def __init__(self, ids, start=None):
        self.R, self.T = ids.shape
        at = torch.arange(self.T, device=ids.device)
        if start is None:
            first = F.pad(ids[:, :-1] == 0, (1, 0), value=True)
            start = torch.where(first, at, 0).cummax(1).values
        else:
            start = start[:, None].expand(self.R, self.T)
        self.ids, self.pos, self.place = ids, (at - start).flatten(), (at - start).flatten()
        seen = (at[None, None] <= at[None, :, None]) & (at[None, None] >= start[:, :, None])
        self.mask = (seen | (at[None, None] == at[None, :, None]))[:, None]


class Net:
    def __init__(self, model, dtype):
        self.c, self.dt = model.c, dtype
        self.embed = model.token_embd.detach().to(dtype)
        self.out_norm = model.output_norm.detach()
        self.w = []
        for b in model.blk:
            w = {k: p.detach() for k, p in b.named_parameters()}
            keep = ("norm", "ffn_gate_inp", "ssm_a_log", "ssm_dt")
            w = {k: v if any(s in k for s in keep) else v.to(dtype) for k, v in w.items()}
            w["eg"], w["eu"] = (w.pop(f"ffn_{k}_exps").flatten(0, 1) for k in ("gate", "up"))
            w["ed"] = w.pop("ffn_down_exps").transpose(1, 2).flatten(0, 1)
            w["attention"] = b.attention
            self.w.append(w)
        self.tap = None                        # set to a dict: collects second moments of the inputs of every target

    def shapes(self):
        """(out, in) of every matrix a slot may change, by (layer, short name); the head is (layers, "head")."""
        out = {}
        for i, w in enumerate(self.w):
            for k, full in {**(ATTENTION if w["attention"] else DELTA), **SHARED}.items():
                out[i, k] = tuple(w[full].shape)
        out[self.c.layers, "head"] = tuple(self.embed.shape)
        return out

    def lin(self, x, w, slots, key):
        """x [P,n,in] -> [P,n,out]."""
        y = x @ w.mT
        if self.tap is not None:
            f = x.flatten(0, 1).float()
            self.tap[key] = self.tap.get(key, 0) + f.mT @ f
        ab = slots.get(key) if slots else None
        return y if ab is None else torch.baddbmm(y, x @ ab[0].to(x.dtype).mT, ab[1].to(x.dtype).mT)

    def rope(self, t, w, place):
        r = self.c.rope_dim
        t = rms(t.float(), w)
        freq = self.c.rope_base ** (-torch.arange(0, r, 2, device=t.device).float() / r)
        angle = place[:, None].float() * freq
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b, rest = t[..., :r // 2], t[..., r // 2:r], t[..., r:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(self.dt)

    def qkv(self, i, n, place, slots):
        w, c = self.w[i], self.c
        q, gate = self.lin(n, w["attn_q"], slots, (i, "q")).view(-1, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = self.lin(n, w["attn_k"], slots, (i, "k")).view(-1, c.kv_heads, c.head_dim)
        v = self.lin(n, w["attn_v"], slots, (i, "v")).view(-1, c.kv_heads, c.head_dim)
        return self.rope(q, w["attn_q_norm"], place), gate, self.rope(k, w["attn_k_norm"], place), v

    def gdn_proj(self, i, n, slots):
        w = self.w[i]
        m, z = self.lin(n, w["attn_qkv"], slots, (i, "qkv")), self.lin(n, w["attn_gate"], slots, (i, "gate"))
        return m.flatten(0, 1), (n @ w["ssm_alpha"].mT).flatten(0, 1), (n @ w["ssm_beta"].mT).flatten(0, 1), z.flatten(0, 1)

    def layer(self, i, x, rows, slots, keep=None):
        """x [P,n,h] float32, n = rows of a slot * T. `keep` gets the layer's cache of whole rows (for decoding)."""
        w, c, P = self.w[i], self.c, x.shape[0]
        n = rms(x, w["attn_norm"]).to(self.dt)
        if w["attention"]:
            q, gate, k, v = self.qkv(i, n, rows.place, slots)
            heads = lambda t: t.view(rows.R, rows.T, -1, c.head_dim).transpose(1, 2)
            o = F.scaled_dot_product_attention(heads(q), heads(k).expand(-1, c.heads, -1, -1), heads(v).expand(-1, c.heads, -1, -1), attn_mask=rows.mask)
            y = o.transpose(1, 2).reshape(-1, c.heads, c.head_dim) * gate.sigmoid()
            y = self.lin(y.reshape(P, -1, c.heads * c.head_dim), w["attn_output"], slots, (i, "o"))
            if keep is not None:
                keep.append((k.view(rows.R, rows.T, -1), v.reshape(rows.R, rows.T, -1)))
        else:
            m, a, b, z = self.gdn_proj(i, n, slots)
            small = {k: w[k] for k in ("ssm_conv1d", "ssm_a_log", "ssm_dt", "ssm_norm")}
            y, state = delta_rows(m, a, b, z, rows.pos, small, c.key_dim, c.value_dim, rows.T)
            y = self.lin(y.view(P, -1, c.value_dim), w["ssm_out"], slots, (i, "out"))
            if keep is not None:
                keep.append((m.view(rows.R, rows.T, -1)[:, -3:], state))
        return self.ffn(i, x + y, slots)

    def ffn(self, i, x, slots):
        w, c = self.w[i], self.c
        n = rms(x, w["post_attention_norm"]).to(self.dt)
        gates = expert_gates(n, w["ffn_gate_inp"], c.experts_used, c.experts).to(self.dt)
        a = swiglu(n @ w["eg"].mT, n @ w["eu"].mT).unflatten(-1, (c.experts, c.ff)) * gates[..., None]
        y = a.flatten(-2) @ w["ed"]
        s = swiglu(self.lin(n, w["ffn_gate_shexp"], slots, (i, "sg")), self.lin(n, w["ffn_up_shexp"], slots, (i, "su")))
        s = self.lin(s, w["ffn_down_shexp"], slots, (i, "sd"))
        return x + (y + (n.float() @ w["ffn_gate_inp_shexp"]).sigmoid()[..., None].to(self.dt) * s).float()

    def trunk(self, x, rows, slots, first=0, last=None, keep=None):
        for i in range(first, self.c.layers if last is None else last):
            x = self.layer(i, x, rows, slots, keep)
        return x

    def start(self, ids, P=1):
        """Embedded tokens [P, R*T/P, h]."""
        return F.embedding(ids.flatten(), self.embed).float().view(P, -1, self.c.hidden)

    def head(self, h, slots):
        """Logits of gathered states h [P,m,h] (padded per slot)."""
        n = rms(h, self.out_norm).to(self.dt)
        return self.lin(n, self.embed, slots, (self.c.layers, "head")).float()


def gather(x, weight, ids, P):
    """Of slots' rows: hidden states, targets and weights at scored positions, padded per slot: [P,m,h], [P,m], [P,m]."""
    w = weight.view(P, -1)
    m = max(1, int(w.count_nonzero(1).max()))
    ix = (w > 0).float().argsort(dim=1, descending=True, stable=True)[:, :m]
    nxt = F.pad(ids[:, 1:], (0, 1)).view(P, -1)
    return x.view(P, -1, x.shape[-1]).gather(1, ix[..., None].expand(-1, -1, x.shape[-1])), nxt.gather(1, ix), w.gather(1, ix)


def padded(ids, size):
    """Rows in groups of one size, the last filled up with empty rows."""
    for p in ids.split(size):
        yield p if len(p) == size else torch.cat([p, p.new_zeros(size - len(p), *p.shape[1:])])


def load(path, device):
    from train import gguf_io
    model = gguf_io.load(path).to(device).eval()
    return Net(model, torch.bfloat16 if device != "cpu" and not os.environ.get("EFFECT_F32") else torch.float32), model
