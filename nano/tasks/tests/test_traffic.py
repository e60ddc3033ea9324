"""The week's traffic: as pinned, apart from the exams, in fresh phrasings, and readable without the libraries of training."""

import re
import subprocess
import sys
import unittest

import tasks
from tasks.exam import load as exam
from traffic import fresh, make


class Traffic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.items = make.read()
        with open(make.FILE, "rb") as f:
            cls.data = f.read()

    def test_the_file_keeps_every_rule(self):
        self.assertEqual(make.problems(self.items, self.data), [])
        self.assertEqual(self.data[4:8], bytes(4), "gzip with a time in it")
        self.assertLess(len(self.data), 420_000)

    def test_a_planted_exam_item_is_found(self):
        for it in exam(make.GOLDEN, "week")[5:400:250]:
            wrong = make.problems([{**it, "night": 0}, *self.items[1:]], self.data)
            self.assertTrue(any("equal prompt with " + it["id"] in w for w in wrong), it["id"])
            self.assertTrue(any("template of an exam" in w for w in wrong), it["id"])

    def test_a_planted_entity_is_found(self):
        it = next(i for i in self.items if i["family"] == "recall")
        name = sorted(make.proper_names("week"))[0]
        said = {**it, "messages": [*it["messages"], {"role": "user", "content": f"I know {name.capitalize()}."}]}
        self.assertEqual(make.foreign(said, (make.proper_names("week"), make.things("week"))), {name})

    def test_phrasings_are_new_and_fill_the_same_blanks(self):
        known, w = fresh.Known(), fresh.load()
        mine = fresh.own()
        again = [(p, t) for place, v in {**mine["pools"], **mine}.items() if place not in ("pools", "polite") for p, t in fresh.flat(place, v) if known.has(p, t)]
        self.assertEqual(again, [])
        for place in (p for p in w if "." in p):
            mod, var = place.split(".")
            blanks = [set(re.findall(r"\{(\w+)\}", t)) for _, t in getattr(sys.modules["tasks." + mod], var).of["train"]]
            for t in w[place]:
                mine = set(re.findall(r"\{(\w+)\}", t))
                self.assertLessEqual(mine, set.union(*blanks), (place, t))
                self.assertLessEqual(set.intersection(*blanks), mine, (place, t))
            self.assertGreaterEqual(sum(not known.has(place, t) for t in w[place]), 6, place)

    def test_the_generators_are_as_before_afterwards(self):
        before = list(tasks.generate("train", 3, 200))
        with fresh.fresh_wordings():
            self.assertNotEqual(before, list(tasks.generate("train", 3, 200)))
        self.assertEqual(before, list(tasks.generate("train", 3, 200)))

    def test_no_library_of_training_is_needed(self):
        code = "import sys, traffic.make as m; m.read(); print(any(x in sys.modules for x in ('torch', 'numpy', 'tokenizers', 'gguf')))"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=make.HERE + "/..").stdout
        self.assertEqual(out.strip(), "False")


if __name__ == "__main__":
    unittest.main()
