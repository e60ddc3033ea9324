"""Muon for matrices (stacks of expert matrices too), AdamW for embedding, norms, decay parameters, router and small projections.

One learning-rate factor in [0,1] scales both; weight decay is decoupled and only on matrices and the embedding.
"""
import torch

ADAM_ONLY = ("token_embd", "ffn_gate_inp", "ssm_alpha", "ssm_beta", "ssm_conv1d")


def orthogonalise(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix; g [..., rows, cols]."""
    x = g.bfloat16() if g.is_cuda else g.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, then the orthogonalised update. Parameters of one shape are stacked, so a step is a handful of launches."""

    def __init__(self, params, lr, momentum=0.95, decay=0.01):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        groups = {}
        for p in params:
            groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.groups = list(groups.values())
        self.buffers = [[torch.zeros_like(p) for p in g] for g in self.groups]

    @torch.no_grad()
    def step(self, factor, momentum=None):
        mu, lr = momentum or self.momentum, self.lr * factor
        for group, buffers in zip(self.groups, self.buffers):
            grads = [p.grad for p in group]
            torch._foreach_lerp_(buffers, grads, 1 - mu)
            look = torch._foreach_lerp(grads, buffers, mu)                      # Nesterov
            rows, cols = group[0].shape[-2:]
            stack = torch.cat([u.reshape(-1, rows, cols) for u in look])
            update = orthogonalise(stack).to(group[0].dtype) * (-lr * max(1, rows / cols) ** 0.5)
            parts = update.split([u.numel() // (rows * cols) for u in look])
            torch._foreach_mul_(group, 1 - lr * self.decay)
            torch._foreach_add_(group, [u.reshape(p.shape) for u, p in zip(parts, group)])


class Optimiser:
    def __init__(self, model, muon_lr=0.02, adam_lr=2e-3):
        matrices, table, rest = [], [], []
        for n, p in model.named_parameters():
            adam = p.ndim < 2 or any(s in n for s in ADAM_ONLY)
            (table if "token_embd" in n else rest if adam else matrices).append(p)
        self.muon = Muon(matrices, muon_lr)
        fused = matrices[0].is_cuda
        self.adam = torch.optim.AdamW([{"params": table, "lr": adam_lr, "weight_decay": 0.01}, {"params": rest, "lr": adam_lr, "weight_decay": 0.0}],
                                      betas=(0.9, 0.95), eps=1e-10, fused=fused)
        self.base = [g["lr"] for g in self.adam.param_groups]
        self.params = [*matrices, *table, *rest]

    def step(self, factor, momentum=None):
        norm = torch.nn.utils.clip_grad_norm_([p for g in self.adam.param_groups for p in g["params"]], 1.0)
        for g, lr in zip(self.adam.param_groups, self.base):
            g["lr"] = lr * factor
        self.adam.step()
        self.muon.step(factor, momentum)
        for p in self.params:
            p.grad = None
        return norm
