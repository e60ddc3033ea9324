#!/usr/bin/env python3
"""What a household without keys notices of one long prompt: the first token of short questions that come while it is read,
the pauses of a reply that is being written, and how long the prompt itself takes. It starts a daemon and prints a table.

    cargo build --release && python3 tests/bench/long.py target/release/chimere [MODEL] [--words 8000] [--shorts 20]

Times are by the clock of the client. `--set NAME=VALUE` gives the daemon a variable, such as CHIMERE_ENGINE_STEP_TOKENS=64.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The ids that end a reply of `nano`, and of SmolLM2.
NO_END = {"0": -100, "2": -100}
WORDS = "the river went past old copper lanterns and a quiet mill where nobody had counted boats since spring".split()


class Daemon:
    def __init__(self, binary, model, state, settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {k: v for k, v in os.environ.items() if not k.startswith("CHIMERE_")}
        env |= {"CHIMERE_SCORER_ENABLED": "false", "XDG_CONFIG_HOME": "/nonexistent"}
        env |= dict(s.split("=", 1) for s in settings)
        self.log = open(os.path.join(state, "log"), "w+")
        self.process = subprocess.Popen([binary, "serve", "--listen", f"127.0.0.1:{port}", "--state-dir", state, "--model",
                                         model], env=env, cwd=ROOT, stderr=self.log)
        self.url = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except OSError:
                if self.process.poll() is not None:
                    self.log.seek(0)
                    sys.exit("the daemon ended: " + self.log.read()[-2000:])
                time.sleep(0.1)

    def ask(self, messages, tokens, stamps=None):
        """Seconds to the first token, tokens of the prompt, of those kept, and what was said; each token's time to `stamps`."""
        body = {"messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0, "logit_bias": NO_END,
                "stream_options": {"include_usage": True}, "chimere": {"route": "default"}}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        began, first, usage, said = time.monotonic(), None, {}, []
        with urllib.request.urlopen(request, timeout=3600) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(chunk)
                delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
                text = delta.get("content") or delta.get("reasoning_content")
                if text:
                    first = first or time.monotonic() - began
                    said.append(text)
                    if stamps is not None:
                        stamps.append(time.monotonic())
                usage = chunk.get("usage") or usage
        kept = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        whole = time.monotonic() - began
        return (whole if first is None else first), usage.get("prompt_tokens", 0), kept, "".join(said), whole


def user(text):
    return [{"role": "user", "content": text}]


def text_of(words, seed):
    return " ".join(WORDS[(n * 7 + n // 5 + seed) % len(WORDS)] for n in range(words))


def together(work):
    """Runs each function in a thread of its own; their results in order."""
    found = [None] * len(work)

    def run(n):
        found[n] = work[n]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(work))]
    [t.start() for t in threads]
    return lambda: [t.join() for t in threads] and found


def of(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else float("nan")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", default="nano/nano.gguf")
    parser.add_argument("--words", type=int, default=8000)
    parser.add_argument("--shorts", type=int, default=20)
    parser.add_argument("--after", type=float, default=1.0, help="seconds of reading before the short ones come")
    parser.add_argument("--reply", type=int, default=400, help="tokens of the reply that the prompt is read beside")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    binary = os.path.abspath(args.binary)
    long, shorts = text_of(args.words, 0), [f"What is {n} and {n + 2}? Say it in a word." for n in range(args.shorts)]
    with tempfile.TemporaryDirectory() as state:
        daemon = Daemon(binary, args.model, state, args.set)
        try:
            # Its steps are measured from here on.
            daemon.ask(user(text_of(max(1, args.words // 10), 3)), 4)
            alone = [daemon.ask(user(s), 4) for s in shorts]
            print(f"{len(shorts)} short questions of {alone[0][1]} tokens, each alone: first token {of([a[0] for a in alone], .5):.0f} ms, "
                  f"longest {of([a[0] for a in alone], 1):.0f}", flush=True)
            reading = together([lambda: daemon.ask(user(long), 4)])
            time.sleep(args.after)
            firsts = together([lambda s=s: daemon.ask(user(s), 4) for s in shorts])()
            (first, tokens, _, said, _), = reading()
            same = sum(a[3] == b[3] for a, b in zip(alone, firsts))
            print(f"beside a prompt of {tokens} tokens, all at once: first token {of([f[0] for f in firsts], .5):.0f} ms, "
                  f"longest {of([f[0] for f in firsts], 1):.0f}; {same} of {len(shorts)} the same replies", flush=True)
            print(f"the prompt itself: first token after {first:.2f} s, {tokens / first:.0f} tokens/s", flush=True)
            again = daemon.ask(user(long) + [{"role": "assistant", "content": said}, *user("And then?")], 4)
            print(f"its second turn: {again[1]} tokens, {again[1] - again[2]} read; first token {again[0] * 1e3:.0f} ms", flush=True)
            quiet = []
            daemon.ask(user(shorts[0]), args.reply, quiet)
            stamps = []
            writing = together([lambda: daemon.ask(user(shorts[0]), args.reply, stamps)])
            time.sleep(0.3)
            began = time.monotonic()
            other = together([lambda: daemon.ask(user(text_of(args.words, 11)), 4)])
            writing(), other()
            gaps = lambda s: [b - a for a, b in zip(s, s[1:])]
            beside = gaps([s for s in stamps if s >= began])
            print(f"a reply, ms a token: quiet {of(gaps(quiet), .5):.1f}, longest {of(gaps(quiet), 1):.1f}; beside another such prompt "
                  f"mean {1e3 * sum(beside) / max(1, len(beside)):.1f}, p50 {of(beside, .5):.1f}, p99 {of(beside, .99):.1f}, longest "
                  f"{of(beside, 1):.1f} (n {len(beside)})", flush=True)
            lone = daemon.ask(user(text_of(args.words, 5)), 4)
            print(f"such a prompt alone: {lone[1]} tokens, {lone[1] / lone[0]:.0f} tokens/s", flush=True)
        finally:
            daemon.process.terminate()
            daemon.process.wait()


if __name__ == "__main__":
    main()
