#!/usr/bin/env bash
# Packs a built daemon and all that it needs into one archive: archive.sh BINARY FOLDER. Prints the archive's name.
# The same tree and the same binary give the same bytes.
set -euo pipefail
bin=$1
out=$2
root=$(cd "$(dirname "$0")/.." && pwd)

version=$("$bin" --version | cut -d' ' -f2)
name=chimere-$version-$(uname -m)-linux
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
top=$tree/$name
share=$top/share/chimere
doc=$top/share/doc/chimere
mkdir -p "$top/bin" "$share/nano/engram" "$share/nano/golden" "$doc" "$top/share/chimere/systemd" "$out"

install -m 755 "$bin" "$top/bin/chimere"
strip "$top/bin/chimere"
install -m 644 "$root"/nano/*.gguf "$share/nano/"
install -m 644 "$root"/nano/engram/*.engr.gz "$root/nano/engram/DIGESTS" "$share/nano/engram/"
install -m 644 "$root"/nano/golden/*.gz "$root/nano/golden/MANIFEST.json" "$share/nano/golden/"
cp -r "$root/pipelines" "$share/pipelines"
# Kernels compiled for every card, where `make kernels` has made them: with them a card needs no compiler.
if [ -d "$root/target/release/kernels" ]; then cp -r "$root/target/release/kernels" "$share/kernels"; fi
install -m 644 "$root"/systemd/chimere.service "$root"/systemd/chimere-web.conf "$root"/systemd/chimere-folders.conf "$root"/systemd/chimere.sysusers "$root"/systemd/config.toml "$share/systemd/"
install -m 755 "$root/deploy/install.sh" "$top/install.sh"
install -m 644 "$root/deploy/INSTALL.md" "$top/INSTALL.md"
install -m 644 "$root/LICENSE" "$root/deploy/grafana.json" "$doc/"
python3 "$root/deploy/pages.py" "$root" "$doc"
python3 "$root/deploy/licences.py" "$root" > "$doc/THIRD-PARTY.txt"
find "$tree" -type d -exec chmod 755 {} +
find "$tree" -type f ! -perm -u+x -exec chmod 644 {} +

when=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
archive=$out/$name.tar.gz
tar -C "$tree" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$when}" --format=gnu -cf - "$name" \
  | gzip -n -"${LEVEL:-9}" > "$archive.part"
mv "$archive.part" "$archive"
(cd "$out" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
echo "$archive"
