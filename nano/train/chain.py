"""The whole chain as one command: mix, tokenizer, packing, generated data, training, export, evaluation, start of a fine-tune.

`--tiny` runs every step on a CPU in a few minutes with a small model and a slice of the corpus: it proves the chain, not the model.
Steps whose result is already in the work folder are not repeated.

usage: python3 -m train.chain CORPUS WORK [--tiny] [--minutes 24] [--plan train/plans/run1.json] [--init FILE] [--ggml LIB]
"""
import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def step(name, done, *args, **env):
    if done and os.path.exists(done):
        print(f"== {name}: already there", flush=True)
        return
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, "-m", *map(str, args)], check=True, cwd=os.path.dirname(HERE), env={**os.environ, **env})


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("corpus")
    ap.add_argument("work")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--minutes", type=float, default=24)
    ap.add_argument("--plan")
    ap.add_argument("--init")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--ggml")
    a = ap.parse_args()
    a.corpus, w = os.path.abspath(a.corpus), os.path.abspath(a.work)
    os.makedirs(w + "/bin", exist_ok=True)
    tiny, tok = a.tiny, w + "/bin/tokenizer.json"
    plan = a.plan or f"{HERE}/plans/{'tiny' if tiny else 'run1'}.json"
    jobs = ["--jobs", 2] if tiny else []
    step("mix", w + "/mix/code.txt", "train.mix", a.corpus, w + "/mix", *(["--limit", 700] if tiny else []))
    step("tokenizer", tok, "train.tokenizer", w + "/mix", tok)
    step("pack", w + "/bin/wiki.bin", "train.pack", w + "/mix", tok, w + "/bin", *jobs)
    step("generated tasks", w + "/bin/synthetic.000.bin", "train.synth", tok, w + "/bin", "--files", 2 if tiny else 128, "--items", 800 if tiny else 20000, *jobs)
    small = "greeting,identity,unknown,not_told,recall"
    step("small talk tasks", w + "/bin/smalltalk.000.bin", "train.synth", tok, w + "/bin", "--name", "smalltalk", "--families", small,
         "--files", 1 if tiny else 8, "--items", 300 if tiny else 10000, *jobs)
    step("conversations", w + "/bin/talk.000.bin", "train.smalltalk", w + "/bin", tok, w + "/bin", "--items", 300 if tiny else 40000)
    step("long documents", w + "/bin/long.000.bin", "train.longdocs", w + "/bin", tok, w + "/bin", *(["--files", 1, "--items", 10, *jobs] if tiny else []))
    step("shorter recall", w + "/bin/mid.000.bin", "train.longdocs", w + "/bin", tok, w + "/bin", "--name", "mid", "--min", 200, "--max", 850,
         *(["--files", 1, "--items", 20, *jobs] if tiny else []))
    step("lists and made-up tools", w + "/bin/lookup.000.bin", "train.lookup", tok, w + "/bin", *(["--files", 1, "--items", 60, *jobs] if tiny else []))
    length = ["--steps", 12, "--workers", 0, "--device", "cpu"] if tiny else ["--minutes", a.minutes]
    step("training", w + "/run/final.pt", "train.train", plan, w + "/bin", w + "/run", "--seed", a.seed, *length, *(["--init", a.init] if a.init else []))
    lib = ["--ggml", a.ggml] if a.ggml else []
    kind = "ship" if a.ggml or os.environ.get("GGML_BASE") or not tiny else "q8_0"
    step("export", w + "/nano.gguf", "train.export", w + "/run/final.pt", tok, w + "/nano.gguf", "--type", kind, *lib)
    step("loss curve", None, "train.plot", w + "/loss.png", w + "/run/log.jsonl")
    cut = ["--items", 14, "--families", "add_easy,capital", "--limit", 1500, "--needles", 2, "--lengths", 256, "--parts", "bpb,exam,mtp,needle", "--device", "cpu"] if tiny else []
    step("evaluation", w + "/eval.json", "train.evaluate", w + "/nano.gguf", w + "/bin", w + "/eval.json", *cut)
    step("start of a fine-tune", w + "/finetuned.gguf", "train.finetune", w + "/nano.gguf", w + "/bin", w + "/finetuned.gguf", "--type", kind, *lib,
         *(["--steps", 4, "--tokens", 1024, "--length", 256, "--held-out", 600, "--mix", "math=1"] if tiny else []))


if __name__ == "__main__":
    main()
