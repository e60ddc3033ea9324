#!/usr/bin/env bash
# Packs the built daemon twice, unpacks it as on a fresh machine, asks it a question and installs it: run.sh CHIMERE.
# What a stranger does with the archive, with nothing of this machine's environment.
set -euo pipefail
bin=$(realpath "$1")
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "archive: $*" >&2; exit 1; }
# Longest time from the archive to the first token of an answer.
seconds_max=60

export LEVEL=1
archive=$("$root/deploy/archive.sh" "$bin" "$work/one")
again=$("$root/deploy/archive.sh" "$bin" "$work/two")
cmp "$archive" "$again" || fail "two archives of the same build differ"
(cd "$work/one" && sha256sum --quiet -c ./*.sha256) || fail "the checksum is not the archive's"

mkdir "$work/fresh" "$work/home"
cd "$work/fresh"
began=$(date +%s%N)
tar -xf "$archive"
top=$(echo "$PWD"/chimere-*)
fresh() { env -i HOME="$work/home" PATH=/usr/bin:/bin "$@"; }
fresh "$top/bin/chimere" --version >/dev/null
# Every page that is packed leads only to what is packed.
python3 - "$top/share/doc/chimere" <<'PY' || fail "a page of the archive leads nowhere"
import pathlib, re, sys
folder = pathlib.Path(sys.argv[1])
pages = list(folder.glob("*.md"))
links = [(page.name, to.split("#")[0]) for page in pages for to in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
dead = [(page, to) for page, to in links if "://" not in to and not (folder / to).exists()]
print(*dead, sep="\n", end="")
sys.exit(bool(dead) or not links or not (folder / "owner.md").exists())
PY
files() { (cd "$1" && find . -type f -exec sha256sum {} + | sort -k 2); }

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# From another folder, so that nothing is found by where the command was typed.
(cd / && exec env -i HOME="$work/home" PATH=/usr/bin:/bin "$top/bin/chimere" serve --listen "127.0.0.1:$port" >"$work/log" 2>&1) &
daemon=$!
until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do
  kill -0 "$daemon" 2>/dev/null || { cat "$work/log" >&2; fail "the daemon ended before it was ready"; }
  (($(date +%s%N) - began < seconds_max * 1000000000)) || fail "not ready after $seconds_max s"
  sleep 0.1
done
ask='{"messages": [{"role": "user", "content": "What is 17 + 25?"}], "stream": true}'
curl -sfN "http://127.0.0.1:$port/v1/chat/completions" -H 'content-type: application/json' -d "$ask" >"$work/answer" &
until grep -qE '"(content|reasoning_content)": ?"[^"]' "$work/answer" 2>/dev/null; do
  (($(date +%s%N) - began < seconds_max * 1000000000)) || fail "no token after $seconds_max s"
  sleep 0.05
done
took=$((($(date +%s%N) - began) / 1000000))
wait $!
grep -q 'data: \[DONE\]' "$work/answer" || fail "the answer did not end: $(tail -c 300 "$work/answer")"
# The judge, the embedding model, the tables and the pipelines are found too.
fresh "$top/bin/chimere" check >"$work/check" || { cat "$work/check" >&2; fail "chimere check refuses what was unpacked"; }
grep -Eq "pipelines.dir += \"$top/share/chimere/pipelines\"" "$work/check" || { cat "$work/check" >&2; fail "the pipelines were not found"; }
status=$(curl -sf "http://127.0.0.1:$port/v1/status")
curl -sf "http://127.0.0.1:$port/v1/embeddings" -H 'content-type: application/json' -d '{"input": "a"}' >/dev/null || fail "the embedding model was not found"
grep -q '"kine"' <<<"$status" || fail "the shipped tables were not found: $status"
curl -sf "http://127.0.0.1:$port/v1/models" | grep -q nano || fail "nano is not among the models"
kill "$daemon"
wait "$daemon" || fail "the daemon did not end well"
daemon=
tar -xf "$archive" -C "$work/two"
diff <(files "$work/two/$(basename "$top")") <(files "$top") >&2 || fail "serving changed what was unpacked"

# Installed under a folder, as a package would be.
to=$work/root
fresh "$top/install.sh" --destdir "$to" >/dev/null
grep -q '^ExecStart=/usr/local/bin/chimere serve' "$to/etc/systemd/system/chimere.service" || fail "the unit starts another program"
(cd / && fresh "$to/usr/local/bin/chimere" check) | grep -q "$to/usr/local/lib/chimere/.*/share/chimere" || fail "the installation does not find its model"
echo '# mine' >>"$to/etc/chimere/config.toml"
fresh "$top/install.sh" --destdir "$to" >/dev/null
grep -q '^# mine' "$to/etc/chimere/config.toml" || fail "a changed configuration was overwritten"
[ -e "$to/etc/chimere/config.toml.new" ] || fail "the configuration of this version is not beside it"
fresh "$top/install.sh" --destdir "$to" --uninstall >/dev/null
left=$(cd "$to" && find . -type f -o -type l | sort | tr '\n' ' ')
[ "$left" = "./etc/chimere/config.toml ./etc/chimere/config.toml.new " ] || fail "uninstalling left $left"
fresh "$top/install.sh" --prefix relative >/dev/null 2>&1 && fail "a relative prefix was taken"
fresh "$top/install.sh" --nonsense >/dev/null 2>&1 && fail "an unknown argument was taken"

echo "archive: $(stat -c %s "$archive") bytes at level $LEVEL, first token $took ms after unpacking began"
