#!/usr/bin/env python3
"""What can tell, before its end, that an answer will fail, and what each tier gives. Asks a running daemon the items of
an exam in every tier, and with thoughts cut at 16 tokens, greedily. The first 16 tokens of each thought are asked for
once more, with the 20 likeliest tokens of each.

    python3 tests/bench/tiers.py ask http://127.0.0.1:8377 nano/golden/slice.jsonl.gz > target/slice.jsonl
    python3 tests/bench/tiers.py ask http://127.0.0.1:8377 nano/golden/golden.jsonl.gz > target/golden.jsonl
    python3 tests/bench/tiers.py table target/slice.jsonl target/golden.jsonl    # calibrated on the first, tested on the second
"""

import collections
import concurrent.futures
import gzip
import json
import math
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "nano/tasks"))
import checks  # noqa: E402

ARMS = ("fast", "cut", "quality", "ultra")
FIRST_TOKENS = 16
PARALLEL = 16
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SAMPLES = 2000


# Asking.
def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    while True:
        try:
            return json.load(urllib.request.urlopen(request, timeout=600))
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise RuntimeError(error.read().decode()) from error
            time.sleep(1)


def chat(item):
    """The item as a client would send it."""
    messages = [dict(message) for message in item["messages"]]
    for message in messages:
        if message.get("tool_calls"):
            functions = [{"name": c["name"], "arguments": json.dumps(c["arguments"])} for c in message["tool_calls"]]
            calls = [{"id": f"c{n}", "type": "function", "function": f} for n, f in enumerate(functions)]
            message["tool_calls"] = calls
        if message["role"] == "tool":
            message.setdefault("tool_call_id", "c0")
    body = {"messages": messages, "temperature": 0}
    return body | ({"tools": item["tools"]} if item.get("tools") else {})


def ask(url, item):
    body, row = chat(item), {"id": item["id"], "family": item["family"]}
    for arm in ARMS:
        terms = {"chimere": {"tier": "quality" if arm == "cut" else arm}, "max_tokens": item.get("max_tokens", 256)}
        cut = {"thinking_budget": FIRST_TOKENS} if arm == "cut" else {}
        reply = post(f"{url}/v1/chat/completions", body | terms | cut)
        message, usage = reply["choices"][0]["message"], reply["usage"]
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls = [{"name": f["name"], "arguments": json.loads(f["arguments"])} for f in functions]
        row[arm] = bool(checks.check(item["check"], message.get("content") or "", calls))
        row[f"{arm}_tokens"] = usage["completion_tokens"]
        if arm == "quality":
            row["thought"] = usage["completion_tokens_details"]["reasoning_tokens"]
            row["route"], row["prompt"] = reply["x_chimere"]["route"], usage["prompt_tokens"]
    prompt = post(f"{url}/apply-template", body | {"chimere": {"tier": "quality"}})["tokens"]
    first = {"model": "nano", "prompt": prompt, "max_tokens": FIRST_TOKENS, "temperature": 0, "logprobs": 20}
    tops = post(f"{url}/v1/completions", first)["choices"][0]["logprobs"]["top_logprobs"]
    row["certainty"] = [certainty(list(top.values())) for top in tops[: row["thought"]]]
    text = item["messages"][-1]["content"]
    digits, signs = len(re.findall(r"\d", text)), any(c in text for c in "+-*/=")
    further = [bool(item.get("tools")), signs, "```" in text, len(item["messages"]) > 2]
    row["question"] = [math.log1p(len(text.split())), math.log1p(row["prompt"])] + [math.log1p(digits), *map(float, further)]
    return row


def certainty(logprobs):
    """Top-1 probability, entropy and varentropy, among the likeliest tokens."""
    p = [math.exp(l) for l in logprobs]
    share = [x / sum(p) for x in p]
    entropy = -sum(x * math.log(x) for x in share if x > 0)
    varentropy = sum(x * (math.log(x) + entropy) ** 2 for x in share if x > 0)
    return [round(x, 6) for x in (max(p), entropy, varentropy)]


# Reading.
def read(path):
    return [json.loads(line) for line in open(path)]


def means(row):
    seen = row["certainty"] or [[1.0, 0.0, 0.0]]
    columns = list(zip(*seen))
    logs = sum(math.log(max(p, 1e-6)) for p in columns[0]) / len(seen)
    return [sum(column) / len(seen) for column in columns] + [min(columns[0]), max(columns[1]), logs]


def fit(rows, of, arm):
    """A logistic model of an arm's being right."""
    import numpy as np

    x, y = np.array([[1.0, *of(row)] for row in rows]), np.array([row[arm] for row in rows], float)
    mean, spread = x.mean(0), x.std(0)
    spread[spread == 0], mean[0], spread[0] = 1, 0, 1
    z, w = (x - mean) / spread, np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-z @ w))
        slope = z.T @ (p - y) + np.r_[0, w[1:]]
        w -= np.linalg.solve((z.T * (p * (1 - p))) @ z + np.eye(len(w)), slope)
    return lambda row: float(1 / (1 + np.exp(-((np.array([1.0, *of(row)]) - mean) / spread) @ w)))


def auc(rows, fails):
    """Of pairs of one family, the share in which the failed one was the likelier to fail; 95 % over families."""
    import numpy as np

    families = collections.defaultdict(lambda: ([], []))
    for row in rows:
        families[row["family"]][row["quality"]].append(fails(row))
    pairs = [(sum((b > g) + (b == g) / 2 for b in bad for g in good), len(bad) * len(good)) for bad, good in families.values()]
    pairs = np.array([pair for pair in pairs if pair[1]], float)
    rng = np.random.default_rng(1)
    drawn = [pairs[rng.integers(0, len(pairs), len(pairs))].sum(0) for _ in range(SAMPLES)]
    low, high = np.percentile([won / all for won, all in drawn], [2.5, 97.5])
    won, all = pairs.sum(0)
    return f"{won / all:.3f} [{low:.3f}, {high:.3f}]"


def curve(test, order, lower):
    """Accuracy and tokens where the first of `order`, so many, have `lower` in the place of quality."""
    import numpy as np

    rng = np.random.default_rng(1)
    for share in SHARES:
        lowered = set(order[: int(share * len(test))])
        taken = [lower if n in lowered else "quality" for n in range(len(test))]
        right = np.array([row[arm] for row, arm in zip(test, taken)], float)
        tokens = np.array([row[f"{arm}_tokens"] for row, arm in zip(test, taken)], float)
        gained = right - np.array([row["quality"] for row in test], float)
        drawn = [gained[rng.integers(0, len(test), len(test))].mean() for _ in range(SAMPLES)]
        low, high = 100 * np.percentile(drawn, [2.5, 97.5])
        gain = 100 * gained.mean()
        print(f"  {share:4.0%}  {right.mean():.1%}  {gain:+.1f} points [{low:+.1f}, {high:+.1f}]  {tokens.mean():.1f} tokens")


def table(train, test):
    for name, rows in (("calibration", train), ("test", test)):
        for arm in ARMS:
            right, tokens = (sum(row[key] for row in rows) / len(rows) for key in (arm, f"{arm}_tokens"))
            print(f"{name:<12} {arm:<8} {right:.1%} of {len(rows)}, {tokens:.1f} tokens")
    routes = sorted({row["route"] for row in train})
    start = lambda row: [float(row["route"] == route) for route in routes[1:]] + row["question"][:2]
    asked = lambda row: [float(row["route"] == route) for route in routes[1:]] + row["question"]
    both = lambda row: asked(row) + means(row)
    print("AUC of a failure in tier quality, within families:")
    for name, of in (("route and length", start), ("the question", asked), ("certainty", means), ("both", both)):
        right = fit(train, of, "quality")
        print(f"  {name:<18} {auc(test, lambda row: -right(row))}")
    for name, of, lower in (("fast by the question", asked, "fast"), ("cut after 16 tokens by both", both, "cut")):
        quality, other = fit(train, of, "quality"), fit(train, of, lower)
        gains = [quality(row) - other(row) for row in test]
        print(f"{name}, those that lose least first:")
        curve(test, sorted(range(len(test)), key=gains.__getitem__), lower)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", url, exam]:
            items = [json.loads(line) for line in gzip.open(exam)]
            with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
                for row in pool.map(lambda item: ask(url, item), items):
                    print(json.dumps(row), flush=True)
        case ["table", train, test]:
            table(read(train), read(test))
        case _:
            sys.exit(__doc__)
