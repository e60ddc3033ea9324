"""Trains the byte-level BPE tokenizer of nano (8,192 pieces, Qwen pre-tokeniser) on a sample of the mix.

Control tokens come first (ids 0-15), so that a cut vocabulary would still hold them. Digits are single pieces by the pre-tokeniser.

With a GGUF in place of MIX its tokenizer is written instead: a fine-tune must keep the pieces that the weights know.

usage: python3 -m train.tokenizer MIX|MODEL.gguf OUT.json [--vocab 8192]
"""
import argparse
import glob
import os
import random

PRE_TOKENIZER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|good|>", "<|bad|>",
           "<|pad|>", "<|step|>"]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
           "</tool_response>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|good|>", "<|bad|>", "<|pad|>", "<|step|>"]
ENDOFTEXT, IM_START, IM_END, THINK, END_THINK, TOOL_CALL, PAD = 0, 1, 2, 3, 4, 5, 14
SAMPLE = dict(wiki=.3, books=.35, dialogue=.3, qa=.3)      # share of a domain the merges are counted on: large domains would drown small ones


def read_documents(path):
    with open(path, "rb") as f:
        return f.read().decode().split("\0")[:-1]


def byte_level(model):
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    tk = Tokenizer(model)
    tk.decoder = decoders.ByteLevel()
    tk.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tk


def from_gguf(path):
    from gguf import GGUFReader
    from tokenizers import AddedToken, models
    fields = GGUFReader(path).fields
    pieces, merges = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "merges"))
    tk = byte_level(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[tuple(m.split(" ")) for m in merges]))
    tk.add_special_tokens([AddedToken(p, special=True, normalized=False) for p in SPECIAL])
    return tk


def main():
    from tokenizers import models, pre_tokenizers, trainers
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mix", help="folder of documents, or the GGUF whose tokenizer is wanted")
    ap.add_argument("out")
    ap.add_argument("--vocab", type=int, default=8192)
    a = ap.parse_args()
    if a.mix.endswith(".gguf"):
        from_gguf(a.mix).save(a.out)
        return
    rng, tk = random.Random(1), byte_level(models.BPE())
    sample = (t.replace("\x01", "") for p in sorted(glob.glob(a.mix + "/*.txt")) for t in read_documents(p)
              if rng.random() < SAMPLE.get(os.path.basename(p)[:-4], 1))
    tk.train_from_iterator(sample, trainers.BpeTrainer(vocab_size=a.vocab, special_tokens=SPECIAL, show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tk.save(a.out)
    print("pieces", tk.get_vocab_size())


if __name__ == "__main__":
    main()
