"""Statistics of a judge: area under the ROC curve with its DeLong interval, calibration, verdict cuts."""
import math

import numpy as np

CUT_PASS = 0.5                      # verdict 3 and better


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
    s, g = np.asarray(scores, float), np.asarray(good, bool)
    m, n = int(g.sum()), int((~g).sum())
    if m < 2 or n < 2:
        return {"auc": None, "good": m, "bad": n}
    x, y = s[g], s[~g]
    all_ranks = midranks(np.concatenate([x, y]))
    v10 = (all_ranks[:m] - midranks(x)) / n
    v01 = 1 - (all_ranks[m:] - midranks(y)) / m
    a = float(v10.mean())
    se = math.sqrt(v10.var(ddof=1) / m + v01.var(ddof=1) / n)
    return {"auc": round(a, 4), "interval": [round(max(0.0, a - 1.96 * se), 4), round(min(1.0, a + 1.96 * se), 4)], "good": m, "bad": n}


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


def cuts(p, good):
    """Borders between the verdicts 1|2, 2|3, 3|4, 4|5: below the first at most 20 % are right, from the third 85 %, from the
    fourth 95 %, as far as the held-out tasks show; the second is 0.5."""
    p, g = np.asarray(p, float), np.asarray(good, float)
    grid = np.round(np.arange(0.02, 0.5, 0.01), 2)
    low = [c for c in grid if (p < c).sum() >= 30 and g[p < c].mean() <= 0.20]
    first = float(max(low)) if low else 0.2
    high = np.round(np.arange(0.51, 0.995, 0.005), 3)
    reach = lambda want, most: next((float(c) for c in high if (p >= c).sum() >= 30 and g[p >= c].mean() >= want), most)
    third = min(reach(0.85, 0.75), 0.95)
    return [first, CUT_PASS, third, max(reach(0.95, 0.95), round(third + 0.01, 3))]


def verdict(p, borders):
    return 1 + sum(p >= c for c in borders)


def calibration(p, good, borders, bins=10):
    p, g = np.asarray(p, float), np.asarray(good, float)
    at = np.minimum((p * bins).astype(int), bins - 1)
    ece = sum(abs(p[at == b].mean() - g[at == b].mean()) * (at == b).mean() for b in range(bins) if (at == b).any())
    v = np.array([verdict(x, borders) for x in p])
    return {"ece": round(float(ece), 4), "brier": round(float(((p - g) ** 2).mean()), 4), "n": len(p),
            "by_verdict": {str(k): {**rate(g[v == k]), "mean_p": round(float(p[v == k].mean()), 3) if (v == k).any() else None} for k in range(1, 6)}}
