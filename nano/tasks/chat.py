"""Chat: world facts, word senses, who the model is, greetings, not knowing, and remembering what was said."""

from .core import SPLITS, Pool, family
from .names import ANIMALS, CITIES, COLOURS, FRUIT, INVENTED, PEOPLE, THINGS
from .store import table

CAPITAL = Pool("capital", ["What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital of {x}.", "Capital of {x}?", "{x}: what is its capital?",
                           "Tell me the capital city of {x}.", "Do you know the capital of {x}?", "what's the capital of {x}"],
               ["Which city serves as capital of {x}?", "{x} has which capital?", "I forgot the capital of {x}. What is it?", "Give the capital of {x}.",
                "The capital city of {x} is called what?", "From which city is {x} governed?"])
CAPITAL_OF = Pool("capital_of", ["{y} is the capital of which country?", "Of which country is {y} the capital?", "Which country has {y} as its capital?", "What country's capital is {y}?"],
                  ["Name the country whose capital is {y}.", "In which country would you find {y} as capital?", "{y} is the capital city of what country?"])
CONTINENT = Pool("continent", ["On which continent is {x}?", "Which continent is {x} in?", "Where is {x}: which continent?", "{x} lies on what continent?"],
                 ["Name the continent of {x}.", "To which continent does {x} belong?", "What part of the world, by continent, is {x}?"])
CURRENCY = Pool("currency", ["What is the currency of {x}?", "Which currency is used in {x}?", "What money do people use in {x}?", "Currency of {x}?"],
                ["With what money do you pay in {x}?", "Name the currency of {x}.", "In {x}, which currency is spent?"])
ADJECTIVE = Pool("nationality", ["What do you call someone from {x}?", "What is the nationality adjective for {x}?", "A person from {x} is called what?"],
                 ["Someone who comes from {x} is what?", "Give the adjective for people of {x}.", "Which nationality has a person from {x}?"])
DOMAIN = Pool("tld", ["What is the internet domain of {x}?", "Which country code domain has {x}?", "What top-level domain does {x} use?"],
              ["Web addresses from {x} end with what?", "Name the country domain of {x}.", "Give the top-level domain for {x}."])


def _fact(c, pool, answer, value, level="medium", **fmt):
    t, ask = c.phr(pool)
    return c.item(t, ask.format(**fmt), "", answer, {"kind": "contains", "any": [value]}, level, max_tokens=64)


@family("chat", "capital", 2)
def capital(c):
    x, y, *_ = c.choice(table("countries"))
    return _fact(c, CAPITAL, f"The capital of {x} is {y}.", y, x=x)


@family("chat", "capital_of", 1.2)
def capital_of(c):
    x, y, *_ = c.choice(table("countries"))
    return _fact(c, CAPITAL_OF, f"{y} is the capital of {x}.", x, y=y)


@family("chat", "continent", 1)
def continent(c):
    x, k = c.choice([(r[0], r[2]) for r in table("countries") if r[2]])
    return _fact(c, CONTINENT, f"{x} is in {k}.", k, x=x)


@family("chat", "currency", 1)
def currency(c):
    x, k = c.choice([(r[0], r[3]) for r in table("countries") if r[3]])
    return _fact(c, CURRENCY, f"The currency of {x} is called {k}.", k, x=x)


@family("chat", "nationality", 0.8)
def nationality(c):
    x, k = c.choice([(r[0], r[4]) for r in table("countries") if r[4]])
    return _fact(c, ADJECTIVE, f"Someone from {x} is {k}.", k, x=x)


@family("chat", "country_domain", 0.7)
def country_domain(c):
    x, k = c.choice([(r[0], r[5]) for r in table("countries") if r[5]])
    return _fact(c, DOMAIN, f"{x} uses {k}.", k, x=x)


BIGGER = Pool("country_area", ["Which country is larger by area, {x} or {y}?", "Which has more land: {x} or {y}?", "Is {x} or {y} the bigger country?"],
              ["By area, is {x} or {y} larger?", "Compare the areas of {x} and {y}: which is greater?", "Of {x} and {y}, which covers more ground?"])


@family("chat", "country_area", 0.8)
def country_area(c):
    def make():
        a, b = c.sample([r for r in table("countries") if r[6]], 2)
        ok = max(a[6], b[6]) >= 2 * min(a[6], b[6])
        return ("ca" + "|".join(sorted((a[0], b[0]))), (a, b) if ok else None)
    pair = None
    while not pair:
        pair = c.draw(make)
    a, b = pair
    v = max(pair, key=lambda r: r[6])[0]
    t, ask = c.phr(BIGGER)
    return c.item(t, ask.format(x=a[0], y=b[0]), f"{a[0]} has {a[6]} square km, {b[0]} has {b[6]}.", f"{v} is larger.",
                  {"kind": "contains", "any": [v], "none": [b[0] if v == a[0] else a[0]]}, "hard")


KIND = Pool("word_kind", ["What kind of thing is {w}?", "Is {w} an animal, a plant, a food, a body part, an artifact, a substance or a feeling?", "To which group belongs the word {w}?"],
            ["What is {w}: animal, plant, food, body part, artifact, substance or feeling?", "Say which category the word {w} is in.", "Classify the word {w}."])
CATS = ["animal", "plant", "food", "body part", "artifact", "substance", "feeling"]


@family("chat", "word_kind", 1)
def word_kind(c):
    w, k, _ = c.choice(table("words"))
    t, ask = c.phr(KIND)
    wrong = c.sample([x for x in CATS if x != k], 3)
    return c.choose(t, ask.format(w=w), k, wrong, f"{w}: {k}.", "medium")


MEANING = Pool("word_meaning", ["What does the word {w} mean?", "Which is the meaning of {w}?", "Choose the definition of {w}."],
               ["Pick the right definition for {w}.", "How is {w} defined?", "Which text explains the word {w}?"])
WORD_FOR = Pool("word_for", ["Which word means: {d}?", "What is the word for: {d}?", "Find the word: {d}."],
                ["Name the thing described: {d}.", "Which word fits this definition: {d}?", "The definition is: {d}. Which word is it?"])


@family("chat", "word_meaning", 1)
def word_meaning(c):
    w, _, d = c.choice(table("words"))
    wrong = [r[2] for r in c.sample(table("words"), 4) if r[0] != w][:3]
    t, ask = c.phr(MEANING)
    return c.choose(t, ask.format(w=w), d, wrong, f"{w}: {d}.", "medium")


@family("chat", "word_for", 1)
def word_for(c):
    w, k, d = c.choice(table("words"))
    same = [r[0] for r in table("words") if r[1] == k and r[0] != w]
    t, ask = c.phr(WORD_FOR)
    if len(same) < 3:
        same = [r[0] for r in table("words") if r[0] != w]
    return c.choose(t, ask.format(d=d), w, c.sample(same, 3), f"The word is {w}.", "medium")


WHO = {
    "name": (["Who are you?", "What is your name?", "What are you called?", "Tell me your name.", "Introduce yourself.", "who r u", "What should I call you?", "Are you ChatGPT?", "Are you Claude?", "What model are you?"],
             ["How may I address you?", "Do you have a name of your own?", "Which model am I talking to?", "May I know your name?", "Say who you are.", "What do people call you?"],
             "I am nano, a small language model of the Chimere project.", ["nano"]),
    "maker": (["Who made you?", "Who trained you?", "Where do you come from?", "Which project made you?", "Who built you?", "Who created you?"],
              ["By whom were you made?", "Which team is behind you?", "Whose work are you?"], "I was trained by the Chimere project.", ["chimere"]),
    "human": (["Are you a human?", "Are you a person?", "Am I talking to a human?", "Are you alive?", "Are you a robot?"],
              ["Is there a person typing this?", "Are you a real human being?", "Do I speak with a man or a machine?"], "No, I am not a human. I am nano, a small language model.", ["language model"]),
    "size": (["How big are you?", "How many parameters do you have?", "What is your size?"], ["How large a model are you?", "Count your parameters for me.", "Are you a big model?"],
             "I am small: about 45 million parameters.", ["45 million"]),
    "limits": (["Can I trust you with medical advice?", "Are you a doctor?", "Can you give me medical advice?", "Should I rely on you for security advice?"],
               ["May I follow your medical advice?", "Is your advice on health safe to follow?", "Would you replace my doctor?"],
               "No. I am a small demonstration model; please ask a professional.", ["professional"]),
    "can": (["What can you do?", "How can you help me?", "What are you good at?", "What do you do?"], ["List your skills.", "With what can you help?", "Which things are you able to do?"],
            "I can answer short questions, calculate, call tools and help with code, training, security and research.", ["calculate", "questions"]),
}


@family("chat", "identity", 1.2)
def identity(c):
    k = c.choice(sorted(WHO))
    train, held, answer, any_ = WHO[k]
    pool = list(enumerate(train)) if c.train else [(i, h) for i, h in enumerate(held) if i % 3 == SPLITS[1:].index(c.split)]
    i, text = c.choice(pool)
    lead = "" if c.chance(0.5) else (c.choice(("Hi! ", "Hello. ", "Hey, ")) if c.train else c.choice(("Hi there. ", "Good day. ", "Excuse me. ", "One question: ")))
    return c.item(f"who.{k}.{'t' if c.train else 'h'}{i}", lead + text, "", answer, {"kind": "contains", "any": any_}, "easy", max_tokens=64)


SMALL = [
    (["Hello!", "Hi!", "Hey.", "Hello there.", "Hi there!", "Good morning.", "Good evening!", "hello"], ["Hey there, little model!", "Hello, hello!", "A good day to you!"], "Hello! How can I help you?", ["hello", "help"]),
    (["Thank you!", "Thanks.", "Thanks a lot.", "thx", "Thank you very much.", "That helped, thanks."], ["Many thanks for that answer!", "I thank you.", "Thanks so much, that was useful."], "You are welcome!", ["welcome"]),
    (["Goodbye.", "Bye!", "See you.", "Good night.", "bye bye"], ["Farewell!", "I am off, see you later.", "Until next time!"], "Goodbye!", ["goodbye", "bye"]),
    (["How are you?", "How are you doing?", "How is it going?", "Are you well?"], ["How do you feel today?", "Everything fine with you?", "How are things?"], "I am fine, thank you. How can I help you?", ["fine", "well"]),
]


@family("chat", "greeting", 0.6)
def greeting(c):
    train, held, answer, any_ = c.choice(SMALL)
    if c.train:
        i = c.int(0, len(train) - 1)
        text = train[i]
    else:
        i = SPLITS[1:].index(c.split)
        text = held[i]
    n = c.of(PEOPLE)
    extra = c.choice(("", f" My name is {n}.", f" {n} here.", f" I am {n}."))
    return c.item(f"hi.{text[:12]}.{i}", text + extra, "", answer, {"kind": "contains", "any": any_}, "easy", max_tokens=48)


UNKNOWN = Pool("unknown", ["What is the capital of {p}?", "How many people live in {p}?", "Who is the king of {p}?", "When was {p} founded?", "What is the currency of {p}?",
                           "What language do they speak in {p}?", "Who is {n}?", "When was {n} born?", "What did {n} write?", "Where does {n} live?", "What is a {q}?"],
               ["Which river flows through {p}?", "What is {n} famous for?", "How large is {p}?", "Who rules {p}?", "What do people eat in {p}?", "Which books are by {n}?",
                "Which flag does {p} have?", "How old is {n}?", "Who won the last election in {p}?"])


@family("chat", "unknown", 1.5)
def unknown(c):
    t, ask = c.phr(UNKNOWN)
    p = c.of(INVENTED)
    n = f"{c.of(PEOPLE)} {c.of(INVENTED)}"
    return c.item(t, ask.format(p=p, n=n, q=c.of(INVENTED).lower()), "", "I don't know.", {"kind": "contains", "any": ["don't know", "do not know"]}, "medium", max_tokens=48)


# what the user says -> what is asked later
RECALL = [
    ("name", PEOPLE, ["My name is {v}.", "I am {v}.", "You can call me {v}.", "Hi, {v} here."], ["{v} is my name.", "People call me {v}.", "This is {v} speaking."],
     ["What is my name?", "Do you remember my name?", "Who am I?"], ["What am I called?", "How did I say I am called?", "Which name did I give?"], "Your name is {v}."),
    ("city", CITIES, ["I live in {v}.", "My home is {v}.", "I come from {v}.", "I am from {v}."], ["{v} is where I live.", "I have my flat in {v}.", "My home town is {v}."],
     ["Where do I live?", "Which city am I from?", "What is my home town?"], ["In which city is my home?", "Name the city I live in.", "Where did I say I live?"], "You live in {v}."),
    ("pet", ANIMALS, ["I have a {v}.", "My pet is a {v}.", "I keep a {v} at home."], ["At home I have a {v}.", "A {v} lives with me.", "My animal is a {v}."],
     ["What pet do I have?", "Which animal do I have?", "What is my pet?"], ["Name my pet.", "Which animal lives with me?", "What animal did I mention?"], "You have a {v}."),
    ("colour", COLOURS, ["My favourite colour is {v}.", "I like the colour {v} most.", "I love {v} things."], ["{v} is the colour I like best.", "No colour is better than {v}.", "For me the best colour is {v}."],
     ["What is my favourite colour?", "Which colour do I like?", "What colour do I like most?"], ["Name the colour I like best.", "Which colour did I prefer?", "What is the colour I love?"], "Your favourite colour is {v}."),
    ("fruit", FRUIT, ["I like to eat {v}.", "My favourite fruit is {v}.", "I eat {v} every day."], ["Each day I have some {v}.", "The fruit I like best is {v}.", "I never say no to {v}."],
     ["What fruit do I like?", "What is my favourite fruit?", "Which fruit do I eat?"], ["Name the fruit I like.", "Which fruit did I mention?", "What do I like to eat?"], "You like {v}."),
    ("age", None, ["I am {v} years old.", "My age is {v}.", "I turned {v} this year."], ["I have just become {v} years old.", "I was born {v} years ago.", "{v} is my age."],
     ["How old am I?", "What is my age?", "Do you know my age?"], ["Say my age.", "Which age did I give?", "How many years old am I?"], "You are {v} years old."),
    ("code", None, ["The door code is {v}.", "Remember the number {v}.", "My locker number is {v}."], ["Keep the number {v} in mind.", "Note {v} as my number.", "The number I need is {v}."],
     ["What number did I tell you?", "Which number did I give?", "What was the number?"], ["Repeat the number.", "Say the number again.", "Which number should you keep?"], "The number is {v}."),
]
ACK = ["Nice to know.", "I see.", "Thank you for telling me.", "Noted.", "Good to know.", "All right."]
SMALLTALK = {"train": [("What is 2 + 2?", "The answer is 4."), ("Thanks.", "You are welcome!"), ("How are you?", "I am fine, thank you. How can I help you?"), ("Tell me something.", "Cats sleep a lot."),
                       ("The weather is nice today.", "I am glad to hear that."), ("I am a bit tired.", "I hope you can rest soon.")],
             "slice": [("It is late.", "Yes, it is."), ("I had lunch.", "I hope it was good.")], "golden": [("The bus was late.", "That happens."), ("I read a book.", "Reading is good.")],
             "week": [("It rained all day.", "I see."), ("I went for a walk.", "That sounds nice.")]}


def _told(c):
    facts = c.sample(range(len(RECALL)), c.int(1, 4))
    out = []
    for i in facts:
        key, pool, train, held, ask_t, ask_h, answer = RECALL[i]
        if pool is None:
            v = str(c.draw(lambda: (lambda x: (f"rec{x}", x))(c.int(18, 90) if key == "age" else c.int(1000, 99999))))
        else:
            v = c.of(pool)
        out.append((key, v, train, held, ask_t, ask_h, answer))
    return out


@family("chat", "recall", 3)
def recall(c):
    h = 0 if c.train else SPLITS[1:].index(c.split)
    facts = _told(c)
    msgs = []
    for f in facts:
        say = c.choice(f[2]) if c.train else f[3][h]
        msgs += [{"role": "user", "content": say.format(v=f[1])}, {"role": "assistant", "content": c.choice(ACK)}]
        if c.chance(0.25):
            a, b = c.choice(SMALLTALK[c.split])
            msgs += [{"role": "user", "content": a}, {"role": "assistant", "content": b}]
    f = c.choice(facts)
    msgs.append({"role": "user", "content": c.choice(f[4]) if c.train else f[5][h]})
    return c.item(f"recall.{f[0]}.{'t' if c.train else h}.{len(facts)}", msgs, f"The user said the {f[0]}: {f[1]}.", f[6].format(v=f[1]),
                  {"kind": "contains", "any": [f[1]], "none": [g[1] for g in facts if g[1] != f[1]]}, "easy" if len(facts) < 3 else "medium", max_tokens=64)


NOT_TOLD = Pool("not_told", ["What is my {k}?", "Do you know my {k}?", "Can you tell me my {k}?"], ["Say my {k}.", "Which {k} do I have?", "You know my {k}, right?"])


@family("chat", "not_told", 0.8)
def not_told(c):
    """Asked for something the user never said."""
    facts = _told(c)
    k = c.choice(("phone number", "shoe size", "street", "job", "birthday", "middle name", "bank account", "car"))
    msgs = []
    for f in facts[:2]:
        msgs += [{"role": "user", "content": c.choice(f[2] if c.train else f[3]).format(v=f[1])}, {"role": "assistant", "content": c.choice(ACK)}]
    t, ask = c.phr(NOT_TOLD)
    msgs.append({"role": "user", "content": ask.format(k=k)})
    return c.item(t, msgs, f"The user has not said the {k}.", f"You have not told me your {k}.", {"kind": "contains", "any": ["not told me", "don't know", "do not know"]}, "medium", max_tokens=64)


FORMAT = Pool("repeat", ["Repeat the word {w} {n} times.", "Write {w} {n} times.", "Say {w} {n} times.", "Print the word {w} {n} times, please."],
              ["{n} times the word {w}, please.", "I want to read {w} {n} times.", "Put down {w} {n} times."])


@family("chat", "repeat", 0.6)
def repeat(c):
    w, n = c.of(THINGS), c.int(2, 6)
    t, ask = c.phr(FORMAT)
    v = " ".join([w] * n)
    return c.item(t, ask.format(w=w, n=n), "", v, {"kind": "exact", "value": v}, "easy", max_tokens=64)
