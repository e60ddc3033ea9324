"""Fits how a judge's scores are read, on what `chimere eval scorer --out SCORES.jsonl` wrote for held-out tasks, and writes the
adapter again with that reading. The tasks must not be those on which the judge is reported.

usage: python3 -m prm.calibrate nano-prm.gguf SCORES.jsonl OUT.gguf

`prm.train` fits the reading by itself, on its own answers; this is for a judge that is to be read on other tasks.
"""
import argparse
import json
import math

import numpy as np
from gguf import GGUFReader, GGUFWriter

from . import measure


def read(path):
    """(logit of the weakest step, right) of every judged answer."""
    out = []
    with open(path, encoding="utf-8") as f:
        for row in map(json.loads, f):
            if row["steps"]:
                p = min(max(min(row["steps"]), 1e-7), 1 - 1e-7)
                out.append((math.log(p / (1 - p)), row["passed"]))
    return [x for x, _ in out], [g for _, g in out]


def rewrite(source, out, reading):
    r = GGUFReader(source)
    text = lambda k: r.fields[k].contents()
    w = GGUFWriter(out, text("general.architecture"))
    w.add_type("adapter")
    for k in ("adapter.type", "general.name", "general.license", "chimere.base_hash", "chimere.digest"):
        w.add_string(k, text(k))
    w.add_float32("adapter.lora.alpha", float(text("adapter.lora.alpha")))
    for k in ("chimere.format", "chimere.rank"):
        w.add_uint32(k, int(text(k)))
    w.add_string("chimere.prm.form", "labels/1")
    w.add_float32("chimere.prm.scale", reading["scale"])
    w.add_float32("chimere.prm.bias", reading["bias"])
    w.add_array("chimere.prm.cuts", [float(c) for c in reading["cuts"]])
    for t in r.tensors:
        w.add_tensor(t.name, np.array(t.data))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("adapter")
    ap.add_argument("scores")
    ap.add_argument("out")
    a = ap.parse_args()
    logits, good = read(a.scores)
    scale, bias = measure.platt(logits, good)
    p = measure.sigmoid([scale * min(max(x, -20), 20) + bias for x in logits])
    reading = {"scale": scale, "bias": bias, "cuts": measure.BANDS}
    rewrite(a.adapter, a.out, reading)
    print(json.dumps({"reading": reading, "auc": measure.auc(logits, good), "in sample": measure.calibration(p, good, reading["cuts"])}, indent=1))


if __name__ == "__main__":
    main()
