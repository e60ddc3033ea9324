"""Trains nano-embed: a vector for each of nano's tokens; a text is the sum of its tokens' vectors, made one long. The vectors' lengths
are learned too, and so weigh the tokens. Contrastive: of a batch, each text must find the one it belongs to, both ways round.

usage (in nano/): python3 -m embed.train nano.gguf CORPUS TEXTS OUT.gguf     TEXTS: the folder that engram/build fills
"""
import argparse
import json
import random
import time

import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from embed.data import HELD_OUT, pairs, share
from embed.measure import TOKENS, families, figures
from train.tokenizer import from_gguf

WIDTH, BATCH, EPOCHS, TEMPERATURE, RATE, SEED = 96, 768, 6, 0.05, 2e-3, 1


def start(model, width):
    """nano's own token vectors, cut to their first principal directions, rare tokens longer."""
    tensor = next(t for t in GGUFReader(model).tensors if t.name == "token_embd.weight")
    weights = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
    weights -= weights.mean(0)
    _, _, directions = torch.pca_lowrank(weights, q=width, center=False, niter=4)
    return torch.nn.functional.normalize(weights @ directions, dim=1)


class Texts:
    """Token ids of many texts, one after the other."""

    def __init__(self, tk, texts):
        rows = [e.ids[:TOKENS] or [0] for e in tk.encode_batch(list(texts), add_special_tokens=False)]
        self.rows = [torch.tensor(r) for r in rows]

    def bag(self, which):
        rows = [self.rows[i] for i in which]
        lengths = torch.tensor([0] + [len(r) for r in rows[:-1]])
        return torch.cat(rows), torch.cumsum(lengths, 0)


def embed(vectors, texts, which):
    ids, offsets = texts.bag(which)
    return torch.nn.functional.normalize(torch.nn.functional.embedding_bag(ids, vectors, offsets, mode="sum"), dim=1)


def fit(vectors, left, right, groups, log):
    vectors.requires_grad_(True)
    optimiser = torch.optim.Adam([vectors], lr=RATE)
    rng, order = random.Random(SEED), list(range(len(groups)))
    steps = EPOCHS * (len(order) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        rng.shuffle(order)
        loss_sum = 0.0
        for at in range(0, len(order) - BATCH + 1, BATCH):
            which = order[at:at + BATCH]
            for g in optimiser.param_groups:
                g["lr"] = RATE * min(1.0, (step + 1) / 50) * (1 - step / steps)
            scores = embed(vectors, left, which) @ embed(vectors, right, which).T / TEMPERATURE
            group = groups[which]
            # Others of the same family are no wrong answers.
            scores = scores.masked_fill((group[:, None] == group[None]) & (group >= 0)[:, None] & ~torch.eye(BATCH, dtype=torch.bool), -1e9)
            target = torch.arange(BATCH)
            loss = (torch.nn.functional.cross_entropy(scores, target) + torch.nn.functional.cross_entropy(scores.T, target)) / 2
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss_sum, step = loss_sum + loss.item(), step + 1
        log(f"epoch {epoch + 1}: loss {loss_sum / (len(order) // BATCH):.3f}")
    return vectors.detach()


def tokenizer(w, model):
    """nano's tokenizer, so that the file reads texts by itself."""
    fields = GGUFReader(model).fields
    value = lambda key: fields["tokenizer.ggml." + key].contents()
    w.add_tokenizer_model(value("model"))
    w.add_tokenizer_pre(value("pre"))
    w.add_token_list(value("tokens"))
    w.add_token_types(value("token_type"))
    w.add_token_merges(value("merges"))
    w.add_eos_token_id(value("eos_token_id"))
    w.add_add_bos_token(False)


def write(path, model, vectors, found):
    w = GGUFWriter(path, "static-embedding")
    w.add_string("general.type", "model")
    w.add_name("nano-embed")
    w.add_license("apache-2.0")
    w.add_string("general.description", "token vectors for retrieval; a text is the sum of its tokens' vectors, normalised")
    w.add_uint32("static-embedding.embedding_length", vectors.shape[1])
    w.add_uint32("static-embedding.vocab_size", vectors.shape[0])
    w.add_string("chimere.figures", json.dumps(found))
    tokenizer(w, model)
    data = quantize(vectors.numpy(), GGMLQuantizationType.Q8_0)
    w.add_tensor("token_embd.weight", data, raw_dtype=GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("corpus")
    ap.add_argument("texts")
    ap.add_argument("out")
    a = ap.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    began = time.time()
    log = lambda text: print(f"{time.time() - began:6.0f} s  {text}", flush=True)
    tk = from_gguf(a.model)
    rows = list(pairs(a.corpus, a.texts))
    held = [r for r in rows if share(r[1]) < HELD_OUT]
    rows = [r for r in rows if share(r[1]) >= HELD_OUT]
    counts = {}
    for name, _, _ in rows:
        counts[name.split(":")[0]] = counts.get(name.split(":")[0], 0) + 1
    log(f"{len(rows)} pairs, {len(held)} held out: {counts}")
    names = {name: n for n, name in enumerate(sorted({r[0] for r in rows if r[0].startswith("family:")}))}
    groups = torch.tensor([names.get(r[0], -1) for r in rows])
    left, right = Texts(tk, [r[1] for r in rows]), Texts(tk, [r[2] for r in rows])
    count = torch.bincount(torch.cat(left.rows + right.rows), minlength=tk.get_vocab_size()).float()
    idf = torch.log(len(rows) / (count + 1)).clamp(min=0.1)
    vectors = start(a.model, WIDTH) * idf[:, None] / 8
    vectors = fit(vectors, left, right, groups, log)
    write(a.out, a.model, vectors, {})
    found = figures(a.out, held, *families(rows))
    write(a.out, a.model, vectors, found)
    log(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
