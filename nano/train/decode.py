"""Batch decoding in PyTorch: every sequence one token a step, from zero states; on a GPU the step is one captured graph.

Prompts are right-aligned, so all replies start at the same step; a sequence's states are wiped until its own first token. This is
the evaluation's decoder, made to be simple and to agree with `Nano.logits`; the daemon has its own engine.
"""
import torch
import torch.nn.functional as F

from .model import rms
from .tokenizer import ENDOFTEXT, IM_END, PAD, TOOL_CALL


class Decoder:
    def __init__(self, model, batch, length):
        self.m, self.c, self.B, self.T = model, model.c, batch, length
        dev, dt, c = model.token_embd.device, model.compute_dtype(), model.c
        zero = lambda *s, dtype=dt: torch.zeros(batch, *s, device=dev, dtype=dtype)
        self.state = [(zero(length, c.kv_heads, c.head_dim), zero(length, c.kv_heads, c.head_dim)) if b.attention else
                      (zero(3, 2 * c.key_dim + c.value_dim), zero(c.value_heads, c.gdn_dim, c.gdn_dim, dtype=torch.float32)) for b in model.blk]
        self.tokens = torch.full((batch, length + 1), PAD, device=dev)
        self.t = torch.zeros((), dtype=torch.long, device=dev)
        self.start = torch.zeros(batch, dtype=torch.long, device=dev)
        self.prompt_end = torch.zeros((), dtype=torch.long, device=dev)
        self.finished = torch.zeros(batch, dtype=torch.bool, device=dev)
        self.heat = torch.zeros((), device=dev)
        self.no_call = torch.zeros(batch, device=dev)
        self.at = torch.arange(length, device=dev)
        self.graph = None

    def logits(self, ids):
        from .gdn import step
        c, pos = self.c, (self.t - self.start).clamp(min=0)
        x = F.embedding(ids, self.m.token_embd).to(self.m.compute_dtype())
        for b, (s0, s1) in zip(self.m.blk, self.state):
            if b.attention:
                q, gate, k, v = b.attn_inputs(x, pos)
                s0.index_copy_(1, self.t[None], k[:, None])
                s1.index_copy_(1, self.t[None], v[:, None])
                seen = (self.at[None] <= self.t) & (self.at[None] >= self.start[:, None])
                seen = seen | (self.at[None] == self.t)
                kv = lambda s: s.transpose(1, 2).repeat_interleave(c.heads // c.kv_heads, 1) if c.kv_heads > 1 else s.transpose(1, 2).expand(-1, c.heads, -1, -1)
                o = F.scaled_dot_product_attention(q[:, :, None], kv(s0), kv(s1), attn_mask=seen[:, None, None])
                x = b.attn_output_ffn(x, o[:, :, 0], gate)[0]
            else:
                live = (pos > 0).to(s0.dtype)[:, None, None]
                q, k, v, g, beta, z, m = b.gdn_inputs(x, pos, s0 * live)
                o, new = step(q, k, v, g, beta, s1)
                s1.copy_(new)
                s0.copy_(torch.cat([s0[:, 1:] * live, m[:, None]], 1))
                x = b.gdn_output(x, o, z)[0]
        return F.linear(rms(x, self.m.output_norm), self.m.token_embd.to(x.dtype)).float()

    def _step(self):
        ids = self.tokens.index_select(1, self.t[None])[:, 0]
        lo = self.logits(ids)
        lo[:, TOOL_CALL] += self.no_call
        noise = -torch.empty_like(lo).exponential_().clamp(min=1e-10).log()
        best = (lo + noise * self.heat).argmax(-1)
        nxt = self.tokens.index_select(1, self.t[None] + 1)[:, 0]
        writing = self.t + 1 >= self.prompt_end
        nxt = torch.where(writing, torch.where(self.finished, PAD, best), nxt)
        self.finished |= writing & ((nxt == IM_END) | (nxt == ENDOFTEXT))
        self.tokens.index_copy_(1, self.t[None] + 1, nxt[:, None])
        self.t += 1

    def _reset(self, prompts, heat, offered):
        self.tokens.fill_(PAD)
        P = max(map(len, prompts))
        self.start.fill_(P)
        for i, p in enumerate(prompts):
            self.tokens[i, P - len(p):P] = torch.tensor(p, device=self.tokens.device)
            self.start[i] = P - len(p)
        self.t.zero_()
        self.prompt_end.fill_(P)
        self.finished.zero_()
        self.finished[len(prompts):] = True
        self.heat.fill_(heat)
        self.no_call.zero_()
        for i, tools in enumerate(offered or ()):
            self.no_call[i] = 0.0 if tools else -torch.inf
        for s in self.state:
            for x in s:
                x.zero_()
        return P

    @torch.no_grad()
    def run(self, prompts, max_new, heat=0.0, offered=None):
        """prompts: lists of ids -> lists of new ids (the stop token is left out) and whether each stopped by itself.
        `offered` says for each prompt whether it has tools: a reply to one without opens no call, as in the daemon."""
        P = self._reset(prompts, heat, offered)
        if self.tokens.is_cuda and self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
            P = self._reset(prompts, heat, offered)
        for i in range(min(P + max_new, self.T) - 1):
            self.graph.replay() if self.graph else self._step()
            if i >= P and i % 32 == 0 and bool(self.finished.all()):
                break
        out, stopped = [], []
        for i, row in enumerate(self.tokens[:len(prompts), P:P + max_new].tolist()):
            end = next((j for j, t in enumerate(row) if t in (IM_END, ENDOFTEXT, PAD)), len(row))
            out.append(row[:end])
            stopped.append(bool(self.finished[i]))
        return out, stopped


def generate(model, prompts, max_new, batch=256, heat=0.0, longest=None, offered=None):
    """Replies for many prompts, batched by length. Returns a list of (ids, stopped) in the order given."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out = [None] * len(prompts)
    length = (longest or max(map(len, prompts))) + max_new
    dec = Decoder(model, min(batch, len(prompts)), length)
    for i in range(0, len(order), batch):
        part = order[i:i + batch]
        ids, stopped = dec.run([prompts[j] for j in part], max_new, heat, [offered[j] for j in part] if offered else None)
        for j, r, s in zip(part, ids, stopped):
            out[j] = (r, s)
    return out
