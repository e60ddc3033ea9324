"""A nano model to and from a GGUF of architecture `qwen35moe` (the MTP layer is the last block).

Parameters already have GGUF names, shapes and conventions (see model.py); the only formula is ssm_a = -exp(A_log).
"""
import json
import os

import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter, TokenType
from gguf import quants

from .ggml import Quantiser, shaped
from .model import Config, Nano
from .tokenizer import CONTROL, USER_DEFINED

ARCH = "qwen35moe"
TEMPLATE = os.path.join(os.path.dirname(__file__), "chat_template.jinja")


def names(model):
    """Pairs (GGUF tensor name, parameter)."""
    L = model.c.layers
    for n, p in model.named_parameters():
        if n in ("token_embd", "output_norm"):
            yield n + ".weight", p
        elif n.startswith("blk.") or n.startswith("nextn_blk."):
            i, leaf = (n.split(".")[1], n.split(".")[2]) if n.startswith("blk.") else (L, n.split(".")[1])
            leaf = {"ssm_dt": "ssm_dt.bias", "ssm_a_log": "ssm_a"}.get(leaf, leaf + ".weight")
            yield f"blk.{i}.{leaf}", p
        else:
            yield f"blk.{L}.nextn.{n.removeprefix('nextn_')}.weight", p


def write_metadata(w, c, context, tokenizer, file_type, name):
    w.add_type("model")
    w.add_name(name)
    w.add_description("Small demonstration model of the Chimère project")
    w.add_license("apache-2.0")
    w.add_size_label("46M-A18M")
    w.add_file_type(file_type)
    w.add_quantization_version(2)
    w.add_block_count(c.layers + 1)
    w.add_context_length(context)
    w.add_embedding_length(c.hidden)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_freq_base(c.rope_base)
    w.add_rope_dimension_count(c.rope_dim)
    half = c.rope_dim // 2
    a = (half + 2) // 3
    w.add_array(f"{ARCH}.rope.dimension_sections", [a, (half - a + 1) // 2, (half - a) // 2, 0])      # [6,5,5,0] at 16 pairs
    w.add_expert_count(c.experts)
    w.add_expert_used_count(c.experts_used)
    w.add_expert_feed_forward_length(c.ff)
    w.add_expert_shared_feed_forward_length(c.ff)
    w.add_uint32(f"{ARCH}.nextn_predict_layers", 1)
    w.add_ssm_conv_kernel(c.conv)
    w.add_ssm_state_size(c.gdn_dim)
    w.add_ssm_group_count(c.key_heads)
    w.add_ssm_time_step_rank(c.value_heads)
    w.add_ssm_inner_size(c.value_dim)
    w.add_array(f"{ARCH}.attention.recurrent_layers", [not c.is_attention(i) for i in range(c.layers)] + [False])
    w.add_uint32(f"{ARCH}.full_attention_interval", 4)
    if tokenizer:
        write_tokenizer(w, tokenizer)


def write_tokenizer(w, path):
    with open(path, encoding="utf-8") as f:
        t = json.load(f)
    pieces = sorted(t["model"]["vocab"].items(), key=lambda kv: kv[1])
    kind = {**{k: TokenType.CONTROL for k in CONTROL}, **{k: TokenType.USER_DEFINED for k in USER_DEFINED}}
    vocab = t["model"]["vocab"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list([k for k, _ in pieces])
    w.add_token_types([int(kind.get(k, TokenType.NORMAL)) for k, _ in pieces])
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in t["model"]["merges"]])
    w.add_eos_token_id(vocab["<|im_end|>"])
    w.add_eot_token_id(vocab["<|im_end|>"])
    w.add_pad_token_id(vocab["<|pad|>"])
    w.add_bos_token_id(vocab["<|endoftext|>"])
    w.add_add_bos_token(False)
    with open(TEMPLATE, encoding="utf-8") as f:
        w.add_chat_template(f.read())


def save(model, path, tokenizer=None, recipe=None, context=4096, file_type=0, ggml=None, importance=None, name="nano"):
    """Write `model`; `recipe(tensor name, shape)` returns the ggml type of a tensor (default all F32)."""
    w, quantise = GGUFWriter(path, ARCH), Quantiser(ggml)
    write_metadata(w, model.c, context, tokenizer, file_type, name)
    for n, p in names(model):
        x = p.detach().float().cpu().numpy()
        if n.endswith("ssm_a"):
            x = -np.exp(x)
        t = recipe(n, x.shape) if recipe and x.ndim > 1 else Q.F32
        q = shaped(quantise(x, t, (importance or {}).get(n)), x.shape)
        w.add_tensor(n, q, raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def config(reader):
    """Config from GGUF metadata."""
    get = lambda k: reader.fields[f"{ARCH}.{k}"].contents()
    emb = next(t for t in reader.tensors if t.name == "token_embd.weight")
    return Config(vocab=int(emb.shape[1]), hidden=get("embedding_length"), layers=get("block_count") - get("nextn_predict_layers"),
                  experts=get("expert_count"), experts_used=get("expert_used_count"), ff=get("expert_feed_forward_length"),
                  key_heads=get("ssm.group_count"), value_heads=get("ssm.time_step_rank"), gdn_dim=get("ssm.state_size"),
                  heads=get("attention.head_count"), kv_heads=get("attention.head_count_kv"), head_dim=get("attention.key_length"),
                  conv=get("ssm.conv_kernel"), rope_base=get("rope.freq_base"), eps=get("attention.layer_norm_rms_epsilon"))


def load(path):
    """A model with the dequantised weights of a GGUF written by `save` (or any tied qwen35moe file with one MTP layer)."""
    r = GGUFReader(path)
    model = Nano(config(r))
    tensors = {t.name: t for t in r.tensors}
    with torch.no_grad():
        for n, p in names(model):
            t = tensors[n]
            x = quants.dequantize(t.data, t.tensor_type).reshape(tuple(reversed([int(s) for s in t.shape])))
            if n.endswith("ssm_a"):
                x = np.log(-x)
            p.copy_(torch.from_numpy(np.array(x, np.float32)).reshape(p.shape))
    return model
