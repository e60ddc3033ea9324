"""Chat form of every training conversation: what `chat_template.jinja` renders, written directly because it is 100 times faster.

The exam prompts, the training text and the daemon's prompts must agree byte for byte, so there is one renderer and a test
(`python3 -m train.chat`) that compares it with the template through jinja2.

`SPLIT` marks places where the tokenizer must not merge across: a prompt ends in "<think>\n", so a reply without a thought that
follows it starts with a separate "\n" token; without the mark the model would only ever have seen the merged "\n\n".
"""
import json
import re

SPLIT = "\x01"
NO_THOUGHT = "<think>\n\n</think>\n\n"
NO_THOUGHT_SPLIT = "<think>\n" + SPLIT + "\n</think>\n\n"
_TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
_TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\n"
    "This is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
    "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You may provide optional reasoning "
    "for your function call in natural language BEFORE the function call, but NOT after\n- If there is no function call available, "
    "answer the question like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>")


def tool_calls_text(calls, after_content=False):
    """The XML form of tool calls; values that are lists or objects are JSON, all others plain text."""
    out = []
    for i, call in enumerate(calls):
        call = call.get("function", call)
        lead = ("\n\n" if after_content else "") if i == 0 else "\n"
        s = f"{lead}<tool_call>\n<function={call['name']}>\n"
        for k, v in call["arguments"].items():
            v = json.dumps(v, ensure_ascii=False) if isinstance(v, (dict, list, tuple)) else str(v)
            s += f"<parameter={k}>\n{v}\n</parameter>\n"
        out.append(s + "</function>\n</tool_call>")
    return "".join(out)


def _is_query(m):
    c = m["content"].strip()
    return m["role"] == "user" and not (c.startswith("<tool_response>") and c.endswith("</tool_response>"))


def render(messages, tools=None, generation=None):
    """Text of a conversation. `generation`: None, "think" (prompt ends in an open thought) or "direct" (thought closed)."""
    s, first_system = "", messages[0]["role"] == "system"
    system = messages[0]["content"].strip() if first_system else ""
    if tools:
        s += "<|im_start|>system\n" + _TOOLS_HEAD + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools) + _TOOLS_TAIL
        s += ("\n\n" + system if system else "") + "<|im_end|>\n"
    elif first_system:
        s += f"<|im_start|>system\n{system}<|im_end|>\n"
    last_query = max((i for i, m in enumerate(messages) if _is_query(m)), default=-1)
    if last_query < 0:
        raise ValueError("a conversation needs at least one user message")
    for i, m in enumerate(messages):
        role, content = m["role"], m["content"].strip()
        if role == "system":
            continue
        if role == "user":
            s += f"<|im_start|>user\n{content}<|im_end|>\n"
        elif role == "assistant":
            s += "<|im_start|>assistant\n"
            if i > last_query:
                s += f"<think>\n{m.get('reasoning_content', '').strip()}\n</think>\n\n"
            s += content + tool_calls_text(m.get("tool_calls") or [], bool(content)) + "<|im_end|>\n"
        elif role == "tool":
            s += "" if i and messages[i - 1]["role"] == "tool" else "<|im_start|>user"
            s += f"\n<tool_response>\n{content}\n</tool_response>"
            s += "" if i + 1 < len(messages) and messages[i + 1]["role"] == "tool" else "<|im_end|>\n"
    if generation:
        s += "<|im_start|>assistant\n" + ("<think>\n" if generation == "think" else NO_THOUGHT)
    return s


def item_text(item, mode="think"):
    """Training text of a task item. Modes: "think" (the reference thought, or a thought left empty by choice after an open
    `<think>`) and "direct" (thinking switched off: the thought is dropped)."""
    reply = {"role": "assistant", "content": item.get("answer", ""), "tool_calls": item.get("tool_calls"),
             "reasoning_content": item.get("think", "") if mode == "think" else ""}
    s = render([*item["messages"], reply], item.get("tools"))
    if mode == "think" and not reply["reasoning_content"]:
        head, tail = s.rsplit(NO_THOUGHT, 1)
        s = head + NO_THOUGHT_SPLIT + tail
    return s


def _value(text, kind):
    """An argument as its schema types it; text that does not fit the type stays text."""
    if kind in ("integer", "number", "boolean", "array", "object"):
        try:
            return json.loads({"True": "true", "False": "false"}.get(text, text))
        except ValueError:
            pass
    return text


def parse_reply(text, tools=None):
    """(thought, answer, tool calls) of what the model wrote after "<think>\n" or after a closed thought; None for a broken call."""
    thought, _, rest = text.rpartition("</think>")
    types = {t["function"]["name"]: t["function"].get("parameters", {}).get("properties", {}) for t in tools or []}
    calls = []
    for body in re.findall(r"<tool_call>(.*?)(?:</tool_call>|$)", rest, re.S):
        m = re.fullmatch(r"\s*<function=([^>\n]+)>\s*(.*?)\s*</function>\s*", body, re.S)
        if not m:
            return thought.strip(), rest.strip(), None
        args = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", m[2], re.S)
        known = types.get(m[1], {})
        calls.append({"name": m[1], "arguments": {k: _value(v, known.get(k, {}).get("type")) for k, v in args}})
    return thought.strip(), re.sub(r"<tool_call>.*", "", rest, flags=re.S).strip(), calls


def clean(text):
    """Break control-token spellings inside foreign text so that they stay text."""
    text = text.replace("\0", "").replace(SPLIT, "").replace("<|", "< |")
    for t in ("think", "tool_call", "tool_response"):
        text = text.replace(f"<{t}>", f"< {t}>").replace(f"</{t}>", f"< /{t}>")
    return text


def _self_test():
    import os
    import jinja2
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, **k: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = lambda m: (_ for _ in ()).throw(ValueError(m))
    tpl = env.from_string(open(os.path.join(os.path.dirname(__file__), "chat_template.jinja"), encoding="utf-8").read())
    tool = {"type": "function", "function": {"name": "add", "description": "Add é", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}
    call = [{"name": "add", "arguments": {"a": 1.5, "s": "x y", "l": ["é", 2], "b": True}}, {"name": "add", "arguments": {}}]
    u, a = (lambda c: {"role": "user", "content": c}), (lambda c, **k: {"role": "assistant", "content": c, **k})
    cases = [
        ([u("hi")], None), ([{"role": "system", "content": " be kind "}, u("hi "), a("yo", reasoning_content="t")], None),
        ([u("a"), a("b", reasoning_content="dropped"), u("c"), a("d")], None),
        ([{"role": "system", "content": "S"}, u("a"), a("", tool_calls=call, reasoning_content="why"), {"role": "tool", "content": "3"},
          {"role": "tool", "content": "4"}, a("It is 3.")], [tool]),
        ([u("a"), a("text", tool_calls=call[:1]), {"role": "tool", "content": "3"}], [tool, tool]),
    ]
    for messages, tools in cases:
        for gen in (None, "think", "direct"):
            kw = {} if gen is None else {"add_generation_prompt": True, "enable_thinking": gen == "think"}
            want = tpl.render(messages=messages, tools=tools, **kw)
            got = render(messages, tools, gen)
            assert got == want, f"renderer and template differ:\n{got!r}\n{want!r}"
    print("chat form: renderer equals the template on", 3 * len(cases), "cases")


if __name__ == "__main__":
    _self_test()
