"""Prints name, version, licence and home of every crate that is linked into the daemon, then every licence text once."""

import json
import pathlib
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
target = next(
    line.split()[1] for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines() if line.startswith("host:")
)
command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", target]
data = json.loads(subprocess.check_output(command, cwd=root, text=True))
packages = {p["id"]: p for p in data["packages"]}
nodes = {n["id"]: n for n in data["resolve"]["nodes"]}

# Only what is linked in: what serves the build or the tests alone is not passed on.
seen, open_ = set(), list(data["workspace_members"])
while open_:
    if (current := open_.pop()) not in seen:
        seen.add(current)
        linked = lambda d: any(kind["kind"] is None for kind in d["dep_kinds"])
        open_ += [d["pkg"] for d in nodes[current]["deps"] if linked(d)]

linked_in = sorted((packages[i] for i in seen if packages[i]["source"]), key=lambda p: (p["name"], p["version"]))
texts = {}
print("The program chimere is licensed under Apache-2.0 and contains these libraries; their texts follow.\n")
for p in linked_in:
    print(f"{p['name']} {p['version']}: {p['license'] or 'see its text'}; {p['repository'] or 'crates.io'}")
    folder = pathlib.Path(p["manifest_path"]).parent
    # llama.cpp and ggml lie inside the crate that builds them.
    for home in (folder, folder / "llama.cpp"):
        for file in sorted(home.glob("*")):
            if file.is_file() and file.name.upper().startswith(("LICEN", "COPYING", "NOTICE", "UNLICENSE")):
                texts.setdefault(file.read_text(errors="replace").strip(), []).append(f"{p['name']} {p['version']}")
for text, names in texts.items():
    print("\n" + "=" * 100 + "\n" + ", ".join(dict.fromkeys(names)) + "\n\n" + text)
