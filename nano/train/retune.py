"""Tunes the shipped weights for reading, on one GPU or several: stages of `evidence.py` with the base mix replayed beside them.

A plan is as in `train.py`. The stages it names under "stages" are marked: their prompts have no weight (the random values in them
cannot be learned, only read) and their replies the weight "answer", for they are a few tokens among hundreds. Everything else is
replay and must be half of the tokens at least. Each GPU walks the data with a seed of its own; gradients are averaged.

usage: python3 -m torch.distributed.run --nproc-per-node N -m train.retune PLAN.json DATA OUT --init FILE [--minutes M | --steps N]
"""
import argparse
import json
import os
import time

STAGE, EVEN = 1, 2              # marks of tokens: of a stage; of a domain over which the experts' loads shall be even by itself


def check_plan(plan):
    """The plan, if each phase replays at least half; a phase that does not is an error."""
    for i, phase in enumerate(plan["phases"]):
        mix = phase["mix"]
        replay = sum(v for k, v in mix.items() if k not in plan["stages"]) / sum(mix.values())
        if replay < 0.5:
            raise ValueError(f"phase {i} replays {replay:.0%} of its tokens: at least 50 % must be of the base mix")
    if plan["phases"][-1]["until"] != 1:
        raise ValueError("the last phase must go until 1")
    return plan


def weights(base, marked, prompt, answer):
    """Weights of targets from `base` (-1 in prompts, 0 where there is no target, 1 else); `marked` is 1 in the stages, whose prompts
    count nothing. Numbers or tensors."""
    return (base >= 0) * base * (1 + (answer - 1) * marked) + (base < 0) * (1 - marked) * prompt


class Group:
    """The processes of a run: one without a launcher, else one a GPU."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.dist = dist
        if self.size > 1:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("nccl")
            self.clock = dist.new_group(backend="gloo")

    def same(self, number):
        """The first process's number, in all: they must stop at the same step."""
        import torch
        if self.size == 1:
            return number
        t = torch.tensor([number], dtype=torch.float64)
        self.dist.broadcast(t, 0, group=self.clock)
        return float(t)

    def average(self, params):
        import torch
        if self.size == 1:
            return
        flat = torch.cat([p.grad.flatten() for p in params])
        self.dist.all_reduce(flat, op=self.dist.ReduceOp.AVG)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))


def main():
    import torch

    from . import data
    from .checkpoint import load_checkpoint, save_checkpoint
    from .model import compile_parts
    from .optim import Optimiser
    from .pack import load_tokenizer
    from .tokenizer import IM_START
    from .train import Feed, factor_at, phase_at
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("plan")
    ap.add_argument("data", help="folders with DOMAIN.bin, comma-separated; tokenizer.json in the first")
    ap.add_argument("out")
    ap.add_argument("--init", required=True)
    ap.add_argument("--minutes", type=float)
    ap.add_argument("--steps", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--workers", type=int, default=6)
    ap.add_argument("--device", default="cuda")
    a = ap.parse_args()
    began, group = time.time(), Group()
    os.makedirs(a.out, exist_ok=True)
    with open(a.plan, encoding="utf-8") as f:
        plan = check_plan(json.load(f))
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = load_checkpoint(a.init).to(a.device)
    if a.device == "cuda":
        compile_parts(model)
    tk = load_tokenizer(a.data.split(",")[0] + "/tokenizer.json")
    assistant = tk.encode("assistant", add_special_tokens=False).ids[0]
    opt = Optimiser(model, plan.get("muon_lr", 0.02), plan.get("adam_lr", 2e-3))
    log = open(a.out + "/log.jsonl", "a", encoding="utf-8") if group.rank == 0 else None
    tokens = plan["tokens_per_step"] // group.size

    def say(**k):
        if log:
            line = json.dumps({"t": round(time.time() - began, 1), **k})
            log.write(line + "\n")
            log.flush()
            print(line, flush=True)

    def save(name, step):
        if group.rank == 0:
            save_checkpoint(model, f"{a.out}/{name}.pt", step)

    feed = Feed(a.data.split(","), tokens, a.seed + 1000 * group.rank, a.device, a.workers)
    current, step, saved, acc = -1, 0, time.time(), []
    while True:
        done = group.same(step / a.steps if a.steps else (time.time() - began) / (60 * a.minutes))
        if done >= 1:
            break
        index = phase_at(plan, done)
        phase = plan["phases"][index]
        if index != current:
            missing = feed.open(index, {**phase, "even": {**dict.fromkeys(plan.get("even", ()), EVEN), **dict.fromkeys(plan["stages"], STAGE)}})
            say(event="phase", index=index, step=step, mix=phase["mix"], length=phase["length"], missing=missing)
            current = index
        ids, marked = feed.next()
        base = data.target_weights(ids, IM_START, assistant, -1.0)
        even = (marked == EVEN).long() if plan.get("even") else None
        loss, l0, l1, loads = model(ids, weights(base, (marked == STAGE).float(), phase["prompt_weight"], plan["answer"]), even)
        loss.backward()
        group.average(opt.params)
        factor = factor_at(plan, done, step)
        norm = opt.step(factor, 0.85 + 0.1 * min(1.0, step / 300))
        acc.append(torch.stack([l0, l1]))
        step += 1
        if step % plan.get("log_every", 50) == 0:
            m = torch.stack(acc).mean(0).tolist()
            acc = []
            say(step=step, loss=round(m[0], 4), mtp=round(m[1], 4), lr=round(factor, 4), norm=round(float(norm), 3), phase=index, tokens=step * plan["tokens_per_step"],
                load_min=round(float(loads.min()), 4), load_max=round(float(loads.max()), 4))
        if time.time() - saved > plan.get("save_every_s", 120):
            save("last", step)
            saved = time.time()
    save("final", step)
    say(event="end", step=step, tokens=step * plan["tokens_per_step"])
    if group.size > 1:
        group.dist.destroy_process_group()


if __name__ == "__main__":
    main()
