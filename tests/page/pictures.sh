#!/usr/bin/env bash
# Takes the pictures of the README again, into docs/pictures: pictures.sh CHIMERE.
set -euo pipefail
DAEMON_BIN=$(realpath "$1")
CHROMIUM_BIN=${CHROMIUM_BIN:-$(command -v chromium)}
export DAEMON_BIN CHROMIUM_BIN
cd "$(dirname "$0")"
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --loglevel=error
node pictures.mjs
