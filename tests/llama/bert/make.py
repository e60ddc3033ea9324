#!/usr/bin/env python3
"""Makes small BERT models with random weights and says what their vectors are, by the formulas of the papers.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install numpy gguf && /tmp/v/bin/python tests/llama/bert/make.py

writes `mean.gguf`, `cls.gguf` and `expected.json` beside itself: per file the pooled vectors of some texts, one long.
`cls.gguf` is not kept: the tests make it of `mean.gguf` (tests/llama/models.rs).
Weights are drawn from a fixed seed, so that a second run writes the same bytes. What computes the vectors here knows
nothing of the library that the tests ask: Devlin et al. 2018 (post-norm encoder, learned positions, segment 0, erf GELU),
in numpy at 64 bits.
"""

import json
import math
from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, LAYERS, INNER, POSITIONS = 32, 4, 2, 64, 96
EPSILON = 1e-12
TEXTS = [
    "hello world",
    "hello worlds",
    "Which number opens the shed",
    "a",
    "the quick brown fox jumps over the lazy dog and sleeps",
]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
# A word's start is written with U+2581 in these files, what follows in the word without.
TOKENS = SPECIALS + ["\u2581" + c for c in LETTERS] + LETTERS


def weights(random):
    def normal(*shape, mean=0.0, spread=0.1):
        return random.normal(mean, spread, shape).astype(np.float32)

    def matrix(inputs, outputs):
        return normal(outputs, inputs, spread=2.0 / math.sqrt(inputs))

    made = {
        "token_embd.weight": normal(len(TOKENS), WIDTH, spread=0.5),
        "token_types.weight": normal(2, WIDTH, spread=0.3),
        "position_embd.weight": normal(POSITIONS, WIDTH, spread=0.3),
    }

    def norm(name):
        made[name + ".weight"] = normal(WIDTH, mean=1.0)
        made[name + ".bias"] = normal(WIDTH)

    norm("token_embd_norm")
    for layer in range(LAYERS):
        p = f"blk.{layer}."
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"]:
            made[p + name + ".weight"] = matrix(WIDTH, WIDTH)
            made[p + name + ".bias"] = normal(WIDTH)
        norm(p + "attn_output_norm")
        made[p + "ffn_up.weight"], made[p + "ffn_up.bias"] = matrix(WIDTH, INNER), normal(INNER)
        made[p + "ffn_down.weight"], made[p + "ffn_down.bias"] = matrix(INNER, WIDTH), normal(WIDTH)
        norm(p + "layer_output_norm")
    return made


def write(path, tensors, pooling):
    out = gguf.GGUFWriter(path, "bert")
    out.add_name(path.stem)
    out.add_block_count(LAYERS)
    out.add_context_length(POSITIONS)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_layer_norm_eps(EPSILON)
    out.add_causal_attention(False)
    out.add_pooling_type(pooling)
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("bert")
    out.add_token_type_count(2)
    out.add_token_list(TOKENS)
    out.add_token_types([3 if token in SPECIALS else 1 for token in TOKENS])
    for name, token in [("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("eos", 3), ("mask", 4)]:
        getattr(out, f"add_{name}_token_id")(token)
    for name, values in tensors.items():
        out.add_tensor(name, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def tokenise(text):
    """A token a letter between [CLS] and [SEP]: no piece of this vocabulary is longer."""
    ids = [SPECIALS.index("[CLS]")]
    for word in text.lower().split():
        ids += [TOKENS.index(("\u2581" if at == 0 else "") + letter) for at, letter in enumerate(word)]
    return ids + [SPECIALS.index("[SEP]")]


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * weight + bias


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(tensors, ids):
    w = {name: values.astype(np.float64) for name, values in tensors.items()}

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"])

    def heads(x):
        return x.reshape(len(ids), HEADS, WIDTH // HEADS).transpose(1, 0, 2)

    x = w["token_embd.weight"][ids] + w["token_types.weight"][0] + w["position_embd.weight"][: len(ids)]
    x = norm(x, "token_embd_norm")
    for layer in range(LAYERS):
        p = f"blk.{layer}."
        q, k, v = (heads(linear(x, p + name)) for name in ["attn_q", "attn_k", "attn_v"])
        # No mask: every position sees the whole text.
        mixed = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)) @ v
        mixed = mixed.transpose(1, 0, 2).reshape(len(ids), WIDTH)
        x = norm(x + linear(mixed, p + "attn_output"), p + "attn_output_norm")
        x = norm(x + linear(gelu(linear(x, p + "ffn_up")), p + "ffn_down"), p + "layer_output_norm")
    return x


def main():
    here = Path(__file__).parent
    tensors = weights(np.random.default_rng(20))
    poolings = {
        "mean": (gguf.PoolingType.MEAN, lambda rows: rows.mean(0)),
        "cls": (gguf.PoolingType.CLS, lambda rows: rows[0]),
    }
    expected = {}
    for name, (pooling, pool) in poolings.items():
        write(here / f"{name}.gguf", tensors, pooling)
        expected[name] = []
        for text in TEXTS:
            ids = tokenise(text)
            vector = pool(forward(tensors, ids))
            vector /= np.linalg.norm(vector)
            expected[name].append({"text": text, "ids": ids, "vector": [round(float(v), 7) for v in vector]})
    lines = []
    for name, rows in expected.items():
        lines.append(f" {json.dumps(name)}: [\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]")
    (here / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
