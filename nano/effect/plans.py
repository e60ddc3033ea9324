"""Which arms are run, in which order."""
from .learn import Arm

SEEDS = range(5)


def _s(lab, n):
    return 2 if lab.small else n


def pick(lab, arms, steps, **kw):
    """Trains one-seed arms and returns, by target (and method), the one with the lowest tuning loss."""
    losses, _ = lab.train(arms, steps, **kw)
    best = {}
    for a, x in zip(arms, losses):
        if x == x and (a.target not in best or x < best[a.target][0]):
            best[a.target] = (x, a)
    for t, (x, a) in best.items():
        lab.say("   best", t, "loss", x, "lr", a.lr, "sigma", a.sigma)
    return {t: a for t, (x, a) in best.items()}


def first(lab):
    """First-order arms: learning rates by one seed, then five seeds by target, size and data."""
    n = _s(lab, 240)
    rates = (1e-3, 3e-3, 1e-2, 3e-2)
    deep = pick(lab, [Arm("all", "fresh:1000", 0, lr / 4) for lr in rates], n, quick=2)
    two = pick(lab, [Arm("last2", "fresh:1000", 0, lr / 2) for lr in rates], n, quick=2)
    top = pick(lab, [Arm(t, "fresh:1000", 0, lr) for t in ("last", "last+head", "ffn+head", "shared", "shared+head") for lr in rates], n, quick=2)
    lab.rates = {t: a.lr for d in (deep, two, top) for t, a in d.items()}
    lab.facts["rates"] = lab.rates
    arms = lambda t, sets: [Arm(t, d, s, lab.rates[t]) for d in sets for s in SEEDS]
    lab.train(arms("all", ["fresh:1000", "sampled:1000", "failed:1000", "fresh:300", "shuffled:1000"]), n, exams=(n,), show="all")
    lab.train(sum((arms(t, ["fresh:1000"]) for t in ("last", "ffn+head", "last+head", "shared")), []), n, exams=(n,), show="last layer")
    lab.train(arms("last2", ["fresh:1000"]), n, exams=(n,), show="last2")
    lab.train(arms("last", ["sampled:1000", "failed:1000", "fresh:300"]), n, exams=(n,), show="last, data")


def smoke(lab):
    """A few steps of everything."""
    lab.train([Arm("all", "fresh:8", s, 1e-3) for s in range(2)], 2, rows=1, exams=(2,))
    lab.train([Arm("last+head", d + ":8", 0, 1e-3) for d in ("sampled", "failed", "shuffled", "wrong", "weak", "earned", "seen")], 2, rows=1, quick=1)
    for m in ("one", "anti", "mezo", "sign"):
        lab.train([Arm("last", "fresh:8", s, 1e-2, 2, m, 0.01, 2 if m == "mezo" else 4, "pca" if m == "one" else "") for s in range(2)], 2, rows=1, quick=1)


def depth(lab):
    """How deep the gradient must go, and at which rank."""
    n = _s(lab, 240)
    lab.train([Arm(t, "fresh:1000", s, 0.002) for t in ("last3", "last4", "last6") for s in SEEDS], n, exams=(n,), show="depth")


def sources(lab):
    """Which pairs: more of them, mixes, wordings already known."""
    n = _s(lab, 240)
    lab.train([Arm("all", d, s, 0.0025) for d in ("earned:1000", "weak:1000", "seen:1000") for s in SEEDS], n, exams=(n,), show="all, data")
    n = _s(lab, 360)
    lab.train([Arm("all", d, s, 0.0025) for d in ("fresh:3800",) for s in SEEDS], n, rows=4, exams=(n,), show="all, 3,800 pairs")


def methods(lab):
    """Zeroth-order methods on the last layer at equal forwards (kept states): tuning loss only, one seed for each setting."""
    total = _s(lab, 6400)
    for method, n, a in (("one", 64, "pca"), ("one", 16, "pca"), ("one", 256, "pca"), ("sign", 64, "pca"), ("anti", 64, "pca"), ("one", 64, ""), ("mezo", 2, "pca")):
        rates = (0.003, 0.03, 0.3) if method == "mezo" else (0.1, 0.3, 1.0)
        sigmas = (0.03, 0.1) if method == "mezo" else (0.1, 0.3)
        lab.train([Arm("last", "fresh:1000", 0, lr, 4, method, s, n, a) for lr in rates for s in sigmas], total // n // (4 if method == "mezo" else 1), quick=4,
                  show=f"{method} {n} {a}", clock=lambda: lab.left() < 20)


def zeroth_all(lab):
    """Zeroth order on all layers."""
    n = _s(lab, 40)
    grid = [(lr, s) for lr in (0.1, 0.3) for s in (0.03, 0.1)]
    b = pick(lab, [Arm("all", "fresh:1000", 0, lr, 2, "one", s, _s(lab, 32), "pca") for lr, s in grid], n, quick=2, show="one all")["all"]
    steps = _s(lab, 140)
    if lab.left() > 75:
        lab.train([Arm("all", "fresh:1000", s, b.lr, 2, "one", b.sigma, b.n, "pca") for s in range(3)], steps, exams=(steps,), show="one all 3 seeds",
                  clock=lambda: lab.left() < 25)
    else:
        lab.train([Arm("all", "fresh:1000", s, b.lr, 2, "one", b.sigma, b.n, "pca") for s in range(2)], steps, show="one all 2 seeds", clock=lambda: lab.left() < 12)


def zeroth(lab):
    """Zeroth order on the last layer (kept states), settings by one seed, then five seeds; then all layers."""
    n = _s(lab, 100)
    if lab.left() < 60:
        return
    last = lambda **k: Arm("last", "fresh:1000", 0, rank=4, **k)
    grid = [(lr, s) for lr in (0.01, 0.03, 0.1) for s in (0.01, 0.03, 0.1)]
    best = {}
    for frozen in ("random", "pca"):
        best[frozen] = pick(lab, [last(method="one", n=_s(lab, 64), lr=lr, sigma=s, frozen_a=frozen) for lr, s in grid], n, quick=2, show="one " + frozen)["last"]
    lab.facts["zeroth"] = {k: a.facts() for k, a in best.items()}
    for frozen in ("pca", "random"):
        b = best[frozen]
        steps = _s(lab, 300)
        if lab.left() > 45:
            lab.train([Arm("last", "fresh:1000", s, b.lr, 4, "one", b.sigma, b.n, frozen) for s in SEEDS], steps, exams=(steps,), quick=10, show="one 5 seeds " + frozen)
