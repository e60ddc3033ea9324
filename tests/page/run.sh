#!/usr/bin/env bash
# The chat page in headless Chromium, against the real daemon: run.sh CHIMERE [options of `node --test`].
# Needs node, npm and chromium (`deploy/setup.sh browser`); the two packages are pinned by package-lock.json.
set -euo pipefail
DAEMON_BIN=$(realpath "$1")
CHROMIUM_BIN=${CHROMIUM_BIN:-$(command -v chromium)}
export DAEMON_BIN CHROMIUM_BIN
shift
cd "$(dirname "$0")"
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --loglevel=error
failed=0
for file in *.test.mjs; do
  node --test "$@" "$file" || failed=1
done
exit $failed
