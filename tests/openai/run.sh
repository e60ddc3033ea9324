#!/usr/bin/env bash
# Runs the official OpenAI Python client against the real daemon: run.sh CHIMERE PYTHON [unittest arguments].
# With DAEMON_TEST_URL (and DAEMON_TEST_KEY) set, the daemon that listens there is tested, not a fresh one.
set -euo pipefail
bin=$1
python=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

if [ -z "${DAEMON_TEST_URL:-}" ]; then
  state=$(mktemp -d)
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  # No configuration of the developer's own may reach the test.
  export XDG_CONFIG_HOME=$state/config
  DAEMON_TEST_KEY=$("$bin" keys --state-dir "$state" add tester 2>/dev/null)
  export DAEMON_TEST_KEY
  mkdir -p "$state/pipelines"
  cp "$here"/pipelines/*.yaml "$state/pipelines"
  export DAEMON_TEST_PIPELINES=$here/pipelines
  "$bin" serve --listen "127.0.0.1:$port" --state-dir "$state" ${DAEMON_TEST_MODEL:+--model "$DAEMON_TEST_MODEL"} \
    >"$state/log" 2>&1 &
  daemon=$!
  trap 'kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; rm -rf "$state"' EXIT
  export DAEMON_TEST_URL="http://127.0.0.1:$port"
  for _ in $(seq 1 300); do
    kill -0 "$daemon" 2>/dev/null || { cat "$state/log" >&2; echo "run.sh: the daemon ended before it was ready" >&2; exit 1; }
    curl -sf "$DAEMON_TEST_URL/health" >/dev/null && break
    sleep 0.2
  done
fi
export DAEMON_TEST_KEY=${DAEMON_TEST_KEY:-none}
"$python" -m unittest discover --start-directory "$here" --pattern 'test_*.py' "$@"
