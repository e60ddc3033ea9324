"""Command line: `python3 -m tasks train | exam | freeze | verify | check-leaks | families | distil`."""

import argparse
import json
import sys

from . import FAMILIES, SPLITS, generate


def _write(items, out):
    f = open(out, "w", encoding="utf-8") if out else sys.stdout
    for it in items:
        f.write(json.dumps(it, ensure_ascii=False, separators=(",", ":")) + "\n")
    if out:
        f.close()


def main():
    p = argparse.ArgumentParser(prog="tasks", description=__doc__)
    sub = p.add_subparsers(dest="cmd", required=True)
    q = sub.add_parser("train", help="training items as JSON lines")
    q.add_argument("--n", type=int, default=1000)
    q.add_argument("--seed", type=int, default=1)
    q.add_argument("--families", nargs="*")
    q.add_argument("--out")
    q = sub.add_parser("exam", help="more exam items of a split, balanced over domains and families")
    q.add_argument("--split", choices=SPLITS[1:], required=True)
    q.add_argument("--n", type=int, default=2100)
    q.add_argument("--seed", type=int, default=1)
    q.add_argument("--out")
    q = sub.add_parser("freeze", help="write the three exams and their manifest once")
    q.add_argument("--dir", default="golden")
    q.add_argument("--n", type=int, default=2100)
    q = sub.add_parser("verify", help="compare the exams with the manifest")
    q.add_argument("--dir", default="golden")
    q = sub.add_parser("check-leaks", help="find training records that nearly repeat exam items")
    q.add_argument("--train", required=True, help="JSON lines of items, or text records ended by a zero byte")
    q.add_argument("--dir", default="golden")
    q = sub.add_parser("families", help="list the families")
    q = sub.add_parser("distil", help="make the fact tables again from the public source sets")
    q.add_argument("--corpus", required=True)
    a = p.parse_args()
    if a.cmd == "train":
        _write(generate("train", a.seed, a.n, a.families), a.out)
    elif a.cmd == "exam":
        from .exam import unique_items
        _write(unique_items(a.split, a.seed, a.n), a.out)
    elif a.cmd == "freeze":
        from .exam import freeze
        freeze(a.dir, a.n)
    elif a.cmd == "verify":
        from .exam import verify
        errors = verify(a.dir)
        print("\n".join(errors) or "all exams are as pinned")
        return 1 if errors else 0
    elif a.cmd == "check-leaks":
        from .leaks import report
        return report(a.dir, a.train)
    elif a.cmd == "distil":
        from .distil import run
        run(a.corpus)
    else:
        for name, (domain, weight, _) in sorted(FAMILIES.items(), key=lambda x: (x[1][0], x[0])):
            print(f"{domain:11s} {name:20s} {weight}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
