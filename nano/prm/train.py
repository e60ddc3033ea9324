"""Makes nano-prm from nano's weights in one run: labels, nano's own answers, training, calibration, report, adapter file.

usage: python3 -m prm.train nano.gguf OUT --human BIG-BENCH-MISTAKE [--seconds 470] [--items 60000] [--own 32000] [--seed 1] [--compile]

From the folder nano/. A CPU does it with --items 300 --own 60 --exam 40 --seconds 900 --rows 2 (to try the chain, not to get a judge).
"""
import argparse
import contextlib
import copy
import hashlib
import json
import math
import multiprocessing as mp
import os
import random
import time

import numpy as np
import torch

from train.chat import render
from train.decode import generate
from train.gguf_io import load as load_model
from train import model as nano

from . import form, labels, measure
from .judge import Rows, answer_logit, judge_cases, target_loss
from .lora import Lora, model_hash, write_tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
OWN_TOKENS_MAX = 320
HELD_OUT_TRACES = 0.2
_W = {}


def _worker(tokenizer):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with open(os.path.join(HERE, "..", "train", "words.txt"), encoding="utf-8") as f:
        _W["words"] = f.read().split()
    _W["enc"] = form.Encoder(tokenizer)
    _W["tasks"], _ = labels.load_tasks()


def _pack(rows):
    return [(np.array(ids, np.uint16), head, y) for ids, head, y in rows]


def _train_rows(job):
    seed, n = job
    r, rows = random.Random(f"rows {seed}"), []
    for c in labels.synthetic("train", seed, n, _W["words"]):
        rows += labels.examples(c, _W["enc"], r)
    return _pack(rows)


def _cases(job):
    split, seed, n, attack = job
    return list(labels.synthetic(split, seed, n, _W["words"], attack))


def _questions(job):
    """Training questions for nano to answer: (prompt ids, item)."""
    from train.chat import render as show
    seed, n = job
    r, out = random.Random(f"own {seed}"), []
    names = labels.family_stream("train", r)
    for k in range(n):
        try:
            item = labels.make(_W["tasks"], "train", next(names), 5_000_000_000 + seed * 10_000_000 + k, _W["words"])
        except RuntimeError:
            continue
        mode = "think" if r.random() < 0.8 else "direct"
        out.append((_W["plain"].encode(show(item["messages"], item.get("tools"), mode), add_special_tokens=False).ids, item))
    return out


def _questions_setup(tokenizer):
    from tokenizers import Tokenizer
    _worker(tokenizer)
    _W["plain"] = Tokenizer.from_file(tokenizer)


def _own_cases(job):
    return [c for item, text in job if (c := labels.own(item, text, _W["tasks"]))]


def _own_rows(job):
    r, rows, n = random.Random(len(job)), [], [0, 0]
    for c in _own_cases(job):
        n[c["good"]] += 1
        rows += labels.examples(c, _W["enc"], r, most=2)
    return _pack(rows), n


def chunks(x, n):
    return [x[i:i + n] for i in range(0, len(x), n)]


def answers(model, tk, asked, heat, batch):
    """(item, reply text) for every (prompt ids, item)."""
    asked = [q for q in asked if len(q[0]) <= 1200]
    got = []
    for part in chunks(sorted(asked, key=lambda q: len(q[0])), batch):
        out = generate(model, [q[0] for q in part], OWN_TOKENS_MAX, batch, heat)
        got += [(q[1], tk.decode(ids, skip_special_tokens=False)) for q, (ids, _) in zip(part, out)]
    return got


def exam_questions(tk, path, limit):
    with open(path, encoding="utf-8") as f:
        items = [json.loads(line) for line in f]
    if limit:
        items = items[::max(1, len(items) // limit)][:limit]
    return [(tk.encode(render(it["messages"], it.get("tools"), "think"), add_special_tokens=False).ids, it) for it in items]


def split_traces(folder):
    train, held = [], []
    for name, c in labels.human(folder):
        share = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") / 2 ** 32
        (held if share < HELD_OUT_TRACES else train).append(c)
    return train, held


@contextlib.contextmanager
def compiled(wanted):
    """Within: the pieces between the mixers are compiled. Yields what takes that back, for a machine that cannot compile."""
    kept = {n: getattr(nano.Block, n) for n in ("gdn_inputs", "gdn_output", "attn_inputs", "attn_output_ffn")}
    core, head = nano.GDN_CORE, nano.HEAD_LOSS

    def plain():
        for n, f in kept.items():
            setattr(nano.Block, n, f)
        nano.GDN_CORE, nano.HEAD_LOSS = core, head
    if wanted:
        nano.compile_parts(None)
    try:
        yield plain
    finally:
        plain()


def fit(model, lora, rows, a, device, plain, seconds):
    """Trains the adapter by the clock; returns (steps, tokens, curve)."""
    params = list(lora.parameters())
    opt = torch.optim.AdamW(params, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.01)
    feed = Rows(rows, a.length, 1.0, a.label_weight).batches(a.rows, np.random.default_rng(a.seed), epochs=a.epochs)
    began, step, curve, mean, mean_label = time.time(), 0, [], 0.0, 0.0
    for ids, w in feed:
        done = (time.time() - began) / seconds
        if done >= 1:
            break
        factor = min(1.0, (step + 1) / 20) * min(1.0, max(0.02, (1 - done) / 0.6))
        for g in opt.param_groups:
            g["lr"] = a.lr * factor
        lora.apply_to_model()
        ids, w = ids.to(device), w.to(device)
        try:
            loss, label = target_loss(model, ids, w, nano.rms)
            loss.backward()
        except Exception as error:
            if step or not a.compile:
                raise
            print(f"not compiled: {str(error)[:300]}", flush=True)
            plain()
            lora.apply_to_model()
            loss, label = target_loss(model, ids, w, nano.rms)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if not math.isfinite(float(norm)):
            raise RuntimeError(f"the gradient of step {step} is not finite")
        mean, mean_label, step = mean + float(loss.detach()), mean_label + float(label), step + 1
        if step % a.report == 0:
            curve.append([step, round(mean / a.report, 4), round(mean_label / a.report, 4)])
            print(f"step {step}: loss {mean / a.report:.4f}, label {mean_label / a.report:.4f}, {time.time() - began:.0f} s, "
                  f"{step * a.rows * a.length / (time.time() - began) / 1e3:.0f} k tokens/s", flush=True)
            mean = mean_label = 0.0
    return step, step * a.rows * a.length, curve


def step_table(cases):
    s = [(c["scores"][i], y) for c in cases for i, y in enumerate(c["labels"]) if y is not None and c["scores"][i] is not None]
    return measure.auc([x for x, _ in s], [y for _, y in s])


def answer_table(cases):
    got = [(answer_logit(c), c["good"]) for c in cases]
    got = [(x, g) for x, g in got if x is not None]
    return measure.auc([x for x, _ in got], [g for _, g in got])


def by(cases, key, table):
    return {k: table([c for c in cases if c[key] == k]) for k in sorted({c[key] for c in cases})}


def attack_set(honest, seed):
    """Each honest wrong answer of nano in new dress, still wrong by its exact check."""
    import tasks
    r, out = random.Random(seed), []
    for item, text in honest:
        from train.chat import parse_reply
        thought, answer, calls = parse_reply(text, item.get("tools"))
        if calls is None or tasks.check(item, answer, calls):
            continue
        thought, answer = labels.dressed(thought, answer, calls, "golden", r)
        if not tasks.check(item, answer, calls):
            c = labels.case(item, "attack", thought, answer, calls, False)
            if c:
                out.append(c)
    return out


def report(model, tk, enc, a, held_human, synth, pool, began):
    """Everything that is said of the judge, and how its score is read."""
    t, out = time.time(), {}
    heats = (0.0, 0.7)
    texts = {s: [x for h in heats for x in answers(model.base, tk, exam_questions(tk, os.path.join(a.exams, s + ".jsonl"), a.exam), h, a.batch)]
             for s in ("slice", "golden")}
    own = {s: sum(pool.map(_own_cases, chunks(x, 100)), []) for s, x in texts.items()}
    print(f"own answers to the exams: {time.time() - t:.0f} s", flush=True)
    attacked = attack_set(texts["golden"], a.seed)
    sets = {"calibration": own["slice"], "own": own["golden"], "synthetic": synth, "attack": attacked, "human": held_human}
    for name, cases in sets.items():
        if time.time() - began > a.seconds + 30 and name != "calibration":
            print(f"{name}: no time left", flush=True)
            cases.clear()
        counts = judge_cases(model.judge, enc, cases, a.batch)
        out[name] = {**counts, "cases": len(cases), "steps": step_table(cases), "answers": answer_table(cases)}
        print(name, json.dumps(out[name]), f"{time.time() - t:.0f} s", flush=True)
    cal = [(answer_logit(c), c["good"]) for c in own["slice"]]
    cal = [(x, g) for x, g in cal if x is not None]
    scale, bias = measure.platt([x for x, _ in cal], [g for _, g in cal])
    p_of = lambda cases: (measure.sigmoid([scale * answer_logit(c) + bias for c in cases if answer_logit(c) is not None]),
                          [c["good"] for c in cases if answer_logit(c) is not None])
    borders = measure.cuts(*p_of(own["slice"]))
    out["score"] = {"scale": scale, "bias": bias, "cuts": borders}
    for name in ("calibration", "own", "synthetic"):
        out[name]["calibration"] = measure.calibration(*p_of(sets[name]), borders)
    out["own"]["by_domain"] = by(own["golden"], "domain", answer_table)
    out["synthetic"]["by_kind"] = {k: step_table([c for c in synth if c["kind"] in (k, "right")]) for k in sorted({c["kind"] for c in synth} - {"right"})}
    out["synthetic"]["by_domain"] = by(synth, "domain", step_table)
    out["human"]["by_task"] = by(held_human, "family", step_table)
    passed = lambda cases: measure.rate([p >= 0.5 for p in p_of(cases)[0]])
    out["attack"]["pass_rate"] = passed(attacked)
    out["attack"]["honest_pass_rate"] = passed([c for c in own["golden"] if not c["good"]])
    out["own"]["pass_rate_of_right"] = passed([c for c in own["golden"] if c["good"]])
    return out


class Both:
    """The base weights (which answer) and the judged weights, sharing everything but the adapted matrices."""

    def __init__(self, base, judge):
        self.base, self.judge = base, judge


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--human", required=True)
    ap.add_argument("--exams", default=os.path.join(HERE, "..", "golden"))
    ap.add_argument("--seconds", type=float, default=470, help="the whole run; the training takes what the rest leaves")
    ap.add_argument("--reserve", type=float, default=140, help="seconds kept for the measuring")
    ap.add_argument("--items", type=int, default=60000)
    ap.add_argument("--own", type=int, default=32000)
    ap.add_argument("--synthetic", type=int, default=2000, help="held-out generated cases of the report")
    ap.add_argument("--exam", type=int, default=0, help="items of each exam that are used (0: all)")
    ap.add_argument("--traces", type=int, default=0, help="held-out human traces that are used (0: all)")
    ap.add_argument("--rank", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--label-weight", type=float, default=8.0)
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--rows", type=int, default=48)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=1536)
    ap.add_argument("--jobs", type=int, default=os.cpu_count())
    ap.add_argument("--report", type=int, default=25)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    began, took = time.time(), {}
    clock = lambda name: (took.__setitem__(name, round(time.time() - began, 1)), print(f"{name}: {time.time() - began:.0f} s", flush=True))
    tokenizer = os.path.join(a.out, "tokenizer.json")
    write_tokenizer(a.model, tokenizer)
    pool = mp.Pool(max(1, a.jobs), _questions_setup, (tokenizer,))          # before the GPU is touched
    per = max(1, math.ceil(a.items / max(a.jobs * 4, 1)))
    asked_per = max(1, math.ceil(a.own / max(a.jobs * 4, 1)))
    jobs = max(a.jobs * 4, 1)
    questions = pool.map_async(_questions, [(a.seed * 1000 + s, asked_per) for s in range(jobs)], chunksize=1)
    made = pool.map_async(_train_rows, [(a.seed * 1000 + s, per) for s in range(jobs)], chunksize=1)
    parts = max(1, min(jobs, a.synthetic // 20))
    synth = pool.map_async(_cases, [("golden", 900 + s, a.synthetic // parts, 0.0) for s in range(parts)], chunksize=1)
    torch.manual_seed(a.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = load_model(a.model).to(a.device).eval()
    from tokenizers import Tokenizer
    tk, enc = Tokenizer.from_file(tokenizer), form.Encoder(tokenizer)
    clock("model loaded")
    asked = sum(questions.get(), [])
    random.Random(a.seed).shuffle(asked)
    half = len(asked) // 2
    wrote = answers(model, tk, asked[:half], 1.0, a.batch) + answers(model, tk, asked[half:], 0.6, a.batch)
    clock("own answers")
    own = pool.map(_own_rows, chunks(wrote, 250))
    rows = sum(made.get(), [])
    synthetic_labels = len(rows)
    own_counts = np.sum([n for _, n in own], 0).tolist()
    own_rows = sum((r for r, _ in own), [])
    train_human, held_human = split_traces(a.human)
    if a.traces:
        held_human = held_human[:a.traces]
    r = random.Random(a.seed)
    human_rows = _pack([x for c in train_human for x in labels.examples(c, enc, r, most=6)])
    rows += own_rows + human_rows
    share = {"synthetic_labels": synthetic_labels, "own_labels": len(own_rows), "own_answers_wrong_right": own_counts, "human_labels": len(human_rows),
             "good_share": round(float(np.mean([y for _, _, y in rows])), 4), "tokens": int(sum(len(x) for x, _, _ in rows))}
    print(json.dumps(share), flush=True)
    clock("labels")
    base = copy.deepcopy(model)
    lora = Lora(model, a.rank, 2.0 * a.rank)
    with compiled(a.compile) as plain:
        steps, tokens, curve = fit(model, lora, rows, a, a.device, plain, max(20.0, a.seconds - a.reserve - (time.time() - began)))
    lora.settle()
    clock("trained")
    both = Both(fresh(base, a.device), fresh(model, a.device, lora))
    hashed = model_hash(a.model)
    lora.save(os.path.join(a.out, "prm-raw.gguf"), hashed)
    got = report(both, tk, enc, a, held_human, sum(synth.get(), []), pool, began)
    clock("measured")
    s = got["score"]
    lora.save(os.path.join(a.out, "prm.gguf"), hashed, {
        "chimere.prm.form": "labels/1", "chimere.prm.scale": s["scale"], "chimere.prm.bias": s["bias"], "chimere.prm.cuts": [float(c) for c in s["cuts"]]})
    got["training"] = {"base_hash": hashed, "rank": a.rank, "steps": steps, "tokens_seen": tokens, "seed": a.seed, "seconds": took, "curve": curve, **share,
                       "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu"}
    with open(os.path.join(a.out, "prm.json"), "w") as f:
        json.dump(got, f, indent=1)
    print(json.dumps({k: v for k, v in got.items() if k != "training"}))
    pool.terminate()


def fresh(model, device, lora=None):
    """The same weights in a model whose methods are not compiled."""
    out = nano.Nano(nano.Config(**model.c.dict())).to(device).eval()
    state = {n: p for n, p in model.named_parameters()}
    if lora:
        state.update({name.removesuffix(".weight"): block.__dict__[leaf] for block, leaf, _, name in lora.places})
    with torch.no_grad():
        for n, p in out.named_parameters():
            p.copy_(state[n])
            p.requires_grad_(False)
    return out


if __name__ == "__main__":
    main()
