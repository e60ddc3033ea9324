#!/usr/bin/env bash
# Installs what the build needs and is not there: Debian packages and a Rust toolchain. Does nothing, and asks for
# nothing, when all of it is present. `setup.sh browser` adds what the tests of the chat page need.
set -euo pipefail

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need cc build-essential
need c++ build-essential
need make make
need cmake cmake
need curl curl
need python3 python3
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
# bindgen reads C headers through libclang; libclang-cpp, which other packages bring, is not it.
compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || missing+=(libclang-dev)

if [ "${1:-}" = browser ]; then
  need chromium chromium
  need node nodejs
  need npm npm
fi

if ((${#missing[@]})); then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: please install: ${missing[*]} (this script knows only apt-get)" >&2
    exit 1
  fi
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  echo "setup: installing ${missing[*]} with apt-get${as_root:+, as root by sudo}"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

export PATH="$HOME/.cargo/bin:$PATH"
if ! command -v cargo >/dev/null 2>&1; then
  echo "setup: installing Rust with rustup, into $HOME/.cargo and $HOME/.rustup"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --component rustfmt --component clippy
fi
