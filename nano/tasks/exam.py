"""The frozen exams: made once, no item twice, pinned by hash in MANIFEST.json."""

import collections
import hashlib
import json
import os

from .core import SPLITS, generate

EXAM_SEED = 2026


def prompt_key(item):
    """What makes two items the same: all the messages, white space and case aside."""
    return " ".join(" ".join(str(m.get("content", "")) for m in item["messages"] if m["role"] != "system").casefold().split())


def unique_items(split, seed, n):
    """n items of an exam, balanced over domains and families, no prompt twice."""
    seen, out, k = set(), [], 0
    counts = collections.Counter()
    want = n // 7 + 1
    for it in generate(split, seed, n * 6):
        key = prompt_key(it)
        if key in seen or counts[it["domain"]] >= want:
            continue
        seen.add(key)
        counts[it["domain"]] += 1
        it["id"] = f"{split}-{k:05d}"
        k += 1
        out.append(it)
        if len(out) == n:
            break
    return out


def freeze(where, n):
    """Writes slice, golden and week and the manifest that pins them."""
    os.makedirs(where, exist_ok=True)
    manifest = {"format": 1, "seed": EXAM_SEED, "exams": {}}
    for split in SPLITS[1:]:
        items = unique_items(split, EXAM_SEED, n)
        data = "".join(json.dumps(i, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n" for i in items).encode()
        with open(os.path.join(where, split + ".jsonl"), "wb") as f:
            f.write(data)
        manifest["exams"][split] = {
            "file": split + ".jsonl", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "items": len(items),
            "by_domain": dict(sorted(collections.Counter(i["domain"] for i in items).items())),
            "by_level": dict(sorted(collections.Counter(i["level"] for i in items).items())),
            "by_family": dict(sorted(collections.Counter(i["family"] for i in items).items())),
        }
    with open(os.path.join(where, "MANIFEST.json"), "w", encoding="utf-8") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


def load(where, split):
    """The items of a frozen exam."""
    with open(os.path.join(where, split + ".jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


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
        with open(os.path.join(where, pin["file"]), "rb") as f:
            data = f.read()
        got = hashlib.sha256(data).hexdigest()
        if got != pin["sha256"]:
            errors.append(f"{split}: sha256 is {got}, the manifest pins {pin['sha256']}")
        if data.count(b"\n") != pin["items"]:
            errors.append(f"{split}: {data.count(bytes([10]))} items, the manifest says {pin['items']}")
    return errors
