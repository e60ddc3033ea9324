"""Generators: determinism, schema, disjoint splits, answers that pass their own checks and wrong ones that fail."""

import contextlib
import io
import re
import unittest

from tasks import DOMAINS, FAMILIES, SPLITS, check, generate
from tasks.code import run
from tasks.core import Ctx, bucket
from tasks.exam import prompt_key
from tasks.problems import TEMPLATES

N = 20  # items a family and split


def sample(split, seed=11, n=N):
    for name in FAMILIES:
        yield from generate(split, seed, n, [name])


def wrong_reply(item):
    """(reply, calls) that must fail: the reference answer made wrong in the way its check looks at."""
    c = item["check"]
    kind = c["kind"]
    if kind == "number":
        return item["answer"].replace(c["value"], "") + f" {float(c['value']) + 1:g}", []
    if kind == "choice":
        return next(x for x in c["among"] if x != c["value"]), []
    if kind == "list":
        return ", ".join(c["value"] + ["zz"]), []
    if kind == "tool":
        return "", [{"name": c["name"], "arguments": {**c["arguments"], "zz": 1}}]
    if kind == "contains":
        return "something else", []
    if kind == "code":
        return "```\nzz " + c["value"] + "\n```", []
    return "zz " + item["answer"], []


class Determinism(unittest.TestCase):
    def test_same_seed_same_items(self):
        self.assertEqual(list(generate("train", 5, 300)), list(generate("train", 5, 300)))
        self.assertEqual(list(generate("week", 5, 300)), list(generate("week", 5, 300)))

    def test_other_seed_other_items(self):
        a, b = ([prompt_key(i) for i in generate("train", s, 300)] for s in (1, 2))
        self.assertLess(len(set(a) & set(b)), 30)

    def test_items_do_not_depend_on_how_many_are_asked(self):
        self.assertEqual(list(generate("golden", 3, 50)), list(generate("golden", 3, 500))[:50])


class Schema(unittest.TestCase):
    def test_every_family_in_every_split(self):
        for split in SPLITS:
            for it in sample(split, n=12):
                with self.subTest(split=split, family=it["family"]):
                    self.assertIn(it["domain"], DOMAINS)
                    self.assertIn(it["level"], ("easy", "medium", "hard"))
                    self.assertIn(it["messages"][-1]["role"], ("user", "tool"))
                    for m in it["messages"]:
                        self.assertIn(m["role"], ("system", "user", "assistant", "tool"))
                        self.assertNotIn("<|", m["content"])
                        self.assertIsNone(re.search(r"\{[a-z_]*\}", m["content"].split("```")[0]) if it["domain"] != "code" else None, m["content"])
                    self.assertIsInstance(it["max_tokens"], int)
                    self.assertTrue(bool(it["answer"]) != bool(it.get("tool_calls")))
                    self.assertNotIn("</think>", it["think"])
                    for t in it.get("tools", []):
                        f = t["function"]
                        self.assertEqual(t["type"], "function")
                        self.assertLessEqual(set(f["parameters"]["required"]), set(f["parameters"]["properties"]))
                        self.assertTrue(f["name"].isidentifier())

    def test_calls_fit_their_schema(self):
        kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}
        for it in sample("golden"):
            for call in it.get("tool_calls", []):
                schema = next(t["function"] for t in it["tools"] if t["function"]["name"] == call["name"])["parameters"]
                self.assertEqual(set(schema["required"]), set(call["arguments"]))
                for k, v in call["arguments"].items():
                    self.assertIsInstance(v, kinds[schema["properties"][k]["type"]])
                    if "enum" in schema["properties"][k]:
                        self.assertIn(v, schema["properties"][k]["enum"])

    def test_all_domains_have_families(self):
        self.assertEqual({d for d, _, _ in FAMILIES.values()}, set(DOMAINS))
        self.assertGreaterEqual(sum(len(v) for s in TEMPLATES.values() for v in s.values()), 200)


class Answers(unittest.TestCase):
    def test_reference_passes_and_wrong_fails(self):
        for split in SPLITS:
            for it in sample(split):
                with self.subTest(id=it["id"]):
                    self.assertTrue(check(it, it["answer"], it.get("tool_calls")), it)
                    self.assertTrue(check(it, f"<think>\n{it['think']}\n</think>\n\n{it['answer']}", it.get("tool_calls")), it)
                    self.assertFalse(check(it, *wrong_reply(it)), it)
                    self.assertFalse(check(it, ""), it)

    def test_programs_print_what_the_answer_says(self):
        seen = 0
        for name in (f for f in FAMILIES if f.startswith("prints_")):
            for it in generate("golden", 4, N, [name]):
                m = re.search(r"```python\n(.*?)```", it["messages"][-1]["content"], re.S)
                if m:
                    out = io.StringIO()
                    with contextlib.redirect_stdout(out):
                        exec(m[1], {})  # a program of our own generator
                    self.assertEqual(out.getvalue().strip(), it["answer"])
                    seen += 1
        self.assertGreater(seen, 80)

    def test_programs_have_few_builtins(self):
        with self.assertRaises(NameError):
            run("open('x')")

    def test_written_functions_compile(self):
        for it in generate("train", 8, 200, ["write_function"]):
            for code in [it["check"]["value"], *it["check"]["also"]]:
                compile(code, "answer", "exec")

    def test_arithmetic_thought_ends_at_the_answer(self):
        for name in ("add_easy", "add_hard", "sub_medium", "mul_hard", "div_hard", "order_of_operations", "word_hard"):
            for it in generate("train", 9, 200, [name]):
                if it["think"] and "remainder" not in it["think"]:
                    self.assertTrue(it["think"].rstrip(".").endswith(it["check"]["value"]), it)


class Splits(unittest.TestCase):
    def test_templates_do_not_meet(self):
        own = {s: {(i["family"], i["template"]) for i in sample(s, n=60)} for s in SPLITS}
        for a in SPLITS:
            for b in SPLITS:
                if a < b:
                    self.assertEqual(own[a] & own[b], set(), (a, b))

    def test_prompts_do_not_meet(self):
        own = {s: {prompt_key(i) for i in sample(s, n=60)} for s in SPLITS}
        for a in SPLITS:
            for b in SPLITS:
                if a < b:
                    self.assertEqual(own[a] & own[b], set(), (a, b))

    def test_numbers_do_not_meet(self):
        def pairs(split):
            for name in ("add_easy", "add_medium"):
                for it in generate(split, 21, 1000, [name]):
                    xs = [int(x) for x in re.findall(r"\d+", it["messages"][-1]["content"])]
                    if len(xs) == 2 and max(xs) > 12:
                        yield tuple(sorted(xs))
        own = {s: set(pairs(s)) for s in SPLITS}
        for a in SPLITS:
            for b in SPLITS:
                if a < b:
                    self.assertEqual(own[a] & own[b], set(), (a, b))

    def test_the_sum_of_the_readme_may_be_trained(self):
        self.assertTrue(Ctx("train", 0).mine("+17,25"))

    def test_hash_is_even(self):
        counts = [0] * 100
        for i in range(20000):
            counts[bucket(f"+{i},{i * 7}")] += 1
        self.assertGreater(min(counts), 120)
        self.assertLess(max(counts), 290)


if __name__ == "__main__":
    unittest.main()
