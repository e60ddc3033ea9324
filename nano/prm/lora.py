"""Low-rank adapters on nano: training them, and their GGUF file in llama.cpp's layout.

y = W x + (alpha / rank) B (A x). In a file A is `<tensor>.lora_a` [in, rank] and B `<tensor>.lora_b` [rank, out] (innermost
dimension first). `chimere.base_hash` names the weights the adapter was made for, `chimere.prm.*` how a judge's score is read.
"""
import hashlib
import struct

import numpy as np
import torch
from torch import nn

TARGETS = ("attn_qkv", "attn_gate", "ssm_out", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
HASH_SAMPLE_BYTES = 4096


class Lora(nn.Module):
    """Adapter of a `Nano`. `apply` puts W + scale·B·A in the place of every target weight; the base stays frozen."""

    def __init__(self, model, rank, alpha):
        super().__init__()
        self.rank, self.alpha, self.places = rank, alpha, []
        for p in model.parameters():
            p.requires_grad_(False)
        self.a, self.b = nn.ParameterList(), nn.ParameterList()
        for i, block in enumerate(model.blk):
            for name in TARGETS:
                if name in block._parameters:
                    w = block._parameters.pop(name)
                    rows, cols = w.shape
                    self.places.append((block, name, w.detach(), f"blk.{i}.{name}.weight"))
                    self.a.append(nn.Parameter(torch.randn(rank, cols, device=w.device) * cols ** -0.5))
                    self.b.append(nn.Parameter(torch.zeros(rows, rank, device=w.device)))
        self.apply_to_model()

    def apply_to_model(self):
        scale = self.alpha / self.rank
        for (block, name, w, _), a, b in zip(self.places, self.a, self.b):
            block.__dict__[name] = w + scale * (b @ a)

    @torch.no_grad()
    def settle(self):
        """Rounds the adapter to what its file will hold and applies it for use without gradients."""
        for p in self.parameters():
            p.copy_(p.half().float())
        scale = self.alpha / self.rank
        for (block, name, w, _), a, b in zip(self.places, self.a, self.b):
            block.__dict__[name] = (w + scale * (b @ a)).detach()

    def save(self, path, base_hash, extra=None):
        from gguf import GGUFWriter
        w = GGUFWriter(path, "qwen35moe")
        w.add_type("adapter")
        w.add_string("adapter.type", "lora")
        w.add_float32("adapter.lora.alpha", float(self.alpha))
        w.add_name("nano-prm")
        w.add_license("apache-2.0")
        w.add_uint32("chimere.format", 1)
        w.add_string("chimere.base_hash", base_hash)
        w.add_uint32("chimere.rank", self.rank)
        w.add_string("chimere.digest", self.digest(base_hash))
        for key, value in (extra or {}).items():
            add = {str: w.add_string, float: w.add_float32, list: w.add_array}[type(value)]
            add(key, value)
        for (_, _, _, name), a, b in zip(self.places, self.a, self.b):
            w.add_tensor(name + ".lora_a", a.detach().cpu().half().numpy())
            w.add_tensor(name + ".lora_b", b.detach().cpu().half().numpy())
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def digest(self, base_hash):
        """SHA-256 over everything that has a meaning, as the engine computes it (core/src/engine/adapter.rs)."""
        h = hashlib.sha256()
        text = lambda s: (h.update(struct.pack("<Q", len(s.encode()))), h.update(s.encode()))
        text("chimere.lora.1")
        text("qwen35moe")
        text(base_hash)
        h.update(struct.pack("<Qf", self.rank, self.alpha))
        for (_, _, w, name), a, b in sorted(zip(self.places, self.a, self.b), key=lambda x: x[0][3]):
            text(name)
            h.update(struct.pack("<QQQ", w.shape[1], w.shape[0], 1))
            for values in (a, b):
                h.update(values.detach().cpu().half().float().numpy().astype("<f4").tobytes())
        return h.hexdigest()

    def load(self, path):
        from gguf import GGUFReader
        tensors = {t.name: np.array(t.data, np.float32) for t in GGUFReader(path).tensors}
        with torch.no_grad():
            for (_, _, _, name), a, b in zip(self.places, self.a, self.b):
                a.copy_(torch.from_numpy(tensors[name + ".lora_a"]))
                b.copy_(torch.from_numpy(tensors[name + ".lora_b"]))
        self.settle()


def model_hash(path):
    """The engine's name for a model's weights: SHA-256 over the header, the file's length and the start of every tensor."""
    from gguf import GGUFReader
    r = GGUFReader(path)
    h = hashlib.sha256()
    with open(path, "rb") as f:
        h.update(f.read(r.data_offset))
        h.update(struct.pack("<Q", f.seek(0, 2)))
        for t in r.tensors:
            f.seek(t.data_offset)
            h.update(f.read(min(int(t.n_bytes), HASH_SAMPLE_BYTES)))
    return h.hexdigest()


def write_tokenizer(gguf_path, out):
    """The tokenizer of a GGUF as a tokenizer.json."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from train.tokenizer import PRE_TOKENIZER
    f = GGUFReader(gguf_path).fields
    tokens, kinds, merges = (f["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges"))
    tk = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tk.decoder = decoders.ByteLevel()
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tk.add_special_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k in (3, 4)])
    tk.save(out)
    if tk.get_vocab_size() != len(tokens):
        raise ValueError(f"the tokenizer has {tk.get_vocab_size()} pieces, the model {len(tokens)}")
