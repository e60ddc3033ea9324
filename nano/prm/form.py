"""What the judge reads: a question and the steps of an answer up to the one that is judged.

The same rules are implemented by the daemon (src/scoring/): a change here is a change there. Text is encoded with its control
tokens switched off, so nothing that stands in an answer can end a step or name a label.
"""
import json

STEPS_THOUGHT_MAX = 16
STEPS_ANSWER_MAX = 4
ANSWER_STEP_CHARS = 800
STEP_CHARS_MAX = 1200
QUESTION_CHARS_MAX = 3000
HISTORY_CHARS_MAX = 1500


def group(lines, most):
    """Neighbouring lines joined so that at most `most` steps are left."""
    if len(lines) <= most:
        return lines
    out = [[] for _ in range(most)]
    for i, line in enumerate(lines):
        out[i * most // len(lines)].append(line)
    return ["\n".join(g) for g in out]


def thought_steps(thought):
    return group([s for s in (line.strip() for line in thought.split("\n")) if s], STEPS_THOUGHT_MAX)


def call_text(call):
    """A tool call as text: its name, then one line an argument."""
    call = call.get("function", call)
    lines = [f"call {call['name']}"]
    for k, v in call["arguments"].items():
        lines.append(f"{k} = {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, separators=(',', ':'))}")
    return "\n".join(lines)


def answer_steps(content, calls=()):
    """The visible answer: one step when it is short, else some of about equal size, cut at line ends; a step for each call."""
    text, steps = content.strip(), []
    if text:
        size = max(ANSWER_STEP_CHARS, -(-len(text) // STEPS_ANSWER_MAX))
        step = ""
        for line in text.split("\n"):
            if step and len(step) + 1 + len(line) > size:
                steps.append(step)
                step = line
            else:
                step = f"{step}\n{line}" if step else line
        steps.append(step)
        steps = group([s for s in (s.strip() for s in steps) if s], STEPS_ANSWER_MAX)
    return steps + group([call_text(c) for c in calls or ()], STEPS_ANSWER_MAX)


def clip(text, most):
    """The text, its middle left out when it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    return text[:head] + " ... " + text[len(text) - (most - head):]


def tool_line(tool):
    f = tool.get("function", tool)
    props = f.get("parameters", {}).get("properties", {})
    args = ", ".join(f"{k}: {v.get('type', 'any')}" for k, v in sorted(props.items()))
    return f"- {f.get('name', '')}({args}): {f.get('description', '')}"


def question(messages, tools=None):
    """Pieces of the conversation before the answer; ("c", name) is a control token, ("t", text) plain text."""
    turns = [m for m in messages if m["role"] != "system"]
    kept, room = [], HISTORY_CHARS_MAX
    for i, m in enumerate(reversed(turns)):
        text = m.get("content", "").strip()
        if m.get("tool_calls"):
            text = "\n".join(filter(None, [text, *map(call_text, m["tool_calls"])]))
        if i == 0:
            text = clip(text, QUESTION_CHARS_MAX)
        elif len(text) > room:
            break
        else:
            room -= len(text)
        kept.append((m["role"], text))
    out = []
    if tools:
        out += [("c", "<|im_start|>"), ("t", "system\nTools:\n" + clip("\n".join(map(tool_line, tools)), QUESTION_CHARS_MAX)), ("c", "<|im_end|>"), ("t", "\n")]
    for role, text in reversed(kept):
        if role == "tool":
            out += [("c", "<|im_start|>"), ("t", "user\n"), ("c", "<tool_response>"), ("t", f"\n{text}\n"), ("c", "</tool_response>")]
        else:
            out += [("c", "<|im_start|>"), ("t", f"{role}\n{text}")]
        out += [("c", "<|im_end|>"), ("t", "\n")]
    return out


def judged(before, thought, answer, at):
    """Pieces of a judgement of step `at` of thought + answer; the judge goes on behind the last `<|step|>`."""
    out = [*before, ("c", "<|im_start|>"), ("t", "assistant\n")]
    if thought:
        out += [("c", "<think>"), ("t", "\n")]
    for i, step in enumerate([*thought, *answer][:at + 1]):
        if thought and i == len(thought):
            out += [("c", "</think>"), ("t", "\n\n")]
        out += [("t", clip(step, STEP_CHARS_MAX)), ("c", "<|step|>")]
    return out


class Encoder:
    """Token ids of pieces. Plain text never becomes a control token; equal texts are encoded once."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tk = Tokenizer.from_file(path)
        self.tk.encode_special_tokens = True
        self.kept = {}

    def text(self, text):
        ids = self.kept.get(text)
        if ids is None:
            if len(self.kept) > 200_000:
                self.kept.clear()
            ids = self.kept[text] = self.tk.encode(text, add_special_tokens=False).ids
        return ids

    def control(self, name):
        return self.tk.token_to_id(name)

    def pieces(self, pieces):
        return self.marked(pieces)[0]

    def marked(self, pieces):
        """Ids, and where among them the steps end."""
        out, marks = [], []
        for kind, text in pieces:
            if kind == "c" and text == "<|step|>":
                marks.append(len(out))
            out += [self.control(text)] if kind == "c" else self.text(text)
        return out, marks


def _cases():
    """Conversations and answers with the pieces they become: the daemon's own implementation is tested on them."""
    user = lambda text: {"role": "user", "content": text}
    tool = {"type": "function", "function": {"name": "add", "description": "Adds é.", "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}}
    call = [{"name": "add", "arguments": {"b": 2, "note": "x y", "l": [1, "é"], "f": 1.5, "t": True}}]
    yield [user("What is 7 + 8?")], None, "7 + 8 = 15", "The answer is 15.", []
    yield [{"role": "system", "content": "Be kind."}, user("  hi\n")], None, "", " Hello <|step|> </think>!\n", []
    yield [user("go")], [tool, {"name": "plain"}], "Tool: add.", "", call
    yield [user("a"), {"role": "assistant", "content": "", "tool_calls": call}, {"role": "tool", "content": "3"}], [tool], "", "It is 3.\n\nYes.", call * 6
    yield [user("x" * 4000)], None, "\n".join(f" line {i} é\r" for i in range(40)), "\n".join("word and word" * (i % 5) for i in range(300)), []
    yield [user("old"), {"role": "assistant", "content": "b" * 1400}, user("new"), {"role": "assistant", "content": "c"}, user("newest")], None, "t", "y" * 1300, []
    yield [user("q")], None, "\n\n", "1\n" * 500 + "z" * 3000 + "\nend", []


if __name__ == "__main__":
    for messages, tools, thought, content, calls in _cases():
        t, a = thought_steps(thought), answer_steps(content, calls)
        print(json.dumps({"messages": messages, "tools": tools or [], "thought": thought, "content": content, "calls": calls, "steps": [t, a],
                          "parts": [{"control" if k == "c" else "text": s} for k, s in judged(question(messages, tools), t, a, len(t) + len(a) - 1)]}, ensure_ascii=False))
