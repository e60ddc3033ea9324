"""Checks against their vectors, frozen exams against their manifest, and the leak check against planted copies."""

import collections
import json
import os
import tempfile
import unittest

from tasks import DOMAINS, SPLITS, check, generate
from tasks.exam import load, prompt_key, verify
from tasks.leaks import Index, prompt_of, records, report, scan
from tasks.packed import unpacked

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden")


class Vectors(unittest.TestCase):
    def test_every_vector(self):
        kinds, n = collections.Counter(), 0
        with open(os.path.join(GOLDEN, "checks.jsonl"), encoding="utf-8") as f:
            for line in f:
                v = json.loads(line)
                with self.subTest(v=v):
                    self.assertEqual(check(v["check"], v["reply"], v["tool_calls"]), v["pass"], v["why"])
                kinds[v["check"]["kind"], v["pass"]] += 1
                n += 1
        self.assertGreaterEqual(n, 60)
        for kind in ("number", "exact", "contains", "choice", "list", "tool", "code"):
            self.assertGreaterEqual(min(kinds[kind, True], kinds[kind, False]), 3, kind)

    def test_unknown_kind_is_an_error(self):
        with self.assertRaises(ValueError):
            check({"kind": "vibes"}, "x")


class Frozen(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.exams = {s: load(GOLDEN, s) for s in SPLITS[1:]}
        cls.index = Index([i for items in cls.exams.values() for i in items])

    def test_hashes(self):
        self.assertEqual(verify(GOLDEN), [])

    def test_a_changed_byte_is_found(self):
        with tempfile.TemporaryDirectory() as d:
            for name in ["MANIFEST.json"] + [s + ".jsonl.gz" for s in SPLITS[1:]]:
                data = unpacked(os.path.join(GOLDEN, name))
                if name == "week.jsonl.gz":
                    data = data.replace(b"easy", b"hard", 1)
                # Plain where it was packed: the pin is the text's.
                with open(os.path.join(d, name), "wb") as f:
                    f.write(data)
            errors = verify(d)
            self.assertEqual(len(errors), 1)
            self.assertIn("week", errors[0])

    def test_size_and_balance(self):
        for s, items in self.exams.items():
            self.assertGreaterEqual(len(items), 2000)
            self.assertLess(os.path.getsize(os.path.join(GOLDEN, s + ".jsonl.gz")), 300_000)
            by = collections.Counter(i["domain"] for i in items)
            self.assertEqual(set(by), set(DOMAINS))
            self.assertGreaterEqual(min(by.values()), 300)
            self.assertEqual(len({i["id"] for i in items}), len(items))
            self.assertEqual(len({prompt_key(i) for i in items}), len(items))

    def test_references_pass(self):
        for items in self.exams.values():
            for it in items:
                self.assertTrue(check(it, it["answer"], it.get("tool_calls")), it["id"])

    def test_exams_share_no_template_and_no_near_copy(self):
        own = {s: {(i["family"], i["template"]) for i in items} for s, items in self.exams.items()}
        for a in own:
            index = Index(self.exams[a])
            for b in own:
                if a < b:
                    self.assertEqual(own[a] & own[b], set())
                    self.assertEqual(scan(index, ((i["id"], prompt_of(i)) for i in self.exams[b]))[1], [])

    def test_training_sample_does_not_leak(self):
        n, found = scan(self.index, ((i["id"], prompt_of(i)) for i in generate("train", 4242, 3000)))
        self.assertEqual(n, 3000)
        self.assertLessEqual(len(found), 1, found)

    def test_planted_copies_are_found(self):
        item = next(i for i in self.exams["golden"] if i["family"] == "cite_fact")
        arithmetic = next(i for i in self.exams["week"] if i["family"] == "word_medium")
        index = self.index
        self.assertEqual(index.find(prompt_of(item))[:2], (item["id"], "equal prompt"))
        self.assertEqual(index.find(prompt_of(arithmetic).upper() + "!")[:2], (arithmetic["id"], "equal prompt"))
        self.assertEqual(index.find("Please answer: " + prompt_of(item) + " Thanks.")[0], item["id"])
        self.assertEqual(index.find(prompt_of(item) + " And more text follows here, " * 40)[0], item["id"])
        self.assertIsNone(index.find("A quiet text about nothing that any exam asks for, long enough to have many grams."))

    def test_report_reads_both_forms(self):
        item = self.exams["slice"][7]
        clean = [i for i in generate("train", 1, 20)]
        with tempfile.TemporaryDirectory() as d:
            lines, texts = os.path.join(d, "a.jsonl"), os.path.join(d, "b.txt")
            with open(lines, "w") as f:
                f.writelines(json.dumps(i) + "\n" for i in clean)
            self.assertEqual(report(GOLDEN, lines), 0)
            with open(lines, "a") as f:
                f.write(json.dumps(item) + "\n")
            self.assertEqual(report(GOLDEN, lines), 1)
            with open(texts, "wb") as f:
                f.write(b"some text\0" + prompt_of(item).encode() + b"\0<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n")
            self.assertEqual([t for _, t in records(texts)][-2:], ["What is 2 + 2?", "Hi."])
            self.assertEqual(len(list(records(texts))), 5)
            self.assertEqual(report(GOLDEN, texts), 1)


if __name__ == "__main__":
    unittest.main()
