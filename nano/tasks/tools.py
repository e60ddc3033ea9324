"""Tool-call dialogues: one call, choosing among tools, no tool, a missing argument, answers from results, two steps."""

import json

from .apis import APIS, ENUM, TYPE, slot
from .core import SPLITS, Pool, family
from .names import CITIES, PEOPLE, SURNAMES
from .steps import add


def _name(c, api):
    names = api[0]
    return c.choice(names[:1] + names[:max(1, len(names) - 3)]) if c.train else names[-3 + SPLITS[1:].index(c.split)]


def _schema(name, api):
    props = {}
    for p, kind, meaning in api[2]:
        props[p] = {"type": TYPE.get(kind, "string"), "description": meaning}
        if kind in ENUM:
            props[p]["enum"] = ENUM[kind]
        if kind == "things":
            props[p]["items"] = {"type": "string"}
    return {"type": "function", "function": {"name": name, "description": api[1],
                                             "parameters": {"type": "object", "properties": props, "required": [p for p, _, _ in api[2]]}}}


def _values(c, api):
    """Arguments and their wording; two of one kind differ."""
    args, said = {}, {}
    for p, kind, _ in api[2]:
        for _ in range(20):
            v, w = slot(c, kind)
            if v not in args.values() or isinstance(v, (int, float)):
                break
        args[p], said[p] = v, w
    return args, said


def _request(c, i):
    """(template id, text, arguments) of a request for API i."""
    api = APIS[i]
    args, said = _values(c, api)
    if c.train:
        k = c.int(0, len(api[3]) - 1)
        t, text = f"{api[0][0]}.t{k}", api[3][k]
    else:
        k = SPLITS[1:].index(c.split)
        t, text = f"{api[0][0]}.h{k}", api[4][k]
    for p in said:
        text = text.replace("{" + p + "}", str(said[p]))
    return t, text, args


POLITE = {"train": ["", "", "", "", "Hi! ", "Hello, ", "Please help. ", "Quick one: "], "slice": ["", "Hey there. "], "golden": ["", "Good day. "], "week": ["", "One request: "]}


def _call(c, t, text, tools, name, args, level):
    think = f"Tool: {name}. " + ", ".join(f"{p} = {json.dumps(v, ensure_ascii=False)}" for p, v in args.items()) + "."
    return c.item(t, c.choice(POLITE[c.split]) + text, think, "", {"kind": "tool", "name": name, "arguments": args}, level,
                  tools=tools, tool_calls=[{"name": name, "arguments": args}])


def _offer(c, i, extra):
    """(schemas in random order, name of the right one): API i among `extra` others."""
    name = _name(c, APIS[i])
    out, names = [_schema(name, APIS[i])], {name}
    for j in c.sample([j for j in range(len(APIS)) if j != i], extra):
        n = _name(c, APIS[j])
        if n not in names:
            names.add(n)
            out.append(_schema(n, APIS[j]))
    c.shuffle(out)
    return out, name


@family("tools", "tool_single", 3)
def tool_single(c):
    i = c.int(0, len(APIS) - 1)
    t, text, args = _request(c, i)
    tools, name = _offer(c, i, 0)
    return _call(c, "single." + t, text, tools, name, args, "easy")


@family("tools", "tool_select", 4)
def tool_select(c):
    i = c.int(0, len(APIS) - 1)
    t, text, args = _request(c, i)
    extra = c.int(1, 4)
    tools, name = _offer(c, i, extra)
    return _call(c, "select." + t, text, tools, name, args, "medium" if extra > 1 else "easy")


SIMILAR = [("get_weather", "get_forecast"), ("set_alarm", "set_timer"), ("get_order", "cancel_order", "track_package"), ("find_contact", "call_contact", "send_message"),
           ("create_event", "add_reminder", "book_appointment"), ("get_route", "get_distance", "search_flights"), ("book_hotel", "book_table", "book_appointment"),
           ("set_light", "set_temperature"), ("convert_currency", "convert_temperature", "calculate"), ("ping_host", "scan_port", "block_ip"),
           ("get_time", "get_weather", "get_population"), ("send_email", "send_message"), ("add_to_cart", "make_list", "order_food"), ("search_books", "get_news")]
_INDEX = {api[0][0]: i for i, api in enumerate(APIS)}


@family("tools", "tool_similar", 2)
def tool_similar(c):
    """Tools of close meaning: only the meaning of the request tells them apart."""
    group = [_INDEX[n] for n in c.choice(SIMILAR)]
    i = c.choice(group)
    t, text, args = _request(c, i)
    names = {j: _name(c, APIS[j]) for j in group}
    tools = [_schema(names[j], APIS[j]) for j in group]
    c.shuffle(tools)
    return _call(c, "similar." + t, text, tools, names[i], args, "hard")


NOT_NEEDED = Pool("no_tool", ["What is {a} + {b}?", "Please add {a} and {b}.", "How much is {a} plus {b}?", "Quick sum without tools: {a} + {b}."],
                  ["Tell me {a} + {b}.", "Find {a} plus {b}.", "I want the sum of {a} and {b}."])
THANKS = Pool("no_tool_thanks", ["Thank you, that was all.", "Thanks a lot!", "Thanks, bye.", "Great, thank you.", "That is all, thanks."],
              ["Thanks for the help, no more calls today.", "Many thanks, I am done.", "Thank you very much indeed."])
HELLO = Pool("no_tool_hello", ["Hello!", "Hi.", "Hello, how are you?", "Hi there!", "Good morning!"], ["Hey, good to see you.", "A very good day to you.", "Hello again."])


@family("tools", "tool_none", 2)
def tool_none(c):
    i = c.int(0, len(APIS) - 2)
    if APIS[i][0][0] == "calculate":
        i = 0
    tools = [_schema(_name(c, APIS[j]), APIS[j]) for j in {i, (i + c.int(1, 9)) % len(APIS)} if APIS[j][0][0] != "calculate"]
    kind = c.int(0, 3)
    if kind <= 1:
        def make():
            a, b = c.int(10, 99), c.int(2, 60)
            return f"+{min(a, b)},{max(a, b)}", (a, b)
        a, b = c.draw(make)
        v, s = add(a, b)
        t, ask = c.phr(NOT_NEEDED)
        return c.item(t, ask.format(a=a, b=b), f"No tool is needed.\n{s}", f"The answer is {v}.", {"kind": "number", "value": str(v)}, "medium", tools=tools)
    t, ask = c.phr(THANKS if kind == 2 else HELLO)
    answer = "You are welcome!" if kind == 2 else "Hello! How can I help you?"
    return c.item(t, ask, "No tool is needed.", answer, {"kind": "contains", "any": ["welcome", "glad", "pleasure"] if kind == 2 else ["hello", "hi", "help"]}, "easy", tools=tools)


MISSING = {
    "get_weather": (["What is the weather?", "How is the weather?", "Weather please.", "Tell me the weather."], ["What's it like outside?", "Check the weather outside for me.", "Do I need a coat?"], "city", "Which city?"),
    "set_alarm": (["Set an alarm.", "Wake me up tomorrow.", "I need an alarm.", "Alarm, please."], ["Make the alarm ring.", "Get me out of bed tomorrow.", "Put an alarm on."], "time", "For what time?"),
    "track_package": (["Where is my parcel?", "Track my package.", "Has my parcel arrived?"], ["Find my parcel.", "Look up my shipment.", "My parcel is late, where is it?"], "code", "What is the parcel code?"),
    "get_order": (["What is the status of my order?", "Look up my order.", "Where is my order?"], ["Check on my order.", "How is my order going?", "Give me details of my order."], "order number", "What is the order number?"),
    "call_contact": (["Make a call.", "Call someone for me.", "I want to phone somebody."], ["Start a phone call.", "Dial for me.", "Ring someone up."], "name", "What is the name of the person?"),
    "get_stock_price": (["What is the stock price?", "Get me a quote.", "How is the stock trading?"], ["What does the share cost?", "Look up the share price.", "Show the stock quote."], "symbol", "Which stock symbol?"),
    "set_timer": (["Set a timer.", "Start a timer.", "I need a timer."], ["Begin a countdown.", "Run a timer.", "Put a timer on."], "minutes", "For how many minutes?"),
}


@family("tools", "tool_missing", 1.5)
def tool_missing(c):
    key = c.choice(sorted(MISSING))
    train, held, word, ask_back = MISSING[key]
    i = _INDEX[key]
    tools, name = _offer(c, i, c.int(0, 3))
    k = c.int(0, len(train) - 1) if c.train else SPLITS[1:].index(c.split)
    text = train[k] if c.train else held[k]
    return c.item(f"missing.{key}.{'t' if c.train else 'h'}{k}", c.choice(POLITE[c.split]) + text, f"Tool: {name}. The {word} is missing, so I ask.", ask_back,
                  {"kind": "contains", "any": [word]}, "medium", tools=tools)


# API -> (result maker, question about the result is the request itself, answer maker, check maker)
def _results(c, api, args):
    """(result object, answer, check) for an API whose result can be said in one sentence."""
    n = c.draw(lambda: (lambda x: (f"res{x}", x))(c.int(13, 9999)))
    if api == "get_weather":
        s, d = c.choice(("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")), n % 45 - 8
        return {"condition": s, "temperature": d}, f"It is {s} in {args['city']}, {d} degrees.", {"kind": "contains", "any": [f"{s} in {args['city']}, {d} degrees"]}
    if api == "get_time":
        v = slot(c, "time")[0]
        return {"city": args["city"], "time": v}, f"It is {v} in {args['city']}.", {"kind": "contains", "any": [v]}
    if api == "get_stock_price":
        v = f"{n / 100:.2f}"
        return {"symbol": args["symbol"], "price": float(v), "currency": "USD"}, f"{args['symbol']} stands at {float(v):g} USD.", {"kind": "contains", "any": [f"{float(v):g}"]}
    if api == "track_package":
        s, city = c.choice(("in transit", "delivered", "delayed", "at customs")), c.of(CITIES)
        return {"code": args["code"], "status": s, "location": city}, f"Your parcel is {s} in {city}.", {"kind": "contains", "any": [f"{s} in {city}"]}
    if api == "get_distance":
        return {"km": n}, f"The distance is {n} km.", {"kind": "contains", "any": [f"{n} km"]}
    if api == "get_population":
        return {"city": args["city"], "population": n * 1000 + n % 7}, f"{args['city']} has {n * 1000 + n % 7} inhabitants.", {"kind": "number", "value": str(n * 1000 + n % 7)}
    if api == "find_contact":
        phone = f"555-{n:04d}"
        return {"name": args["name"], "phone": phone}, f"The number of {args['name']} is {phone}.", {"kind": "contains", "any": [phone]}
    if api == "get_heart_rate":
        return {"patient": args["patient"], "bpm": 45 + n % 100}, f"The heart rate is {45 + n % 100} bpm.", {"kind": "contains", "any": [f"{45 + n % 100} bpm"]}
    if api == "convert_currency":
        v = f"{n / 100:.2f}"
        return {"result": float(v), "currency": args["to"]}, f"That is {float(v):g} {args['to']}.", {"kind": "contains", "any": [f"{float(v):g} {args['to']}"]}
    if api == "get_order":
        s = c.choice(("shipped", "paid", "open", "cancelled", "packed"))
        return {"order_id": args["order_id"], "status": s, "total": n / 100}, f"Order {args['order_id']} is {s}.", {"kind": "contains", "any": [s]}
    if api == "scan_port":
        s = c.choice(("open", "closed"))
        return {"ip": args["ip"], "port": args["port"], "state": s}, f"Port {args['port']} is {s}.", {"kind": "contains", "any": [s], "none": ["open" if s == "closed" else "closed"]}
    raise ValueError(api)


ANSWERABLE = ["get_weather", "get_time", "get_stock_price", "track_package", "get_distance", "get_population", "find_contact", "get_heart_rate", "convert_currency", "get_order", "scan_port"]


def _after_call(c, text, name, args, result):
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": args}]},
            {"role": "tool", "content": json.dumps(result, ensure_ascii=False)}]


@family("tools", "tool_result", 3)
def tool_result(c):
    key = c.choice(ANSWERABLE)
    i = _INDEX[key]
    t, text, args = _request(c, i)
    tools, name = _offer(c, i, c.int(0, 2))
    result, answer, check = _results(c, key, args)
    return c.item("result." + t, _after_call(c, text, name, args, result), "The result says " + ", ".join(f"{k} {v}" for k, v in result.items()) + ".",
                  answer, check, "easy", tools=tools)


@family("tools", "tool_error", 1)
def tool_error(c):
    key = c.choice(ANSWERABLE)
    i = _INDEX[key]
    t, text, args = _request(c, i)
    tools, name = _offer(c, i, c.int(0, 2))
    why = c.choice(("not found", "service unavailable", "timeout", "permission denied", "rate limit reached"))
    return c.item("error." + t, _after_call(c, text, name, args, {"error": why}), f"The tool failed: {why}.", f"Sorry, that did not work: {why}.",
                  {"kind": "contains", "any": [why]}, "easy", tools=tools)


CHAIN = Pool("tool_chain", ["Find the number of {n} and send a message to it saying {m}.", "Look up {n} in my contacts, then text that number: {m}.", "Send {m} to the phone of {n}; look the number up first."],
             ["Get the phone number for {n} and text {m} to it.", "I want {m} sent to {n}; you will need the number first.", "First look up {n}, then message the number with {m}."])
MAILS = Pool("tool_chain_mail", ["Find the email of {n} and mail the subject {m}.", "Look up the address of {n}, then send an email titled {m}.", "Email {n} about {m}; find the address first."],
             ["Get the mail address for {n} and write about {m}.", "{n} should get an email on {m}; look up the address.", "First find where to mail {n}, then send {m}."])


@family("tools", "tool_chain", 1.5)
def tool_chain(c):
    """The second of two calls: an argument comes from the first result."""
    n, m = f"{c.of(PEOPLE)} {c.of(SURNAMES)}", f"{slot(c, 'topic')[0]}"
    find = c.choice(("find_contact", "lookup_contact", "contacts_search"))
    s1 = {"type": "function", "function": {"name": find, "description": "Find phone number and email of a person.",
                                           "parameters": {"type": "object", "properties": {"name": {"type": "string", "description": "Name of the person"}}, "required": ["name"]}}}
    mail = c.chance(0.5)
    if mail:
        second, t, ask = c.choice(("send_email", "email_to")), *c.phr(MAILS)
        props = {"to": {"type": "string", "description": "Email address"}, "subject": {"type": "string", "description": "Subject line"}}
    else:
        second, t, ask = c.choice(("send_sms", "text_number")), *c.phr(CHAIN)
        props = {"number": {"type": "string", "description": "Phone number"}, "text": {"type": "string", "description": "The message"}}
    s2 = {"type": "function", "function": {"name": second, "description": "Send an email." if mail else "Send a text message to a number.",
                                           "parameters": {"type": "object", "properties": props, "required": list(props)}}}
    phone = f"555-{c.draw(lambda: (lambda x: (f'res{x}', x))(c.int(13, 9999))):04d}"
    address = f"{n.lower().replace(' ', '.')}@example.{c.choice(('com', 'org'))}"
    args = {"to": address, "subject": m} if mail else {"number": phone, "text": m}
    tools = [s1, s2]
    c.shuffle(tools)
    text = ask.format(n=n, m=m)
    if c.chance(0.35):
        return _call(c, t + ".first", text, tools, find, {"name": n}, "medium")
    msgs = _after_call(c, text, find, {"name": n}, {"name": n, "phone": phone, "email": address})
    think = f"Tool: {second}. " + ", ".join(f"{p} = {json.dumps(v, ensure_ascii=False)}" for p, v in args.items()) + "."
    return c.item(t, msgs, think, "", {"kind": "tool", "name": second, "arguments": args}, "hard", tools=tools, tool_calls=[{"name": second, "arguments": args}])
