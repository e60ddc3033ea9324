"""Checks that need no device: the slotted pass against `train.model`, the decoder against it, gradients against differences.

usage: python3 -m effect.check nano.gguf
"""
import sys

import torch

from . import data, learn
from . import net as N
from .generate import Examiner


def main():
    torch.manual_seed(0)
    net, model = N.load(sys.argv[1], "cpu")
    coder = data.Coder(data.tokenizer(sys.argv[1]))
    items = data.traffic(6, 1)
    prompts, replies = [coder.prompt(i) for i in items], [coder.reply(i) for i in items]
    for it, r in zip(items, replies):
        assert coder.good(it, r[:-1]), "a reference reply fails its own check: " + it["id"]
    text = torch.tensor([prompts[0] + replies[0]])
    want = model.logits(text)[0]
    pad = torch.nn.functional.pad(text, (0, -text.shape[1] % 64), value=1)
    with torch.no_grad():
        got = net.head(net.trunk(net.start(pad), N.Rows(pad), None), None)[0, :text.shape[1]]
    error = float((got - want).norm() / want.norm())
    print("logits against train.model:", error)
    assert error < 1e-4

    arm = learn.Arm("all+head", "", 0, 1e-3, rank=2)
    slots = learn.fresh_slots(net, [arm, arm], "cpu")
    g = torch.Generator().manual_seed(1)
    for A, B in slots.values():
        B[1] = torch.randn(B.shape[1:], generator=g) * 0.02
    out = Examiner(net, slots, 2, prompts[:3], [8] * 3)()
    for p in range(2):
        for q, r in zip(prompts[:3], out[p]):
            ids = list(q)
            for _ in range(len(r)):
                row = torch.tensor([ids])
                row = torch.nn.functional.pad(row, (0, -row.shape[1] % 64), value=1)
                one = {k: (A[p:p + 1], B[p:p + 1]) for k, (A, B) in slots.items()}
                with torch.no_grad():
                    lo = net.head(net.trunk(net.start(row), N.Rows(row), one)[:, len(ids) - 1:len(ids)], one)
                ids.append(int(lo.argmax()))
            same = ids[len(q):] == r
            print("slot", p, "decoder against whole rows:", same, coder.tk.decode(r, skip_special_tokens=False)[:50].__repr__())
            assert same
    ids, w = data.pack(list(zip(prompts, replies)), length=128)
    ids, w = ids[:1], w[:1]
    key = (7, "o")
    B = slots[key][1].requires_grad_(True)
    two = lambda: learn.losses(net, net.start(ids.repeat(2, 1), 2), N.Rows(ids.repeat(2, 1)), w.repeat(2, 1), slots, 0)
    grad, = torch.autograd.grad(two().sum(), B)
    z = torch.randn(B.shape, generator=g)
    with torch.no_grad():
        e = 2e-3
        B.add_(e * z)
        up = two()
        B.sub_(2 * e * z)
        down = two()
        B.add_(e * z)
    by_step, by_grad = (up - down) / (2 * e), (grad * z).sum((1, 2))
    print("slope by differences", by_step.tolist(), "by gradient", by_grad.tolist())
    assert torch.allclose(by_step, by_grad, rtol=0.05, atol=1e-3)
    f0 = learn.Feed(net, ids, w, 0, "cpu")
    f7 = learn.Feed(net, ids, w, 7, "cpu")
    one = {k: (A[1:], B[1:].detach()) for k, (A, B) in slots.items() if k[0] >= 7}
    with torch.no_grad():
        a = learn.losses(net, net.start(f0.ids), N.Rows(ids), w, one, 0)
        b = learn.losses(net, f7.x.view(1, -1, 512), N.Rows(ids), w, one, 7)
    print("kept states against the whole pass:", float(a), float(b))
    assert abs(float(a - b)) < 1e-4


if __name__ == "__main__":
    main()
