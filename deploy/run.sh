#!/usr/bin/env bash
# Starts the daemon, waits until it can answer, asks one question and leaves it running until Ctrl-C. The daemon's log
# lies beside the program.
set -euo pipefail
bin=$1
listen=$2

log=$(dirname "$bin")/run.log
"$bin" serve --listen "$listen" >"$log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

# Waits for the end of the daemon, says why it ended, with the end of its log, and ends with its exit status.
ended() {
  status=0
  wait "$daemon" || status=$?
  tail -n 20 "$log" >&2
  why="exit status $status"
  [ "$status" -le 128 ] || why="killed by SIG$(kill -l "$status")"
  echo "run: the daemon ended $1: $why. Its log is $log" >&2
  ! grep -q "Address already in use" "$log" || echo "run: another program listens on $listen; \`make run LISTEN=HOST:PORT\` chooses another address" >&2
  [ "$status" -eq 0 ] && exit 1
  exit "$status"
}

ready=
for _ in $(seq 1 300); do
  sleep 0.2
  # Looked at before the address, where another daemon may be the one that answers.
  kill -0 "$daemon" 2>/dev/null || ended "before it was ready"
  if curl -sf "http://$listen/health" >/dev/null; then ready=1; break; fi
done
if [ -z "$ready" ]; then tail -n 20 "$log" >&2; echo "run: the daemon is not ready after a minute" >&2; exit 1; fi

question="What is 17 + 25?"
echo
echo "> $question"
"$bin" chat --url "http://$listen" "$question"
echo
echo "Open http://$listen in a browser, or talk to it with: $bin chat --url http://$listen"
echo "The daemon's log is $log. Ctrl-C stops the daemon."
ended "by itself"
