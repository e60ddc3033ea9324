"""Tool-call items over made-up tools, for training only: the right tool can be found by reading alone.

Why: the task generators know 41 tools. A small model learns their requests by heart and then guesses the name, which it has to read.
Here names, things and parameters are drawn from lists large enough that only the description in the prompt tells the tools apart,
and two tools of one prompt often share the verb or the thing.
"""
import json

# (verbs of names, description, how people ask; {x} the thing, {v} the value of the parameter)
ACTIONS = [
    (["create", "add", "new"], "Create a new {x}.", ["Create a {x} called {v}.", "I need a new {x}, {v}.", "Make a {x} with the name {v}."]),
    (["delete", "remove", "erase"], "Delete a {x}.", ["Delete the {x} {v}.", "Get rid of the {x} {v}.", "The {x} {v} can go, remove it.", "Throw away {x} {v}."]),
    (["find", "search", "locate"], "Find where a {x} is.", ["Where is the {x} {v}?", "I cannot find the {x} {v}.", "Look for the {x} {v}."]),
    (["rename", "relabel", "set_name"], "Change the name of a {x}.", ["Give the {x} the name {v}.", "The {x} shall be called {v} from now on.", "Rename the {x} to {v}."]),
    (["share", "pass_on", "forward"], "Share a {x} with the team.", ["Let the team see the {x} {v}.", "Share the {x} {v} with the others.", "Pass the {x} {v} on to everybody."]),
    (["lock", "protect", "secure"], "Lock a {x} so that nobody changes it.", ["Nobody may change the {x} {v}, lock it.", "Protect the {x} {v}.", "Lock {x} {v}."]),
    (["unlock", "release", "free"], "Unlock a {x}.", ["Open the lock of the {x} {v}.", "The {x} {v} may be changed again.", "Unlock {x} {v}."]),
    (["start", "launch", "run"], "Start a {x}.", ["Let the {x} {v} run.", "Switch the {x} {v} on.", "Start {x} {v}, please."]),
    (["stop", "halt", "end"], "Stop a {x}.", ["Halt the {x} {v}.", "The {x} {v} must not go on.", "Bring {x} {v} to a stop."]),
    (["count", "total", "number_of"], "Count every {x} of a place.", ["How many of the kind {x} are in {v}?", "Count each {x} in {v}.", "Number of {x} items in {v}?"]),
    (["price", "cost", "quote"], "Get the price of a {x}.", ["What do I pay for the {x} {v}?", "How expensive is the {x} {v}?", "Cost of {x} {v}?"]),
    (["repair", "fix", "mend"], "Ask for the repair of a {x}.", ["The {x} {v} is broken.", "Have the {x} {v} repaired.", "Something is wrong with {x} {v}, get it mended."]),
    (["rent", "hire", "borrow"], "Rent a {x}.", ["I want to borrow the {x} {v}.", "Hire the {x} {v} for me.", "Can I have the {x} {v} for some days?"]),
    (["return", "give_back", "bring_back"], "Return a rented {x}.", ["I bring the {x} {v} back.", "Take back the {x} {v}.", "Hand in {x} {v}."]),
    (["print", "to_paper", "printout"], "Print a {x} on paper.", ["I want the {x} {v} on paper.", "Print the {x} {v}.", "Put {x} {v} through the printer."]),
    (["archive", "store", "keep"], "Put a {x} into the archive.", ["Keep the {x} {v} for later.", "Move the {x} {v} into the archive.", "Store {x} {v} away."]),
    (["rate", "review", "score"], "Rate a {x}.", ["I liked the {x} {v}, note that.", "Leave a rating for the {x} {v}.", "Score {x} {v}."]),
    (["clean", "wash", "tidy"], "Have a {x} cleaned.", ["The {x} {v} is dirty.", "Wash the {x} {v}.", "See to it that {x} {v} is cleaned."]),
    (["check", "inspect", "test"], "Check the state of a {x}.", ["In what state is the {x} {v}?", "Is the {x} {v} all right?", "Test the {x} {v}."]),
    (["copy", "duplicate", "clone"], "Make a copy of a {x}.", ["I need the {x} {v} twice.", "Duplicate the {x} {v}.", "Make a second {x} like {v}."]),
    (["owner", "who_owns", "holder"], "Get the owner of a {x}.", ["Who owns the {x} {v}?", "To whom does the {x} {v} belong?", "Whose is {x} {v}?"]),
    (["history", "log", "changes"], "List what was changed in a {x}.", ["What has been changed in the {x} {v}?", "Show the past of the {x} {v}.", "Who worked on {x} {v}, and when?"]),
]
THINGS = ("invoice playlist ticket recipe photo folder report badge room machine sensor contract parcel poster bicycle boat garden tent printer server poem course "
          "project lesson letter account backup camera desk field gate house job key lamp menu order page record shelf team user vote wallet yard branch bridge card chart "
          "file film flag form group guide label lock map note panel photo_album pipe plan pump queue robot scene song stage table tank tool train tunnel van video").split()
PARAMETERS = [("name", "Name of the {x}"), ("id", "Number of the {x}"), ("label", "Label on the {x}"), ("code", "Code of the {x}"), ("title", "Title of the {x}"), ("ref", "Reference")]


def value(rng, words):
    k = rng.random()
    if k < 0.3:
        return rng.choice(words)
    if k < 0.55:
        return f"{rng.choice(words)} {rng.choice(words)}"
    if k < 0.75:
        return rng.randint(13, 9999)
    return "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(2)) + str(rng.randint(100, 9999))


def tool(rng, action, thing, words):
    """(schema, parameter name) of one made-up tool."""
    verb, x = rng.choice(action[0]), rng.choice([thing, thing, rng.choice(words)])
    name = rng.choice(["{v}_{x}", "{x}_{v}", "{v}{X}", "{v}_{x}_now", "do_{v}_{x}"]).format(v=verb, x=x, X=x.capitalize())
    p, meaning = rng.choice(PARAMETERS)
    said = thing.replace("_", " ")
    return {"type": "function", "function": {"name": name, "description": action[1].format(x=said), "parameters": {
        "type": "object", "properties": {p: {"type": "string", "description": meaning.format(x=said)}}, "required": [p]}}}, p


def item(rng, words):
    """A request and two to six tools, one of which fits."""
    n = rng.choice((2, 3, 3, 4, 5, 6))
    action, thing = rng.choice(ACTIONS), rng.choice(THINGS)
    pairs = {(action[1], thing): action}
    while len(pairs) < n:
        a = action if rng.random() < 0.35 else rng.choice(ACTIONS)
        pairs.setdefault((a[1], thing if a is not action and rng.random() < 0.45 else rng.choice(THINGS)), a)
    made = [tool(rng, a, x, words) for (_, x), a in pairs.items()]
    schemas, right, p = [t for t, _ in made], made[0][0]["function"]["name"], made[0][1]
    if len({t["function"]["name"] for t in schemas}) < n:
        return item(rng, words)
    v = value(rng, words)
    text = rng.choice(action[2]).format(x=thing.replace("_", " "), v=v)
    rng.shuffle(schemas)
    call = {"name": right, "arguments": {p: str(v)}}
    think = f"Tool: {right}. {p} = {json.dumps(str(v))}."
    return {"family": "toolbox", "messages": [{"role": "user", "content": text}], "tools": schemas, "think": think, "answer": "", "tool_calls": [call]}


def deliberate(item):
    """The thought of a call as a reading of the list: each tool with its description, and whether it is the one.

    A name stands before its description. Naming the tool first would ask for a search backwards, which small models do badly;
    this way every step copies forwards."""
    if len(item["tools"]) < 2 or not item["think"].startswith("Tool: "):
        return item
    right = item["think"].removeprefix("Tool: ").split(". ")[0]
    lines = [f"{t['function']['name']}: {t['function']['description']} {'Yes' if t['function']['name'] == right else 'No'}." for t in item["tools"]]
    return {**item, "think": "\n".join([*lines, item["think"]])}


def reorder(item, rng):
    """The parameters of every tool in a random order, arguments of the calls likewise: clients sort them as they like."""
    tools = json.loads(json.dumps(item["tools"]))
    order = {}
    for t in tools:
        f = t["function"]
        keys = list(f["parameters"].get("properties", {}))
        rng.shuffle(keys)
        f["parameters"]["properties"] = {k: f["parameters"]["properties"][k] for k in keys}
        order[f["name"]] = keys
    calls = [{**c, "arguments": {k: c["arguments"][k] for k in sorted(c["arguments"], key=lambda k: order.get(c["name"], []).index(k) if k in order.get(c["name"], []) else 99)}}
             for c in item.get("tool_calls") or []]
    out = {**item, "tools": tools}
    if calls:
        out["tool_calls"] = calls
        c = calls[0]
        head, mark, _ = item["think"].rpartition(f"Tool: {c['name']}. ")
        if mark:
            out["think"] = head + mark + ", ".join(f"{p} = {json.dumps(v, ensure_ascii=False)}" for p, v in c["arguments"].items()) + "."
    return out
