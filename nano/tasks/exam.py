"""The frozen exams: made once, no item twice, pinned by hash in MANIFEST.json."""

import collections
import hashlib
import json
import os

from .core import DOMAINS, SPLITS, generate
from .packed import unpacked, write

EXAM_SEED = 2026
TRAIN_SAMPLE = 150_000


def prompt_key(item):
    """What makes two items the same: all the messages, white space and case aside."""
    return " ".join(" ".join(str(m.get("content", "")) for m in item["messages"] if m["role"] != "system").casefold().split())


def unique_items(split, seed, n, banned=()):
    """n items of an exam, balanced over domains and families, no prompt twice and none of the banned keys."""
    seen, out, k = set(banned), [], 0
    counts = collections.Counter()
    want = -(-n // len(DOMAINS))
    for it in generate(split, seed, n * 12):
        key = prompt_key(it)
        if key in seen or counts[it["domain"]] >= want:
            continue
        seen.add(key)
        counts[it["domain"]] += 1
        it["id"] = f"{split}-{k:05d}"
        k += 1
        out.append(it)
        if len(out) == n:
            return out
    raise RuntimeError(f"{split}: only {len(out)} different items of {n} asked for: ask for fewer or use another seed")


def _clean(n):
    """The three exams without the items that resemble a large training sample or an item of another exam."""
    from .leaks import Index, prompt_of, scan  # leaks reads frozen exams through this module
    sample = [(i["id"], prompt_of(i)) for i in generate("train", EXAM_SEED, TRAIN_SAMPLE)]
    banned = set()
    for _ in range(6):
        exams = {s: unique_items(s, EXAM_SEED, n, banned) for s in SPLITS[1:]}
        by_id = {i["id"]: i for items in exams.values() for i in items}
        hits = {hit[1] for hit in scan(Index(list(by_id.values())), sample)[1]}
        for s in SPLITS[1:]:
            others = Index([i for t in SPLITS[1:] if t < s for i in exams[t]])
            hits |= {hit[0] for hit in scan(others, ((i["id"], prompt_of(i)) for i in exams[s]))[1]}
        if not hits:
            return exams
        banned |= {prompt_key(by_id[h]) for h in hits}
    raise RuntimeError("the exams still resemble the training sample after six rounds: change the held-out phrasings")


def freeze(where, n):
    """Writes slice, golden and week and the manifest that pins them."""
    os.makedirs(where, exist_ok=True)
    manifest = {"format": 1, "seed": EXAM_SEED, "exams": {}}
    exams = _clean(n)
    for split, items in exams.items():
        text = "".join(json.dumps(i, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n" for i in items)
        write(os.path.join(where, split + ".jsonl.gz"), text)
        data = text.encode()
        manifest["exams"][split] = {
            "file": split + ".jsonl.gz", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "items": len(items),
            "by_domain": dict(sorted(collections.Counter(i["domain"] for i in items).items())),
            "by_level": dict(sorted(collections.Counter(i["level"] for i in items).items())),
            "by_family": dict(sorted(collections.Counter(i["family"] for i in items).items())),
        }
    with open(os.path.join(where, "MANIFEST.json"), "w", encoding="utf-8") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


def items(path):
    """The items of an exam file, packed or plain."""
    return [json.loads(line) for line in unpacked(path).split(b"\n") if line.strip()]


def load(where, split):
    """The items of a frozen exam."""
    return items(os.path.join(where, split + ".jsonl.gz"))


def verify(where):
    """Differences between the files and the manifest, as sentences; none when all is well."""
    with open(os.path.join(where, "MANIFEST.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    errors = []
    for split in SPLITS[1:]:
        pin = manifest["exams"].get(split)
        if not pin:
            errors.append(f"{split}: not in the manifest")
            continue
        data = unpacked(os.path.join(where, pin["file"]))
        got = hashlib.sha256(data).hexdigest()
        if got != pin["sha256"]:
            errors.append(f"{split}: sha256 is {got}, the manifest pins {pin['sha256']}")
        if data.count(b"\n") != pin["items"]:
            errors.append(f"{split}: {data.count(bytes([10]))} items, the manifest says {pin['items']}")
    return errors
