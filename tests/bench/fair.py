#!/usr/bin/env python3
"""What a key notices of another key that floods the daemon: first token and rate of key B alone and beside fifty requests
of key A, and what A's throughput loses by B. It starts a daemon with `nano` and prints a table.

    cargo build --release && python3 tests/bench/fair.py target/release/chimere

Rates are by the clock of the client. A reply's tokens are those of its `usage`.
"""

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
FLOOD = 50
FLOOD_TOKENS = 256
SMALL = int(os.environ.get("SMALL", "40"))
SMALL_TOKENS = 32
SEQUENCES = 8
# The ids that end a reply of `nano`.
NO_END = {"0": -100, "2": -100}


def start(binary, state):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith("CHIMERE_")}
    env |= {"CHIMERE_SCORER_ENABLED": "false", "CHIMERE_ENGINE_SEQUENCES": str(SEQUENCES), "XDG_CONFIG_HOME": "/nonexistent"}
    keys = {}
    for name in ["a", "b"]:
        told = subprocess.run([binary, "keys", "add", name, "--json", "--state-dir", state], env=env, cwd=ROOT,
                              capture_output=True, text=True, check=True)
        keys[name] = json.loads(told.stdout)["key"]
    daemon = subprocess.Popen([binary, "serve", "--listen", f"127.0.0.1:{port}", "--state-dir", state, "--model",
                               "nano/nano.gguf"], env=env, cwd=ROOT, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    while True:
        try:
            urllib.request.urlopen(url + "/health")
            return daemon, url, keys
        except OSError:
            if daemon.poll() is not None:
                sys.exit("the daemon ended")
            time.sleep(0.1)


def ask(url, key, question, tokens):
    """Seconds to the first token, seconds in all, and tokens."""
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "stream": True, "temperature": 0.8,
            "seed": 1, "logit_bias": NO_END, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    began, first, count = time.monotonic(), None, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk)
            delta = chunk["choices"][0]["delta"] if chunk.get("choices") else {}
            if first is None and (delta.get("content") or delta.get("reasoning_content")):
                first = time.monotonic() - began
            count = (chunk.get("usage") or {}).get("completion_tokens", count)
    return first, time.monotonic() - began, count


class Flood(threading.Thread):
    """Fifty requests of key A, once each. Their rate is that of the time until the last of them ended."""

    def run(self):
        self.began, self.tokens = time.monotonic(), 0
        lock = threading.Lock()

        def one(n):
            tokens = ask(self.url, self.key, f"Tell me of the number {n}.", FLOOD_TOKENS)[2]
            with lock:
                self.tokens += tokens

        threads = [threading.Thread(target=one, args=(n,)) for n in range(FLOOD)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        self.rate = self.tokens / (time.monotonic() - self.began)


def flood(url, key):
    thread = Flood()
    thread.url, thread.key = url, key
    thread.start()
    return thread


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def row(name, small):
    first = [s[0] * 1e3 for s in small]
    rate = [(s[2] - 1) / (s[1] - s[0]) for s in small]
    print(f"| {name} | {len(small)} | {quantile(first, 0.5):.0f} ms | {quantile(first, 0.99):.0f} ms "
          f"| {quantile(rate, 0.5):.0f} | {quantile(rate, 0.01):.0f} |", flush=True)


def main():
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as state:
        daemon, url, keys = start(binary, state)
        try:
            ask(url, keys["b"], "Hello", 8)
            print("| key B | n | first token p50 | p99 | tokens/s p50 | p1 |\n|---|---|---|---|---|---|")
            row("alone", [ask(url, keys["b"], f"What is {n} and 2?", SMALL_TOKENS) for n in range(SMALL)])
            alone = flood(url, keys["a"])
            alone.join()
            beside, small = flood(url, keys["a"]), []
            time.sleep(0.5)
            while beside.is_alive():
                small.append(ask(url, keys["b"], f"What is {len(small)} and 2?", SMALL_TOKENS))
            row(f"beside {FLOOD} requests of A", small)
            metrics = urllib.request.Request(url + "/v1/status", headers={"Authorization": f"Bearer {keys['a']}"})
            told = sum(s[2] for s in small)
            print(f"\nA alone: {alone.rate:.0f} tokens/s. Beside B: {beside.rate:.0f}, which is "
                  f"{100 * (1 - beside.rate / alone.rate):.1f} % less; B wrote {told} tokens meanwhile.")
            try:
                stats = json.load(urllib.request.urlopen(metrics))["engine"]["stats"]
                print(f"{stats['suspended']} suspended, {stats['resumed']} resumed, {SEQUENCES} sequences.")
            except OSError:
                pass
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
