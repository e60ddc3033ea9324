"""Trains nano: warm-up, stable and decay (WSD) in phases, each with its own mix, row length and reply weighting.

The plan is a JSON file (see `plans/`): phases by share of the run. With `--minutes` progress is elapsed time, so that a rented
machine is used to the last minute and the decay always completes; the log then holds the number of steps, and `--steps` makes a
run that depends on the seed alone.
Checkpoints hold weights (bf16 is enough to continue) and are written every few minutes and at the end; a run continues from
weights with `--init` (checkpoint or GGUF): momenta build up again within the warm-up.

usage: python3 -m train.train PLAN.json DATA OUT [--init FILE] [--minutes M | --steps N] [--device cuda] [--seed 1]
"""
import argparse
import glob
import json
import math
import os
import time

import torch

from . import data
from .checkpoint import load_checkpoint, save_checkpoint
from .model import NANO, TINY, Nano, compile_parts
from .optim import Optimiser
from .pack import load_tokenizer
from .tokenizer import IM_START


def phase_at(plan, done):
    """Index of the phase at progress `done` in [0,1)."""
    for i, p in enumerate(plan["phases"]):
        if done < p["until"]:
            return i
    return len(plan["phases"]) - 1


def factor_at(plan, done, step):
    """Learning-rate factor: linear warm-up by steps, 1, then linear decay to `floor` over the last `decay` share."""
    warm = min(1.0, (step + 1) / plan["warmup_steps"])
    floor = plan.get("floor", 0.02)
    left = (1 - done) / plan["decay"] if plan["decay"] else 1.0
    return plan.get("peak", 1.0) * warm * (floor + (1 - floor) * min(1.0, max(0.0, left)))


class Feed:
    """The loader of the current phase. Files are looked up at the phase start, so a domain may still be in the making before."""

    def __init__(self, root, tokens, seed, device, workers):
        self.root, self.tokens, self.seed, self.device, self.workers = root, tokens, seed, device, workers

    def open(self, index, phase):
        files = {}
        for name in phase["mix"]:
            found = sorted(p for d in self.root for p in glob.glob(f"{d}/{name}*.bin") if not p.endswith(".val.bin")
                           and os.path.basename(p)[:-4].rstrip("0123456789").rstrip(".") == name)
            if found:
                files[name] = found
        missing = [n for n in phase["mix"] if n not in files]
        self.it = data.loader(files, phase["mix"], self.tokens // phase["length"], phase["length"], self.seed * 100 + index,
                              self.workers, self.device == "cuda", phase.get("even", ()))
        return missing

    def next(self):
        """ids [B,T] and where they are of a domain whose expert load shall be even by itself (phase key `even`) [B,T]."""
        return next(self.it).to(self.device, non_blocking=True).unbind(0)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("plan")
    ap.add_argument("data", help="folders with DOMAIN.bin, comma-separated; tokenizer.json in the first")
    ap.add_argument("out")
    ap.add_argument("--init")
    ap.add_argument("--minutes", type=float)
    ap.add_argument("--steps", type=int)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--eager", action="store_true", help="do not compile")
    ap.add_argument("--workers", type=int, default=6)
    a = ap.parse_args()
    t_start = time.time()
    os.makedirs(a.out, exist_ok=True)
    with open(a.plan) as f:
        plan = json.load(f)
    cuda = a.device == "cuda"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = load_checkpoint(a.init) if a.init else Nano(TINY if plan.get("tiny") else NANO)
    model.to(a.device)
    if cuda and not a.eager:
        compile_parts(model)
    tk = load_tokenizer(a.data.split(",")[0] + "/tokenizer.json")
    assistant = tk.encode("assistant", add_special_tokens=False).ids[0]
    opt = Optimiser(model, plan.get("muon_lr", 0.02), plan.get("adam_lr", 2e-3))
    log = open(a.out + "/log.jsonl", "a")

    def say(**k):
        line = json.dumps({"t": round(time.time() - t_start, 1), **k})
        log.write(line + "\n")
        log.flush()
        print(line, flush=True)

    feed = Feed(a.data.split(","), plan["tokens_per_step"], a.seed, a.device, a.workers)
    current, step, saved = -1, 0, time.time()
    acc = []
    while True:
        done = step / a.steps if a.steps else (time.time() - t_start) / (60 * a.minutes)
        if done >= 1:
            break
        index = phase_at(plan, done)
        phase = plan["phases"][index]
        if index != current:
            if current >= 0 and phase.get("save_before"):
                save_checkpoint(model, f"{a.out}/{phase['save_before']}.pt", step)
            missing = feed.open(index, phase)
            say(event="phase", index=index, step=step, mix=phase["mix"], length=phase["length"], missing=missing)
            current = index
        ids, even = feed.next()
        w = data.target_weights(ids, IM_START, assistant, phase["prompt_weight"])
        loss, l0, l1, loads = model(ids, w, even if "even" in phase else None)
        loss.backward()
        factor = factor_at(plan, done, step)
        norm = opt.step(factor, 0.85 + 0.1 * min(1.0, step / 300))
        acc.append(torch.stack([l0, l1]))
        step += 1
        if step % plan.get("log_every", 50) == 0:
            m = torch.stack(acc).mean(0).tolist()
            acc = []
            if not math.isfinite(m[0]):
                raise SystemExit(f"loss is {m[0]} at step {step}: lower the learning rate or look at the data")
            say(step=step, loss=round(m[0], 4), mtp=round(m[1], 4), lr=round(factor, 4), norm=round(float(norm), 3), phase=index, tokens=step * plan["tokens_per_step"],
                load_min=round(float(loads.min()), 4), load_max=round(float(loads.max()), 4))
        if time.time() - saved > plan.get("save_every_s", 180):
            save_checkpoint(model, f"{a.out}/last.pt", step)
            saved = time.time()
    save_checkpoint(model, f"{a.out}/final.pt", step, {"tokens": step * plan["tokens_per_step"]})
    say(event="end", step=step, memory_GB=round(torch.cuda.max_memory_allocated() / 1e9, 1) if cuda else 0)


if __name__ == "__main__":
    main()
