#!/usr/bin/env bash
# Installs the unpacked archive for all users of this machine, with its systemd unit; or takes it away again.
# Not needed to try it: bin/chimere runs where it was unpacked.
set -euo pipefail
usage() {
  cat <<'TEXT'
usage: install.sh [--prefix DIR] [--destdir DIR] [--uninstall]

  --prefix DIR   where bin/ and share/ go [default: /usr/local]
  --destdir DIR  put everything under this folder instead of /, and leave the running system alone (for packages)
  --uninstall    remove what an installation to this prefix put there; configuration and state stay

A configuration that is already there is kept; a changed one of this version is put beside it as config.toml.new.

Each version lies whole in a folder of its own, PREFIX/lib/chimere/RELEASE; one link, `current`, says which is started.
A daemon that runs keeps its own version, program, weights, kernels and pipelines, until it is restarted.
TEXT
}

here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr/local
destdir=
uninstall=
while (($#)); do
  case $1 in
    --prefix | --destdir)
      [ -n "${2:-}" ] || { echo "install: $1 needs a folder" >&2; exit 64; }
      if [ "$1" = --prefix ]; then prefix=${2%/}; else destdir=${2%/}; fi
      shift 2
      ;;
    --uninstall) uninstall=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "install: what is $1?" >&2; usage >&2; exit 64 ;;
  esac
done
case $prefix in /*) ;; *) echo "install: --prefix $prefix must begin with /" >&2; exit 64 ;; esac

unit=$destdir/etc/systemd/system/chimere.service
users=$destdir/etc/sysusers.d/chimere.conf
config=$destdir/etc/chimere/config.toml
# On a system that runs under systemd, and only for an installation into it.
live() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }
# The nearest folder above a path that is there.
above() {
  local path=$1
  until [ -e "$path" ]; do path=$(dirname "$path"); done
  echo "$path"
}
writable() {
  local there
  there=$(above "$1")
  [ -d "$there" ] && [ -w "$there" ] || { echo "install: $1 cannot be written, for $there cannot: run this as root, or choose another --prefix or --destdir" >&2; exit 73; }
}

if [ -n "$uninstall" ]; then
  if live; then systemctl disable --now chimere.service 2>/dev/null || true; fi
  rm -rf "$destdir$prefix/bin/chimere" "$destdir$prefix/share/chimere" "$destdir$prefix/share/doc/chimere" \
    "$destdir$prefix/lib/chimere" "$unit" "$users"
  if live; then systemctl daemon-reload; fi
  echo "Removed. Kept: $config and the state in /var/lib/chimere."
  exit 0
fi

# Everything that is needed is looked at before the first file is written.
missing=()
for part in bin/chimere share/chimere/nano share/chimere/pipelines share/chimere/systemd/chimere.service \
  share/chimere/systemd/chimere.sysusers share/chimere/systemd/config.toml share/doc/chimere; do
  [ -e "$here/$part" ] || missing+=("$part")
done
if ((${#missing[@]})); then
  echo "install: $here is no unpacked archive, for it lacks: ${missing[*]}" >&2
  if [ -f "$here/../Cargo.toml" ]; then
    echo "install: this is the source. \`make archive\` there packs an archive into target/archive: unpack it, and run the install.sh in it. \`make run\` tries the daemon without installing it." >&2
  else
    echo "install: unpack the archive again, whole, and run the install.sh in it" >&2
  fi
  exit 66
fi
version=$("$here/bin/chimere" --version | cut -d' ' -f2) || { echo "install: $here/bin/chimere does not run on this machine: take the archive for $(uname -m)" >&2; exit 66; }
releases=$destdir$prefix/lib/chimere
folders=("$destdir$prefix/bin" "$destdir$prefix/share/doc" "$releases" "$(dirname "$unit")" "$(dirname "$users")" "$(dirname "$config")")
for folder in "${folders[@]}"; do writable "$folder"; done
needed_kib=$(du -sk "$here/bin" "$here/share" | awk '{ sum += $1 } END { print sum }')
free_kib=$(df -Pk "$(above "$releases")" | awk 'NR == 2 { print $4 }')
((free_kib > needed_kib)) || { echo "install: $releases needs $((needed_kib / 1024)) MiB, and $((free_kib / 1024)) MiB are free: make room, or choose another --prefix" >&2; exit 74; }
mkdir -p "${folders[@]}"

# The new release is whole before anything points at it, so that a start at any moment finds one or the other.
release=$(mktemp -d "$releases/$version-XXXXXX")
trap 'rm -rf "$release"' EXIT
mkdir -p "$release/bin" "$release/share/doc"
install -m 755 "$here/bin/chimere" "$release/bin/chimere"
cp -r "$here/share/chimere" "$release/share/chimere"
cp -r "$here/share/doc/chimere" "$release/share/doc/chimere"
chmod 755 "$release"
# Renamed over what is there: a path that is in use is never absent.
point() {
  if [ -d "$2" ] && [ ! -L "$2" ]; then rm -rf "$2"; fi
  ln -s "$1" "$2.new-$$"
  mv -fT "$2.new-$$" "$2"
}
before=$(readlink "$releases/current" || true)
point "$(basename "$release")" "$releases/current"
trap - EXIT
point ../lib/chimere/current/bin/chimere "$destdir$prefix/bin/chimere"
point ../lib/chimere/current/share/chimere "$destdir$prefix/share/chimere"
point ../../lib/chimere/current/share/doc/chimere "$destdir$prefix/share/doc/chimere"
# The one before stays for the daemon that runs it, and so does any other that still runs. Processes come and go, and some
# show no program: that `ls` fails says nothing.
running=$(ls -l /proc/[0-9]*/exe 2>/dev/null || true)
for old in "$releases"/*/; do
  old=${old%/}
  case $(basename "$old") in current | "$(basename "$release")" | "${before:-none}") continue ;; esac
  if ! grep -qF -- "-> $(realpath "$old")/bin/chimere" <<< "$running"; then rm -rf "$old"; fi
done

sed "s#^ExecStart=/usr/bin/chimere #ExecStart=$prefix/bin/chimere #" "$here/share/chimere/systemd/chimere.service" > "$unit.new"
mv -f "$unit.new" "$unit"
install -m 644 "$here/share/chimere/systemd/chimere.sysusers" "$users"
if [ ! -e "$config" ]; then
  install -m 644 "$here/share/chimere/systemd/config.toml" "$config"
elif ! cmp -s "$here/share/chimere/systemd/config.toml" "$config"; then
  install -m 644 "$here/share/chimere/systemd/config.toml" "$config.new"
  echo "Kept $config; the one of this version is $config.new"
fi
if live; then
  systemd-sysusers "$users"
  systemctl daemon-reload
  # One that runs goes on with the old program until it is told otherwise.
  if systemctl -q is-active chimere.service; then
    echo "Installed. The daemon still runs the old program: systemctl restart chimere"
  else
    echo "Installed. Start it now and at every boot: systemctl enable --now chimere"
  fi
else
  echo "Installed to $destdir$prefix. Try it: $destdir$prefix/bin/chimere serve"
fi
