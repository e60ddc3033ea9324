"""Two evaluations of the same exam item by item: difference of the shares right with its 95 % interval, in all and by domain.

usage: python3 -m train.paired OLD-exam.jsonl NEW-exam.jsonl      (the files that `train.evaluate` writes beside its report)
"""
import collections
import json
import math
import sys


def difference(pairs):
    """(difference in points, half width of the 95 % interval, gained, lost, n) of pairs (old right, new right)."""
    n, gained, lost = len(pairs), sum(b and not a for a, b in pairs), sum(a and not b for a, b in pairs)
    d = (gained - lost) / n
    return 100 * d, 196 * math.sqrt(max((gained + lost) / n - d * d, 0) / n), gained, lost, n


def main():
    old, new = ({json.loads(line)["id"]: json.loads(line) for line in open(p, encoding="utf-8")} for p in sys.argv[1:3])
    groups = collections.defaultdict(list)
    for k in old.keys() & new.keys():
        for g in ("all", old[k]["domain"], f"{old[k]['domain']}/{old[k]['family']}"):
            groups[g].append((old[k]["good"], new[k]["good"]))
    if not groups:
        raise SystemExit("the two files have no item in common")
    for g, pairs in sorted(groups.items(), key=lambda x: (x[0] != "all", "/" in x[0], x[0])):
        d, half, gained, lost, n = difference(pairs)
        was, now = (100 * sum(p[i] for p in pairs) / n for i in (0, 1))
        print(f"{g:34s} {was:5.1f} -> {now:5.1f}  {d:+6.1f} ± {half:4.1f}  (+{gained} -{lost} of {n})")


if __name__ == "__main__":
    main()
