#!/usr/bin/env bash
# Runs other people's clients against the real daemon: run.sh CHIMERE PYTHON OFFICIAL_PYTHON [RESULTS]. The second Python
# has the official client's own tests' needs. With RESULTS, the counts go into that file as JSON. With DAEMON_TEST_URL
# (and DAEMON_TEST_KEY) set, the daemon that listens there is tested.
set -euo pipefail
bin=$1
python=$2
official=$3
results=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }; rm -rf "$work"' EXIT

if [ -z "${DAEMON_TEST_URL:-}" ]; then
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  # No configuration of the developer's own may reach the test.
  export XDG_CONFIG_HOME=$work/config
  # The names that the official client's own tests ask for.
  printf '[model]\naliases = ["gpt-6-astra", "gpt-3.5-turbo-instruct"]\n[embed]\naliases = ["text-embedding-3-small"]\n' >"$work/chimere.toml"
  "$bin" serve --config "$work/chimere.toml" --listen "127.0.0.1:$port" --state-dir "$work/state" >"$work/log" 2>&1 &
  daemon=$!
  export DAEMON_TEST_URL="http://127.0.0.1:$port"
  for _ in $(seq 1 600); do
    kill -0 "$daemon" 2>/dev/null || { cat "$work/log" >&2; echo "run.sh: the daemon ended before it was ready" >&2; exit 1; }
    curl -sf "$DAEMON_TEST_URL/health" >/dev/null && break
    sleep 0.2
  done
fi
export DAEMON_TEST_KEY=${DAEMON_TEST_KEY:-none}
# No client may tell anybody of its tests.
export OPENAI_AGENTS_DISABLE_TRACING=1 LITELLM_TELEMETRY=False LITELLM_LOCAL_MODEL_COST_MAP=True DO_NOT_TRACK=1

status=0
"$official" "$here/official.py" "$work" || status=1
"$python" "$here/count.py" "$bin" "$work/official.json" "$results" || status=1
exit $status
