"""Statistics of a judge: area under the ROC curve with its DeLong interval, also within groups; calibration; what a verdict admits."""
import math

import numpy as np

# Borders of P(right) between the verdicts 1|2, 2|3, 3|4, 4|5: a verdict names a band of P, and 3 is better than even.
BANDS = (0.2, 0.5, 0.8, 0.9)


def midranks(x):
    order = np.argsort(x, kind="mergesort")
    ranks, i = np.empty(len(x)), 0
    while i < len(x):
        j = i
        while j + 1 < len(x) and x[order[j + 1]] == x[order[i]]:
            j += 1
        ranks[order[i:j + 1]] = (i + j) / 2 + 1
        i = j + 1
    return ranks


def auc(scores, good):
    """(AUC, low, high, good, bad): DeLong, DeLong and Clarke-Pearson 1988."""
    got = _delong(scores, good)
    if not got:
        return {"auc": None, "good": int(np.sum(good)), "bad": len(good) - int(np.sum(good))}
    a, variance, m, n = got
    half = 1.96 * math.sqrt(variance)
    return {"auc": round(a, 4), "interval": [round(max(0.0, a - half), 4), round(min(1.0, a + half), 4)], "good": m, "bad": n}


def auc_within(scores, good, groups):
    """AUC over pairs of one group only, so that knowing which groups are hard is worth nothing: the groups' AUCs weighed by their
    pairs, with the variance of that sum."""
    by = {}
    for s, g, k in zip(scores, good, groups):
        by.setdefault(k, ([], []))[0].append(s)
        by[k][1].append(g)
    got = [x for x in (_delong(*v) for v in by.values()) if x]
    if not got:
        return {"auc": None, "groups": 0}
    w = np.array([m * n for _, _, m, n in got], float)
    w /= w.sum()
    a = float(sum(wi * x[0] for wi, x in zip(w, got)))
    half = 1.96 * math.sqrt(sum(wi * wi * x[1] for wi, x in zip(w, got)))
    return {"auc": round(a, 4), "interval": [round(a - half, 4), round(min(1.0, a + half), 4)], "groups": len(got),
            "good": sum(x[2] for x in got), "bad": sum(x[3] for x in got)}


def _delong(scores, good):
    """(AUC, its variance, good, bad); None with fewer than two of a kind."""
    s, g = np.asarray(scores, float), np.asarray(good, bool)
    m, n = int(g.sum()), int((~g).sum())
    if m < 2 or n < 2:
        return None
    x, y = s[g], s[~g]
    all_ranks = midranks(np.concatenate([x, y]))
    v10 = (all_ranks[:m] - midranks(x)) / n
    v01 = 1 - (all_ranks[m:] - midranks(y)) / m
    return float(v10.mean()), v10.var(ddof=1) / m + v01.var(ddof=1) / n, m, n


def wilson(k, n, z=1.96):
    if n == 0:
        return [0.0, 1.0]
    p, d = k / n, 1 + z * z / n
    mid, half = (p + z * z / (2 * n)) / d, z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / d
    return [round(mid - half, 4), round(mid + half, 4)]


def rate(good):
    k, n = int(np.sum(good)), len(good)
    return {"rate": round(k / n, 4) if n else None, "interval": wilson(k, n), "n": n}


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(np.asarray(x, float), -60, 60)))


def platt(logits, good, steps=100):
    """(scale, bias) of P = sigmoid(scale * logit + bias): Newton's method from (0, base rate), each step halved until it helps (from
    saturated probabilities a full step runs away), with a little ridge towards (1, 0)."""
    x, y = np.clip(np.asarray(logits, float), -20, 20), np.asarray(good, float)
    design, rate = np.stack([x, np.ones_like(x)], 1), min(max(y.mean(), 0.01), 0.99)
    w = np.array([0.0, math.log(rate / (1 - rate))])
    loss = lambda w: np.logaddexp(0, design @ w).sum() - (y * (design @ w)).sum() + 5e-4 * ((w - [1.0, 0.0]) ** 2).sum()
    for _ in range(steps):
        p = sigmoid(design @ w)
        grad = design.T @ (p - y) + 1e-3 * (w - [1.0, 0.0])
        step = np.linalg.solve((design * (p * (1 - p))[:, None]).T @ design + 1e-3 * np.eye(2), grad)
        while loss(w - step) > loss(w) and np.abs(step).max() > 1e-9:
            step = step / 2
        w = w - step
    return float(max(w[0], 1e-3)), float(w[1])


def verdict(p, borders):
    return 1 + sum(p >= c for c in borders)


def calibration(p, good, borders, bins=10):
    p, g = np.asarray(p, float), np.asarray(good, float)
    at = np.minimum((p * bins).astype(int), bins - 1)
    ece = sum(abs(p[at == b].mean() - g[at == b].mean()) * (at == b).mean() for b in range(bins) if (at == b).any())
    v = np.array([verdict(x, borders) for x in p])
    return {"ece": round(float(ece), 4), "brier": round(float(((p - g) ** 2).mean()), 4), "n": len(p),
            "by_verdict": {str(k): {**rate(g[v == k]), "mean_p": round(float(p[v == k].mean()), 3) if (v == k).any() else None} for k in range(1, 6)}}


def reliability(p, good, bins=10):
    """Per bin of P: [mean P, share right, low, high, n]."""
    p, g = np.asarray(p, float), np.asarray(good, float)
    at = np.minimum((p * bins).astype(int), bins - 1)
    return [[round(float(p[at == b].mean()), 3), round(float(g[at == b].mean()), 3), *wilson(int(g[at == b].sum()), int((at == b).sum())), int((at == b).sum())]
            for b in range(bins) if (at == b).any()]


def admission(p, good, borders):
    """For each least verdict: share right of what is admitted (precision), share of the right ones admitted (recall), share of the
    wrong ones admitted."""
    g = np.asarray(good, bool)
    v = np.array([verdict(x, borders) for x in p])
    return {str(k): {"precision": rate(g[v >= k]), "recall": rate(v[g] >= k), "wrong": rate(v[~g] >= k)} for k in range(2, 6)}
