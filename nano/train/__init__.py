"""Training chain of `nano`: text mix, tokenizer, packing, model, training, export to GGUF, evaluation, fine-tuning.

Each module is one step and one command (`python3 -m train.STEP`, run from `nano/`); `train.chain` runs them all.
"""
