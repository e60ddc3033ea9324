"""Evaluation of a checkpoint or GGUF: held-out bits per byte, exam accuracy by family with 95 % intervals, tool-call validity,
stopping, MTP acceptance, expert load, needle test, and replies to fifty chat prompts for reading by eye.

usage: python3 -m train.evaluate MODEL DATA OUT.json [--exam FILE | --split golden --items 1400] [--parts bpb,exam,mtp,needle,chat]
"""
import argparse
import collections
import glob
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from .chat import parse_reply, render
from .decode import generate
from .checkpoint import load_checkpoint
from .longdocs import probe
from .model import Batch, rms
from .pack import load_tokenizer
from .tokenizer import IM_END, IM_START


def wilson(k, n, z=1.96):
    """95 % interval of a share, in percent."""
    if n == 0:
        return [0.0, 100.0]
    p, d = k / n, 1 + z * z / n
    mid, half = (p + z * z / (2 * n)) / d, z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return [round(100 * (mid - half), 1), round(100 * (mid + half), 1)]


def documents(path, limit):
    a = np.fromfile(path, np.uint16)
    ends = np.flatnonzero(a == 0)
    docs, used = [], 0
    for s, e in zip(np.concatenate([[-1], ends[:-1]]) + 1, ends):
        if limit and used > limit:
            break
        docs.append(a[s:e].astype(np.int64))
        used += e - s
    return docs


def packed(docs, length):
    """Rows [n,length] of whole documents, each ended by 0; a document longer than a row is cut into rows."""
    rows, row = [], []
    for d in sorted((np.append(p, 0) for d in docs for p in np.split(d, range(length - 1, len(d), length - 1))), key=len, reverse=True):
        if len(row) + len(d) > length:
            rows.append(row)
            row = []
        row = row + d.tolist()
    rows.append(row)
    return torch.tensor([r + [0] * (length - len(r)) for r in rows])


@torch.no_grad()
def bits_per_byte(model, tk, data, limit, length=1024, batch=32):
    """Per domain: main model's bits per byte of held-out text (the first token of a document is left out on both sides)."""
    dev, out = model.token_embd.device, {}
    size = torch.tensor([len(tk.id_to_token(i)) for i in range(model.c.vocab)], device=dev)      # a byte-level piece has one character a byte
    for path in sorted(glob.glob(data + "/*.val.bin")):
        rows = packed(documents(path, limit), length)
        nll, nbytes = 0.0, 0
        for r in rows.split(batch):
            r = r.to(dev)
            b = Batch(r)
            x, _, _ = model.trunk(r, b)
            lo = F.linear(rms(x, model.output_norm), model.token_embd.to(x.dtype)).view(*r.shape, -1)[:, :-1].float()
            tgt = r[:, 1:]
            valid = (r[:, :-1] != 0) & (tgt != 0)
            loss = F.cross_entropy(lo.flatten(0, 1), tgt.flatten(), reduction="none").view_as(tgt)
            nll += float((loss * valid).sum())
            nbytes += int((size[tgt] * valid).sum())
        out[os.path.basename(path)[:-8]] = {"bits_per_byte": round(nll / math.log(2) / max(nbytes, 1), 4), "bytes": nbytes}
    return out


@torch.no_grad()
def acceptance(model, data, limit, name="dialogue", length=1024, batch=16):
    """MTP: share of assistant tokens where its first choice is the main model's first choice; and expert load [layers, experts]."""
    dev = model.token_embd.device
    hit = right = n = 0
    loads = []
    for r in packed(documents(f"{data}/{name}.val.bin", limit), length).split(batch):
        r = r.to(dev)
        b = Batch(r)
        x, _, load = model.trunk(r, b)
        loads.append(load)
        head = lambda h: F.linear(h, model.token_embd.to(h.dtype)).view(*r.shape, -1).argmax(-1)
        main, draft = head(rms(x, model.output_norm)), head(model.mtp(x, r, b)[0])
        at = torch.arange(r.shape[1], device=dev).expand_as(r)
        opened = torch.where(r == IM_START, at, -1).cummax(1).values
        closed = torch.where(r == IM_END, at, -1).cummax(1).values
        role = r.gather(1, (opened + 1).clamp(0, r.shape[1] - 1))
        mine = (opened > closed) & (role == ASSISTANT) & (at - opened >= 3)
        ok = mine[:, 1:-1] & (r[:, 1:-1] != 0) & (r[:, 2:] != 0)                    # token t+1 is the assistant's; draft t guesses t+2
        hit += int(((draft[:, :-2] == main[:, 1:-1]) & ok).sum())
        right += int(((draft[:, :-2] == r[:, 2:]) & ok).sum())
        n += int(ok.sum())
    load = torch.stack(loads).mean(0)
    return {"acceptance_percent": round(100 * hit / n, 1), "interval": wilson(hit, n), "text_match_percent": round(100 * right / n, 1), "n": n}, \
        {"min_percent": round(100 * float(load.min()), 1), "max_percent": round(100 * float(load.max()), 1), "by_layer": (100 * load).round(decimals=1).tolist()}


def usual_order(tool):
    """A tool definition of an exam file with its keys as training printed them (the files are sorted; the engine does the same)."""
    first = ("type", "function", "name", "description", "parameters", "enum", "items", "properties", "required")
    if isinstance(tool, dict):
        keys = sorted(tool, key=lambda k: first.index(k) if k in first else len(first))
        return {k: {p: usual_order(s) for p, s in tool[k].items()} if k == "properties" else usual_order(tool[k]) for k in keys}
    return tool


def exam(model, tk, items, batch, mode="think"):
    import tasks
    prompts = [tk.encode(render(it["messages"], [usual_order(t) for t in it.get("tools") or []], mode), add_special_tokens=False).ids for it in items]
    out = generate(model, prompts, max(it["max_tokens"] for it in items), batch, offered=[bool(it.get("tools")) for it in items])
    by, samples = collections.defaultdict(lambda: [0, 0, 0]), []
    valid = wanted = 0
    for it, (ids, stopped) in zip(items, out):
        thought, answer, calls = parse_reply(tk.decode(ids[:it["max_tokens"]], skip_special_tokens=False), it.get("tools"))
        good = calls is not None and bool(tasks.check(it, answer, calls))
        for key in (f"{it['domain']}/{it['family']}", f"domain {it['domain']}", f"level {it['level']}", f"{it['domain']} {it['level']}", "all"):
            by[key][0] += good
            by[key][1] += 1
            by[key][2] += stopped
        if it.get("tool_calls") or calls is None or calls:
            wanted += 1
            names = {t["function"]["name"] for t in it.get("tools") or []}
            valid += bool(calls) and all(c["name"] in names for c in calls)
        samples.append({"id": it["id"], "domain": it["domain"], "family": it["family"], "good": good, "ask": it["messages"][-1]["content"][-300:], "want": it["answer"] or it.get("tool_calls"), "thought": thought,
                        "answer": answer[:300], "calls": calls, "stopped": stopped})
    table = {k: {"percent": round(100 * g / n, 1), "interval": wilson(g, n), "n": n, "stopped_percent": round(100 * s / n, 1)} for k, (g, n, s) in sorted(by.items())}
    return {"families": table, "tool_calls_valid": {"percent": round(100 * valid / max(wanted, 1), 1), "interval": wilson(valid, wanted), "n": wanted}}, samples


def needle(model, tk, data, lengths, n):
    held = np.fromfile(data + "/wiki.val.bin", np.uint16)
    out = {}
    for length in lengths:
        cases = list(probe(tk, held, [length], n))
        got = generate(model, [c[2] for c in cases], 48, batch=max(1, min(n, 131072 // length)), offered=[False] * n)
        good = sum(c[3] in parse_reply(tk.decode(ids, skip_special_tokens=False))[1] for c, (ids, _) in zip(cases, got))
        out[str(length)] = {"percent": round(100 * good / n, 1), "interval": wilson(good, n), "n": n}
    return out


def chat(model, tk, path, heat=0.0):
    with open(os.path.join(os.path.dirname(__file__), "chat_prompts.txt"), encoding="utf-8") as f:
        asked = [line.rstrip("\n").split(" ||| ") for line in f if line.strip()]
    convs = [[{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(a)] for a in asked]
    got = generate(model, [tk.encode(render(c, generation="think"), add_special_tokens=False).ids for c in convs], 200, batch=64, heat=heat, offered=[False] * len(convs))
    with open(path, "w", encoding="utf-8") as f:
        for i, (a, (ids, stopped)) in enumerate(zip(asked, got)):
            thought, answer, _ = parse_reply(tk.decode(ids, skip_special_tokens=False))
            f.write(f"## {i + 1}\nQ: {' / '.join(a)}\n" + (f"thought: {thought}\n" if thought else "") + f"A: {answer}\n{'stopped by itself' if stopped else 'RAN ON'}\n\n")
    return {"n": len(got), "stopped_percent": round(100 * sum(s for _, s in got) / len(got), 1)}


def main():
    global ASSISTANT
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("data")
    ap.add_argument("out")
    ap.add_argument("--exam")
    ap.add_argument("--split", default="golden")
    ap.add_argument("--items", type=int, default=1400)
    ap.add_argument("--seed", type=int, default=99)
    ap.add_argument("--families", default="", help="these alone, for the generated exam")
    ap.add_argument("--parts", default="bpb,exam,mtp,needle,chat")
    ap.add_argument("--limit", type=int, default=0, help="held-out tokens a domain (0 = all)")
    ap.add_argument("--lengths", default="1024,2048,3500,6000,8000")
    ap.add_argument("--needles", type=int, default=40)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = ap.parse_args()
    model, tk = load_checkpoint(a.model, a.device).eval(), load_tokenizer(a.data + "/tokenizer.json")
    ASSISTANT = tk.encode("assistant", add_special_tokens=False).ids[0]
    report, t = {}, time.time()
    for part in a.parts.split(","):
        if part == "bpb":
            report["held_out"] = bits_per_byte(model, tk, a.data, a.limit)
        elif part == "mtp":
            report["mtp"], report["expert_load"] = acceptance(model, a.data, a.limit)
        elif part == "needle":
            report["needle"] = needle(model, tk, a.data, [int(x) for x in a.lengths.split(",")], a.needles)
        elif part == "chat":
            report["chat"] = chat(model, tk, a.out.replace(".json", "") + "-chat.txt")
        elif part == "exam":
            import tasks.exam
            if a.exam:
                items = tasks.exam.items(a.exam)
            else:
                made = tasks.generate(a.split, a.seed, a.items, a.families.split(",") if a.families else None)
                items = list({tasks.exam.prompt_key(i): i for i in made}.values())
            report["exam"], samples = exam(model, tk, items, a.batch)
            with open(a.out.replace(".json", "") + "-exam.jsonl", "w", encoding="utf-8") as f:
                for s in samples:
                    f.write(json.dumps(s, ensure_ascii=False) + "\n")
        print(part, round(time.time() - t, 1), "s", flush=True)
        with open(a.out, "w") as f:
            json.dump(report, f, indent=1)
    for k, v in report.get("exam", {}).get("families", {}).items():
        print(f"{k:40s} {v['percent']:5.1f} {v['interval']} n={v['n']} stop={v['stopped_percent']}")
    print(json.dumps({k: v for k, v in report.items() if k != "exam"})[:6000], report.get("exam", {}).get("tool_calls_valid"))


if __name__ == "__main__":
    main()
