"""Reading: the training documents and the exam keep apart, replies copy what is shown, and the tune replays the base mix."""

import json
import os
import random
import re
import unittest

from train import evidence, facts, reading_exam
from train.retune import check_plan, weights

HERE = os.path.dirname(os.path.abspath(__file__))


def replies(text):
    """(what stands before, reply) of every turn of the assistant that calls no tool."""
    for m in re.finditer(r"<\|im_start\|>assistant\n(?:<think>.*?</think>\n\n)?(.*?)<\|im_end\|>", text.replace("\x01", ""), re.S):
        if "<tool_call>" not in m[1]:
            yield text[:m.start()], m[1]


class Apart(unittest.TestCase):
    def test_names_are_of_one_split(self):
        r = random.Random(1)
        train, exam = ({facts.name(r, s) for _ in range(3000)} for s in facts.SPLITS)
        self.assertEqual(train & exam, set())

    def test_kinds_and_wordings_are_of_one_split(self):
        for table in (facts.STATE, facts.ASK):
            self.assertEqual(set(table["train"]) & set(table["exam"]), set())
        (nouns, verbs), (exam_nouns, exam_verbs) = facts.kinds("train"), facts.kinds("exam")
        self.assertEqual({k[0] for k in nouns} & {k[0] for k in exam_nouns}, set())
        said = lambda kinds: {t for k in kinds for t in (*k[2], *k[3])}
        self.assertEqual(said(verbs) & said(exam_verbs), set())

    def test_wordings_put_together_are_none_of_the_exam(self):
        r = random.Random(2)
        self.assertEqual({facts.made_state(r) for _ in range(20000)} & set(facts.STATE["exam"]), set())
        self.assertEqual({facts.made_ask(r) for _ in range(20000)} & set(facts.ASK["exam"]), set())

    def test_the_exam_has_a_frame_and_a_tool_of_its_own(self):
        self.assertNotIn(reading_exam.FRAME, evidence.PASSAGES + evidence.PLAIN)
        self.assertNotIn(reading_exam.TOOL["function"]["name"], evidence.TOOLS)
        self.assertNotIn("That is {v}.", evidence.SAID + evidence.SAYS)


class Documents(unittest.TestCase):
    def test_same_seed_same_documents(self):
        for stage in ("pairs", "notes", "evidence"):
            a, b = (evidence.stage(random.Random(3), stage, 40) for _ in range(2))
            self.assertEqual(a, b)

    def test_replies_copy_what_is_shown_or_say_that_nothing_answers(self):
        rng, refused, n = random.Random(4), 0, 0
        for form in set(evidence.FORMS) - {"examples"}:
            for _ in range(80):
                for before, reply in replies(evidence.document(rng, (1, 2, 6), (form,))):
                    if reply in evidence.NOTED:
                        continue
                    n += 1
                    if reply == evidence.NOTHING[form]:
                        refused += 1
                        continue
                    value = re.sub(r" \[\d+\]", "", reply)
                    value = re.fullmatch(r"(?:It is |The answer is )?(.*?)\.?", value)[1]
                    self.assertIn(value.lower(), before.lower())
        self.assertGreater(n, 600)
        self.assertTrue(0.15 < refused / n < 0.3, refused / n)

    def test_after_examples_the_reply_is_one_of_theirs(self):
        rng, refused = random.Random(5), 0
        for _ in range(200):
            said = [reply for _, reply in replies(evidence.document(rng, (2, 6), ("examples",)))]
            refused += said[-1] == evidence.NOTHING["examples"]
            self.assertIn(said[-1], [evidence.NOTHING["examples"], *said[:-1]])
        self.assertTrue(10 < refused < 70, refused)

    def test_a_cited_number_is_that_of_the_passage(self):
        seen = 0
        for text in evidence.stage(random.Random(6), "evidence", 400):
            for before, reply in replies(text):
                m = re.fullmatch(r"(?:It is |The answer is )?(.*?) \[(\d+)\]\.?", reply)
                if m:
                    line = re.search(rf"^(?:.*:)? ?\[{m[2]}\] (.*)$", before, re.M)
                    self.assertIn(m[1].lower(), line[1].lower())
                    seen += 1
        self.assertGreater(seen, 50)

    def test_no_two_facts_of_a_board_are_taken_for_each_other(self):
        for seed in range(60):
            told, absent = facts.board(random.Random(seed), facts.SPLITS[seed % 2], 12)
            both = told + absent
            self.assertEqual(len({(f.e.lower(), f.kind) for f in both}), len(both))
            for f in both:
                self.assertFalse([g for g in both if g is not f and f.v.lower() in g.v.lower()])

    def test_an_aside_leaves_task_and_answer_as_they_are(self):
        item = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "What is 2 + 2?"}], "answer": "4", "think": ""}
        for seed in range(10):
            got = evidence.aside(random.Random(seed), item)
            self.assertEqual((got["answer"], got["messages"][0]), ("4", item["messages"][0]))
            self.assertTrue(got["messages"][-1]["content"].endswith("What is 2 + 2?"))
            self.assertGreater(len(json.dumps(got["messages"])), len(json.dumps(item["messages"])) + 30)

    def test_notes_are_led_as_the_daemon_leads_them(self):
        with open(os.path.join(HERE, "../../../src/lessons/note.rs"), encoding="utf-8") as f:
            self.assertIn(f'const LEAD: &str = "{evidence.LEAD}";', f.read())


class Exam(unittest.TestCase):
    def test_the_value_is_shown_once_and_not_asked_for_by_name(self):
        for form in reading_exam.FORMS:
            for size in (1, 6, 20):
                items = list(reading_exam.items(form, size, 20, 7))
                self.assertEqual(items, list(reading_exam.items(form, size, 20, 7)))
                for it in items:
                    shown = json.dumps(it["messages"], ensure_ascii=False)
                    self.assertTrue(reading_exam.has(shown, it["want"]))
                    self.assertEqual(len(it["others"]), size - 1)
                    self.assertEqual(reading_exam.grade(it, f"It is {it['want']}."), "right")
                    for other in it["others"]:
                        self.assertEqual(reading_exam.grade(it, f"It is {other}."), "wrong")
                        self.assertEqual(reading_exam.grade(it, f"{it['want']} or {other}"), "wrong")
                for it in reading_exam.items(form, size, 20, 7, answered=False):
                    self.assertIsNone(it["want"])
                    self.assertEqual(len(it["others"]), size)

    def test_grades(self):
        it = {"want": "12", "others": ["3", "KX-4"]}
        for answer, grade in (("It is 12 [3].", "right"), ("It is 3 [12].", "wrong"), ("It is 123.", "wrong"), ("The notes do not say.", "refused"), ("", "wrong"),
                              ("I don't know, perhaps kx-4.", "wrong")):
            self.assertEqual(reading_exam.grade(it, answer), grade, answer)
        self.assertEqual(reading_exam.grade({**it, "want": None}, "It is 12."), "wrong")


class Tune(unittest.TestCase):
    def test_the_plan_replays_half_of_its_tokens(self):
        with open(os.path.join(HERE, "../../train/plans/reading.json"), encoding="utf-8") as f:
            plan = check_plan(json.load(f))
        plan["phases"][1]["mix"]["evidence"] += 20
        with self.assertRaisesRegex(ValueError, "phase 1 replays 4"):
            check_plan(plan)

    def test_prompts_of_a_stage_count_nothing_and_its_replies_more(self):
        cases = {(-1, 0): 0.15, (-1, 1): 0, (0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 4}
        for (base, marked), want in cases.items():
            self.assertEqual(weights(base, marked, 0.15, 4), want)


if __name__ == "__main__":
    unittest.main()
