"""Makes nano-prm from nano's weights in one run: labels, nano's own answers, training, calibration, report, adapter file.

usage: python3 -m prm.train nano.gguf OUT --human BIG-BENCH-MISTAKE [--seconds 470] [--items 200000] [--own 60000] [--answers FILES] [--seed 1]

From the folder nano/. A CPU does it with --items 300 --own 60 --calibration 64 --held 40 --every 200 --seconds 300 --rows 2 --batch 64 (to try the chain,
not to get a judge). `--answers` takes own answers of an earlier run (OUT/own.jsonl.xz) and samples that many fewer.
"""
import argparse
import contextlib
import copy
import hashlib
import json
import math
import multiprocessing as mp
import os
import time

import numpy as np
import torch

from train.gguf_io import load as load_model
from train import model as nano

from . import form, labels, own
from .judge import Rows, judge_cases, label_loss
from .lora import Lora, model_hash, write_tokenizer
from .report import attack_set, report

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMS = os.path.join(HERE, "..", "golden")
HELD_OUT_TRACES = 0.2
_W = {}


def _worker(tokenizer, length):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    from tokenizers import Tokenizer
    _W["words"] = words()
    _W["enc"], _W["plain"], _W["length"] = form.Encoder(tokenizer), Tokenizer.from_file(tokenizer), length
    labels.load_tasks()


def words():
    with open(os.path.join(HERE, "..", "train", "words.txt"), encoding="utf-8") as f:
        return f.read().split()


def _rows(cases):
    got = (labels.example(c, _W["enc"], _W["length"] - 1) for c in cases)
    return [(np.array(ids, np.uint16), places, y, w) for ids, places, y, w in filter(None, got)]


def _synthetic_rows(job):
    return _rows(labels.synthetic("train", *job, _W["words"]))


def _synthetic_cases(job):
    return list(labels.synthetic("golden", *job, _W["words"], 0.0))


def _asked(lines):
    return list(filter(None, (own.prompt(line, _W["plain"], _W["words"], EXAMS) for line in lines)))


def _questions(job):
    return _asked(own.questions(*job, _W["words"], EXAMS))


def _own_cases(lines):
    return own.cases(lines, _W["words"], EXAMS, 0.08 if lines[0]["set"] == "train" else 0.0)


def _own_rows(job):
    cases, rigid = job
    return _rows(labels.loosened(c, rigid) for c in cases)


def _attacks(job):
    lines, seed = job
    return attack_set(lines, [own.item_of(x, _W["words"], EXAMS) for x in lines], seed)


def chunks(x, n):
    return [x[i:i + n] for i in range(0, len(x), n)]


def split_traces(folder):
    train, held = [], []
    for name, c in labels.human(folder):
        share = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") / 2 ** 32
        (held if share < HELD_OUT_TRACES else train).append(c)
    return train, held


@contextlib.contextmanager
def compiled():
    """Within: the pieces between the mixers are compiled."""
    names = ("gdn_inputs", "gdn_output", "attn_inputs", "attn_output_ffn")
    kept, core, head = {n: getattr(nano.Block, n) for n in names}, nano.GDN_CORE, nano.HEAD_LOSS
    nano.compile_parts(None)
    try:
        yield
    finally:
        for n, f in kept.items():
            setattr(nano.Block, n, f)
        nano.GDN_CORE, nano.HEAD_LOSS = core, head


def fit(model, groups, apply, rows, a, good, bad, until):
    """Trains the parameters of `groups` until the clock says stop; `apply` puts them into the model. Returns (steps, epochs, curve)."""
    opt = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    params = [p for g in opt.param_groups for p in g["params"]]
    for g in opt.param_groups:
        g["most"] = g["lr"]
    model.token_embd.requires_grad_(True)            # never changed; so every layer has one and the same graph
    rng, feed = np.random.default_rng(a.seed), Rows(rows, a.length)
    endless = ((e, batch) for e in range(99) for batch in feed.batches(a.rows, rng.permutation(len(rows))))
    began, step, seen, curve, sums = time.time(), 0, 0, [], 0.0
    for _, (ids, held, offsets) in endless:
        if time.time() >= until:
            break
        done = (time.time() - began) / (until - began)
        for g in opt.param_groups:
            g["lr"] = g["most"] * min(1.0, (step + 1) / 40) * min(1.0, max(0.02, (1 - done) / 0.7))
        flat = lambda j, dtype: torch.tensor([x for k in held for x in rows[k][j]], dtype=dtype, device=a.device)
        places = torch.tensor([o + m for k, o in zip(held, offsets) for m in rows[k][1]], device=a.device)
        apply()
        loss = label_loss(model, ids.to(a.device), places, flat(2, torch.long), flat(3, torch.float32), good, bad)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        model.token_embd.grad = None
        if not step:                                 # compiling is no training time
            print(f"first step: {time.time() - began:.0f} s", flush=True)
            began = min(time.time(), until - 1)
        sums, step, seen = sums + float(loss.detach()), step + 1, seen + len(held)
        if not math.isfinite(float(norm)):
            raise RuntimeError(f"the gradient of step {step} is not finite")
        if step % a.report == 0:
            curve.append([step, round(sums / a.report, 4)])
            print(f"step {step}: loss {sums / a.report:.4f}, {seen / len(rows):.2f} epochs, {time.time() - began:.0f} s, "
                  f"{step * a.rows * a.length / (time.time() - began) / 1e3:.0f} k tokens/s", flush=True)
            sums = 0.0
    model.token_embd.requires_grad_(False)
    return step, round(seen / len(rows), 3), curve


def fitted(*args):
    """`fit` with compiled pieces if that is wanted and works on this machine."""
    if args[4].compile:
        try:
            with compiled():
                return fit(*args)
        except Exception as error:
            print(f"not compiled: {str(error)[:500]}", flush=True)
    return fit(*args)


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--human", required=True)
    ap.add_argument("--answers", nargs="*", default=[])
    ap.add_argument("--seconds", type=float, default=470, help="the whole run; the training takes what the rest leaves")
    ap.add_argument("--reserve", type=float, default=40, help="seconds kept for the measuring")
    ap.add_argument("--sampling", type=float, default=110, help="most seconds for own answers")
    ap.add_argument("--full", type=float, default=0, help="seconds for the same training of all weights, reported beside")
    ap.add_argument("--items", type=int, default=200000)
    ap.add_argument("--own", type=int, default=60000)
    ap.add_argument("--calibration", type=int, default=12000, help="own answers that fit the reading")
    ap.add_argument("--held", type=int, default=2000, help="held-out generated cases of the report")
    ap.add_argument("--every", type=int, default=1, help="only every n-th item of the exams")
    ap.add_argument("--traces", type=int, default=0, help="held-out human traces that are used (0: all)")
    ap.add_argument("--rank", type=int, default=14)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--full-lr", type=float, default=2e-4)
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--rows", type=int, default=32)
    ap.add_argument("--batch", type=int, default=1536)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--report", type=int, default=50)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return ap.parse_args()


def own_answers(model, tk, pool, a, until):
    """(lines of own answers, their cases under way in the pool): those given; then what the calibration and the exams ask beyond them;
    then training questions until the clock says stop."""
    lines, under_way = [x for path in a.answers for x in own.load(path)], []
    take = lambda new: under_way.extend(pool.apply_async(_own_cases, (x,)) for s in own.HEATS for x in chunks([y for y in new if y["set"] == s], 200))
    take(lines)
    have, known = {own.key(x) for x in lines}, sum(x["set"] == "train" for x in lines)
    generated = [(s, n, a.calibration // 16) for s in ("familiar", "unseen") for n in range(8)]
    per = max(1, (a.own - known) // 64)
    more = [("train", a.seed * 1000 + n, per) for n in range(64)] if a.own > known else []
    first = pool.map_async(_questions, [("slice", 0, a.every), ("golden", 0, a.every), *generated], chunksize=1)
    then = pool.map_async(_questions, more, chunksize=1)
    for asked, end in ((first, until + 900), (then, until)):
        open_ = [q for q in sum(asked.get(), []) if own.key(q[0]) not in have]
        for new in own.sample(model, tk, open_, a.batch, end) if open_ else ():
            lines += new
            take(new)
    return lines, under_way


def gathered(lines, under_way, answering, made, held, enc, a):
    """(training rows, sets of cases that are judged, what the rows hold)."""
    attacks = answering.map_async(_attacks, [(x, a.seed + n) for n, x in enumerate(chunks([y for y in lines if y["set"] == "golden"], 200))])
    wrote = [c for got in under_way for c in got.get()]
    rigid = own.rigid_families([c for c in wrote if c["set"] == "train"])
    sets = {s: [labels.loosened(c, rigid) for c in wrote if c["set"] == s] for s in own.HEATS if s != "train"}
    wrote = [c for c in wrote if c["set"] == "train"]
    own_rows = sum(answering.map(_own_rows, [(x, rigid) for x in chunks(wrote, 400)]), [])
    sets["attack"] = sum(attacks.get(), [])
    train_human, held_human = split_traces(a.human)
    sets["human"] = held_human[:a.traces] if a.traces else held_human
    _W["enc"], _W["length"] = enc, a.length
    human_rows, synthetic_rows = _rows(train_human), sum(made.get(), [])
    sets["synthetic"] = sum(held.get(), [])
    count = lambda rows: {"cases": len(rows), "steps": sum(len(r[2]) for r in rows), "wrong": sum(r[2].count(0) for r in rows), "tokens": sum(len(r[0]) for r in rows)}
    share = {"synthetic": count(synthetic_rows), "own": count(own_rows), "own_right": sum(c["good"] for c in wrote), "human": count(human_rows), "rigid": sorted(rigid)}
    print(json.dumps(share), {k: len(v) for k, v in sets.items()}, flush=True)
    return synthetic_rows + own_rows + human_rows, sets, share


def upper_bound(model, rows, sets, a, good, bad, enc):
    """The same training with every weight of the trunk free: what no adapter can be expected to pass."""
    free = copy.deepcopy(model)
    params = [p.requires_grad_(True) for n, p in free.named_parameters() if not n.startswith(("nextn", "token_embd"))]
    steps, epochs, curve = fitted(free, [{"params": params, "lr": a.full_lr}], lambda: None, rows, a, good, bad, time.time() + a.full)
    for c in sets.values():
        judge_cases(free, enc, c, a.rows)
    write(a, "full.json", {"steps": steps, "epochs": epochs, "curve": curve, **report(sets)})


def save_scores(path, sets):
    keep = ("set", "kind", "domain", "family", "heat", "mode", "labels", "scores", "good")
    own.save(path, [{k: c[k] for k in keep if k in c} | {"in": n, "thought": len(c["thought"])} for n, cases in sets.items() for c in cases])


def main():
    a = arguments()
    os.makedirs(a.out, exist_ok=True)
    began, took = time.time(), {}
    clock = lambda name: (took.__setitem__(name, round(time.time() - began, 1)), print(f"{name}: {time.time() - began:.0f} s", flush=True))
    tokenizer = os.path.join(a.out, "tokenizer.json")
    write_tokenizer(a.model, tokenizer)
    some = max(1, a.jobs // 3)                                             # both pools before the GPU is touched
    answering, making = (mp.Pool(n, _worker, (tokenizer, a.length)) for n in (some, max(1, a.jobs - some)))
    parts = max(1, min(200, a.items // 100))
    held = making.map_async(_synthetic_cases, [(900 + s, max(1, a.held // 20)) for s in range(20)], chunksize=1)
    made = making.map_async(_synthetic_rows, [(a.seed * 1000 + s, a.items // parts) for s in range(parts)], chunksize=1)
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = load_model(a.model).to(a.device).eval()
    from tokenizers import Tokenizer
    tk, enc = Tokenizer.from_file(tokenizer), form.Encoder(tokenizer)
    good, bad = enc.control("<|good|>"), enc.control("<|bad|>")
    clock("model loaded")
    lines, under_way = own_answers(model, tk, answering, a, began + a.sampling)
    own.save(os.path.join(a.out, "own.jsonl.xz"), lines)
    clock("own answers")
    rows, sets, share = gathered(lines, under_way, answering, made, held, enc, a)
    clock("labels")
    if a.full:
        upper_bound(model, rows, sets, a, good, bad, enc)
        clock("all weights")
    hashed, lora = model_hash(a.model), Lora(model, a.rank, 2.0 * a.rank)
    groups = [{"params": list(lora.a), "lr": a.lr}, {"params": list(lora.b), "lr": 2 * a.lr}]
    steps, epochs, curve = fitted(model, groups, lora.apply_to_model, rows, a, good, bad, max(time.time() + 10, began + a.seconds - a.reserve))
    lora.settle()
    lora.save(os.path.join(a.out, "prm-raw.gguf"), hashed)
    clock("trained")
    said = {name: judge_cases(model, enc, c, a.rows) for name, c in sets.items()}
    save_scores(os.path.join(a.out, "scores.jsonl.xz"), sets)
    result = report(sets)
    s = result["score"]
    lora.save(os.path.join(a.out, "prm.gguf"), hashed, {
        "chimere.prm.form": "labels/1", "chimere.prm.scale": s["scale"], "chimere.prm.bias": s["bias"], "chimere.prm.cuts": s["cuts"]})
    clock("measured")
    result |= {"said": said, "training": {"base_hash": hashed, "rank": a.rank, "lr": a.lr, "steps": steps, "epochs": epochs, "seed": a.seed, "seconds": took,
               "curve": curve, **share, "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu"}}
    write(a, "prm.json", result)
    for n in sets:
        print(n, json.dumps({k: result[n][k] for k in ("steps", "answers", "within_family") if k in result[n]}))
    print(json.dumps(result["synthetic"]["steps_by_kind"]), json.dumps(result["golden"]["calibration"]["by_verdict"]), sep="\n", flush=True)
    answering.terminate(), making.terminate()


def write(a, name, what):
    with open(os.path.join(a.out, name), "w") as f:
        json.dump(what, f, indent=1)


if __name__ == "__main__":
    main()
