"""Greedy or sampled replies for many prompts under P adapters at once: prefill by whole rows, then one captured graph a token."""
import torch
import torch.nn.functional as F

from train.gdn import step
from train.tokenizer import ENDOFTEXT, IM_END, PAD

from . import net as N

PREFILL = 65536                                 # tokens of one prefill slice


class Decoder:
    """P slots of n sequences each; prompts padded on the left to T tokens, at most `new` tokens written."""

    def __init__(self, net, P, n, T, new, slots):
        self.net, self.P, self.n, self.T, self.new, self.slots = net, P, n, T, new, slots
        c, dev, S = net.c, net.embed.device, P * n
        zero = lambda *s, dtype=net.dt: torch.zeros(S, *s, device=dev, dtype=dtype)
        self.state = [(zero(T + new, c.head_dim), zero(T + new, c.head_dim)) if w["attention"] else
                      (zero(3, 2 * c.key_dim + c.value_dim), zero(c.value_heads, c.gdn_dim, c.gdn_dim, dtype=torch.float32)) for w in net.w]
        self.out = torch.full((S, new + 1), PAD, device=dev)
        self.t = torch.zeros((), dtype=torch.long, device=dev)          # tokens written so far
        self.start = torch.zeros(S, dtype=torch.long, device=dev)
        self.done = torch.zeros(S, dtype=torch.bool, device=dev)
        self.heat = torch.zeros(S, 1, device=dev)
        self.at = torch.arange(T + new, device=dev)
        self.graph = None

    def pick(self, lo):
        noise = -torch.empty_like(lo).exponential_().clamp(min=1e-10).log()
        best = torch.where(self.done, PAD, (lo + noise * self.heat).argmax(-1))
        self.out.index_copy_(1, self.t[None], best[:, None])
        self.done |= (best == IM_END) | (best == ENDOFTEXT)
        self.t += 1

    def one(self):
        net, c, P = self.net, self.net.c, self.P
        ids = self.out.index_select(1, self.t[None] - 1)[:, 0]
        where = self.T + self.t - 1
        x, pos = net.start(ids, P), (where - self.start)
        for i, (w, (s0, s1)) in enumerate(zip(net.w, self.state)):
            n = N.rms(x, w["attn_norm"]).to(net.dt)
            if w["attention"]:
                q, gate, k, v = net.qkv(i, n, pos, self.slots)
                s0.index_copy_(1, where[None], k)
                s1.index_copy_(1, where[None], v)
                seen = (self.at[None] <= where) & (self.at[None] >= self.start[:, None])
                o = F.scaled_dot_product_attention(q, s0, s1, attn_mask=seen[:, None])          # one KV head: the heads are the queries
                y = net.lin((o * gate.sigmoid()).reshape(P, self.n, -1), w["attn_output"], self.slots, (i, "o"))
            else:
                m, a, b, z = net.gdn_proj(i, n, self.slots)
                y = m * w["ssm_conv1d"][:, 3] + (s0 * w["ssm_conv1d"].mT[:3]).sum(1)
                q, k, v, g, beta = N.delta_inputs(y, a, b, pos, w, c.key_dim, c.value_dim)
                o, new = step(q, k, v, g, beta, s1)
                s1.copy_(new)
                s0.copy_(torch.cat([s0[:, 1:], m[:, None]], 1))
                y = net.lin(N.delta_out(o, z, w).view(P, self.n, -1), w["ssm_out"], self.slots, (i, "out"))
            x = net.ffn(i, x + y, self.slots)
        self.pick(net.head(x, self.slots).flatten(0, 1))

    def prefill(self, prompts):
        P, n, T, dev = self.P, self.n, self.T, self.out.device
        ids = torch.full((n, T), PAD)
        start = torch.full((n,), T - 1)
        for i, p in enumerate(prompts):
            ids[i, T - len(p):] = torch.tensor(p)
            start[i] = T - len(p)
        ids, start = ids.to(dev), start.to(dev)
        self.start.copy_(start.repeat(P))
        last = torch.empty(P, n, self.net.c.hidden, device=dev)
        per = max(1, PREFILL // (P * T))
        views = [[s.view(P, n, *s.shape[1:]) for s in pair] for pair in self.state]
        for j in range(0, n, per):
            part = ids[j:j + per]
            m = len(part)
            rows = N.Rows(part.repeat(P, 1), start[j:j + per].repeat(P))
            keep = []
            x = self.net.trunk(self.net.start(rows.ids, P), rows, self.slots, keep=keep)
            last[:, j:j + m] = x.view(P, m, T, -1)[:, :, -1]
            for w, (a, b), (k0, k1) in zip(self.net.w, views, keep):
                k0, k1 = k0.view(P, m, *k0.shape[1:]), k1.view(P, m, *k1.shape[1:])
                if w["attention"]:
                    a[:, j:j + m, :T], b[:, j:j + m, :T] = k0, k1
                else:
                    live = (T - torch.arange(3, 0, -1, device=dev) >= start[j:j + per, None])[None, :, :, None]
                    a[:, j:j + m], b[:, j:j + m] = k0 * live, k1
        return last

    @torch.no_grad()
    def run(self, prompts, heat=0.0):
        """Token ids of each slot's reply to each prompt: [P][prompt] (the stop token left out)."""
        fixed = lambda: (self.t.zero_(), self.done.zero_(), self.out.fill_(PAD), self.heat.copy_(torch.as_tensor(heat, device=self.out.device).float().expand(self.P).repeat_interleave(self.n)[:, None]))
        fixed()
        self.done.view(self.P, self.n)[:, len(prompts):] = True
        self.pick(self.net.head(self.prefill(prompts), self.slots).flatten(0, 1))
        if self.out.is_cuda and self.graph is None:
            side, saved = torch.cuda.Stream(), [t.clone() for t in (self.t, self.done, self.out, *(s for p in self.state for s in p))]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.one()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.one()
            for t, s in zip((self.t, self.done, self.out, *(s for p in self.state for s in p)), saved):
                t.copy_(s)
            del saved
        for i in range(self.new - 1):
            self.graph.replay() if self.graph else self.one()
            if i % 12 == 11 and bool(self.done.all()):
                break
        rows = self.out.view(self.P, self.n, -1)[:, :len(prompts)].tolist()
        cut = lambda r: r[:next((j for j, t in enumerate(r) if t in (IM_END, ENDOFTEXT, PAD)), self.new)]
        return [[cut(r) for r in slot] for slot in rows]


def buckets(lengths, wanted, size):
    """Groups of item numbers of like prompt and reply length: (indices, T, new)."""
    order = sorted(range(len(lengths)), key=lambda i: (sum(lengths[i] > e for e in (64, 192, 384)), wanted[i]))
    out, k = [], 0
    while k < len(order):
        edge = sum(lengths[order[k]] > e for e in (64, 192, 384))
        part = [i for i in order[k:k + size] if sum(lengths[i] > e for e in (64, 192, 384)) == edge]
        k += len(part)
        T = -(-max(lengths[i] for i in part) // 64) * 64
        out.append((part, T, int(1.3 * max(wanted[i] for i in part)) + 24))
    return out


class Examiner:
    """Replies of P slots to a fixed list of prompts; the decoders (and their graphs) are built once and read `slots` in place."""

    def __init__(self, net, slots, P, prompts, wanted, size=360):
        self.prompts = prompts
        self.parts = [(ix, Decoder(net, P, len(ix), T, new, slots)) for ix, T, new in buckets([len(p) for p in prompts], wanted, size)]

    def __call__(self, heat=0.0):
        out = None
        for ix, d in self.parts:
            for p, slot in enumerate(d.run([self.prompts[i] for i in ix], heat)):
                out = out or [[None] * len(self.prompts) for _ in range(d.P)]
                for i, r in zip(ix, slot):
                    out[p][i] = r
        return out
