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
writable() { mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || { echo "install: $1 cannot be written: run this as root, or choose another --prefix" >&2; exit 73; }; }

if [ -n "$uninstall" ]; then
  if live; then systemctl disable --now chimere.service 2>/dev/null || true; fi
  rm -rf "$destdir$prefix/bin/chimere" "$destdir$prefix/share/chimere" "$destdir$prefix/share/doc/chimere" "$unit" "$users"
  if live; then systemctl daemon-reload; fi
  echo "Removed. Kept: $config and the state in /var/lib/chimere."
  exit 0
fi

for folder in "$destdir$prefix/bin" "$destdir$prefix/share" "$(dirname "$unit")" "$(dirname "$users")" "$(dirname "$config")"; do writable "$folder"; done
# The new one stands beside the old until it is whole: a daemon that runs keeps its file.
install -m 755 "$here/bin/chimere" "$destdir$prefix/bin/chimere.new"
mv "$destdir$prefix/bin/chimere.new" "$destdir$prefix/bin/chimere"
rm -rf "$destdir$prefix/share/chimere" "$destdir$prefix/share/doc/chimere"
mkdir -p "$destdir$prefix/share/doc"
cp -r "$here/share/chimere" "$destdir$prefix/share/chimere"
cp -r "$here/share/doc/chimere" "$destdir$prefix/share/doc/chimere"
sed "s#^ExecStart=/usr/bin/chimere #ExecStart=$prefix/bin/chimere #" "$here/share/chimere/systemd/chimere.service" > "$unit"
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
