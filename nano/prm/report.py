"""What is said of a judge: tables over judged cases, calibration on own answers of the training side, and what dress does."""
import random

from train.chat import parse_reply

from . import labels, measure
from .judge import answer_logit


def judged(cases):
    return [c for c in cases if answer_logit(c) is not None]


def step_table(cases):
    s = [(c["scores"][i], y) for c in cases for i, y in enumerate(c["labels"]) if y is not None and c["scores"][i] is not None]
    return measure.auc([x for x, _ in s], [y for _, y in s])


def answer_table(cases):
    got = judged(cases)
    return measure.auc([answer_logit(c) for c in got], [c["good"] for c in got])


def within_table(cases):
    got = judged(cases)
    return measure.auc_within([answer_logit(c) for c in got], [c["good"] for c in got], [c["family"] for c in got])


def by(cases, key, table):
    return {str(k): table([c for c in cases if c[key] == k]) for k in sorted({c[key] for c in cases})}


def by_kind(cases, table):
    """Each kind of wrong answer against the right ones of the domains in which it occurs."""
    out = {}
    for kind in sorted({c["kind"] for c in cases} - {"right"}):
        these = [c for c in cases if c["kind"] == kind]
        domains = {c["domain"] for c in these}
        out[kind] = table([*these, *(c for c in cases if c["kind"] == "right" and c["domain"] in domains)])
    return out


def reading_of(cases):
    """How scores become P: fitted on these answers; verdicts are the bands of P."""
    got = judged(cases)
    scale, bias = measure.platt([answer_logit(c) for c in got], [c["good"] for c in got])
    return {"scale": scale, "bias": bias, "cuts": list(measure.BANDS)}


def p_of(cases, reading):
    return measure.sigmoid([reading["scale"] * min(max(answer_logit(c), -20), 20) + reading["bias"] for c in judged(cases)])


def calibrated(cases, reading):
    p, good = p_of(cases, reading), [c["good"] for c in judged(cases)]
    return {**measure.calibration(p, good, reading["cuts"]), "reliability": measure.reliability(p, good), "admission": measure.admission(p, good, reading["cuts"])}


def attack_set(lines, items, seed):
    """Each honest wrong answer of nano in new dress, still wrong by its exact check."""
    tasks, _ = labels.load_tasks()
    r, out = random.Random(seed), []
    for line, item in zip(lines, items):
        thought, answer, calls = parse_reply(line["reply"], item.get("tools"))
        if calls is None or tasks.check(item, answer, calls):
            continue
        thought, answer = labels.dressed(thought, answer, calls, "golden", r)
        if not tasks.check(item, answer, calls):
            c = labels.case(item, "attack", thought, answer, calls, False)
            if c:
                out.append(c)
    return out


def report(sets):
    """sets: judged cases by name; `familiar` and `unseen` together fit the reading, all are reported by it."""
    sets = {**sets, "calibration": sets["familiar"] + sets["unseen"]}
    reading, out = reading_of(sets["calibration"]), {}
    out["score"] = reading
    for name, cases in sets.items():
        out[name] = {"cases": len(cases), "judged": len(judged(cases)), "steps": step_table(cases), "answers": answer_table(cases)}
        if name in ("calibration", "familiar", "unseen", "slice", "golden"):
            out[name] |= {"within_family": within_table(cases), "by_heat": by(cases, "heat", answer_table), "by_domain": by(cases, "domain", answer_table),
                          "by_mode": by(cases, "mode", answer_table), "within_by_domain": by(cases, "domain", within_table), "calibration": calibrated(cases, reading)}
    synth = sets["synthetic"]
    out["synthetic"] |= {"steps_by_kind": by_kind(synth, step_table), "answers_by_kind": by_kind(synth, answer_table), "within_family": within_table(synth),
                         "steps_by_domain": by(synth, "domain", step_table), "calibration": calibrated(synth, reading)}
    if sets.get("human"):
        out["human"]["by_task"] = by(sets["human"], "family", step_table)
    cuts = reading["cuts"]
    passed = lambda cases: {str(k + 2): measure.rate(p_of(cases, reading) >= cut) for k, cut in enumerate(cuts)}
    out["attack"] |= {"pass_rate": passed(sets["attack"]), "honest_pass_rate": passed([c for c in sets["golden"] if not c["good"]]),
                      "pass_rate_of_right": passed([c for c in sets["golden"] if c["good"]])}
    return out
