"""Checkpoints: a dict of config, weights (matrices bf16: enough to continue from and to quantise), step and a note."""
import os

import torch

from .model import NANO, TINY, Config, Nano


def save_checkpoint(model, path, step, note=None):
    state = {k: v.detach().bfloat16().cpu() if v.ndim > 1 else v.detach().cpu() for k, v in model.state_dict().items()}
    torch.save({"config": model.c.dict(), "model": state, "step": step, "note": note or {}}, path + ".part")
    os.replace(path + ".part", path)


def load_checkpoint(path, device="cpu"):
    """Model of a checkpoint written by `train.train` (a dict with config and weights), or of a GGUF."""
    if path.endswith(".gguf"):
        from . import gguf_io                      # only here: a training machine needs no gguf package
        return gguf_io.load(path).to(device)
    if path in ("random", "random-tiny"):
        torch.manual_seed(0)
        return Nano(NANO if path == "random" else TINY).to(device)
    d = torch.load(path, map_location=device, weights_only=True)
    model = Nano(Config(**d["config"])).to(device)
    model.load_state_dict({k: v.float() for k, v in d["model"].items()})
    return model
