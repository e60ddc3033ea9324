#!/usr/bin/env bash
# Starts the daemon, waits until it can answer, asks one question and leaves it running until Ctrl-C.
set -euo pipefail
bin=$1
listen=$2

"$bin" serve --listen "$listen" &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

ready=
for _ in $(seq 1 300); do
  sleep 0.2
  # Looked at before the address, where another daemon may be the one that answers.
  kill -0 "$daemon" 2>/dev/null || { echo "run: the daemon ended before it was ready; LISTEN=HOST:PORT chooses another address" >&2; exit 1; }
  if curl -sf "http://$listen/health" >/dev/null; then ready=1; break; fi
done
if [ -z "$ready" ]; then echo "run: the daemon is not ready after a minute" >&2; exit 1; fi

question="What is 17 + 25?"
echo
echo "> $question"
"$bin" chat --url "http://$listen" "$question"
echo
echo "Open http://$listen in a browser, or talk to it with: $bin chat --url http://$listen"
echo "Ctrl-C stops it."
wait "$daemon"
