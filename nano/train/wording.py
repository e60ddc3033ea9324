"""More training phrasings for the task generators, and more words for them to talk about.

Why: with three to five phrasings a family and some hundred words, a small model learns the phrases and the words by heart instead of
the task and of copying. Phrasings go to the training side of a pool only, and one that equals a held-out phrasing is refused; words
pass the generators' own split by hash, so the exams' words stay out.
"""
import importlib.util
import itertools
import os
import random
import sys

from . import toolbox

MORE = {
    "arithmetic.ADD": ["Give {a} + {b}.", "{a} plus {b}?", "What is {a} and {b} together?", "Put {a} and {b} together: how much is it?", "Increase {a} by {b}.", "Sum up {a} and {b}.", "I want to know {a} + {b}.", "Result of {a} + {b}?", "Raise {a} by {b}.", "Do the addition {a} + {b}."],
    "arithmetic.SUB": ["Give {a} - {b}.", "{a} minus {b}?", "Decrease {a} by {b}.", "Lower {a} by {b}.", "Remove {b} from {a}.", "Deduct {b} from {a}.", "Result of {a} - {b}?", "Start with {a} and take off {b}.", "How much more is {a} than {b}?", "Cut {a} by {b}.", "Do the subtraction {a} - {b}."],
    "arithmetic.MUL": ["Give {a} * {b}.", "{a} times {b}?", "{a} multiplied by {b} is what?", "Result of {a} * {b}?", "How much are {a} groups of {b}?", "Do the multiplication {a} x {b}.", "Take {a} and multiply it with {b}.", "Compute {a} x {b}", "Find {a} * {b}."],
    "arithmetic.DIV": ["Give {a} / {b}.", "{a} divided by {b}?", "Result of {a} / {b}?", "Share {a} equally among {b}: how much does each get?", "Cut {a} into {b} pieces of one size. How large is a piece?", "Do the division {a} / {b}.", "What is {a} ÷ {b}?", "If {a} is divided into {b} equal groups, how many are in a group?", "Compute {a} / {b}.", "How many {b}s are in {a}?", "Find the quotient: {a} / {b}", "Quotient of {a} divided by {b}?", "Give the quotient of {a} : {b}.", "Calculate the quotient when {a} is divided by {b}.", "The quotient {a} / {b} is what?", "What do I get if I divide {a} by {b}?", "What is one of {b} equal shares of {a}?", "{a} over {b} is how much?", "Which number times {b} gives {a}?", "Break {a} into {b} equal groups. How big is one group?"],
    "arithmetic.REM": ["{a} mod {b}?", "What is the rest of {a} / {b}?", "If I divide {a} by {b}, what is left?", "Calculate {a} % {b}.", "Which remainder has {a} / {b}?"],
    "arithmetic.BIG": ["{a} or {b}: which is more?", "Tell me the greater of {a} and {b}.", "What is the maximum of {a} and {b}?", "Which one is higher, {a} or {b}?"],
    "arithmetic.SMALL": ["{a} or {b}: which is less?", "Tell me the lesser of {a} and {b}.", "Which one is lower, {a} or {b}?", "Give the smaller of {a} and {b}."],
    "arithmetic.ORDER": ["Give the value of {e}.", "Result of {e}?", "How much is {e}?", "Find {e}.", "{e} equals what?"],
    "arithmetic.CHAIN": ["Give {e}.", "How much is {e}?", "Result of {e}?", "Find {e} one step at a time.", "{e} = ?"],
    "arithmetic.SEQ": ["Which number follows {s}?", "Give the next term: {s}", "{s}: what is next?", "Find the number that comes after {s}.", "How does {s} go on?"],
    "arithmetic.PARITY": ["{a} is even or odd?", "Can {a} be divided by 2? Say even or odd.", "Say if {a} is even or odd."],
    "arithmetic.POWER": ["Give the square of {a}.", "Square {a}.", "{a} squared?", "{a} * {a} = ?", "Multiply {a} with itself.", "How much is {a} squared?", "{a} to the second power?"],
    "chat.CAPITAL": ["Tell me the capital of {x}.", "{x}: what is its capital?", "Do you know the capital of {x}?", "The capital of {x} is which city?"],
    "chat.CAPITAL_OF": ["Which country is governed from {y}?", "{y}: capital of which country?", "What country is {y} the capital of?", "Tell me the country of the capital {y}."],
    "chat.DOMAIN": ["Give the country domain of {x}.", "{x}: which internet ending?", "Which ending do web addresses of {x} have?", "Tell me the top-level domain of {x}."],
    "chat.ADJECTIVE": ["Give the nationality of people from {x}.", "People from {x} are called what?", "{x}: which nationality?"],
    "chat.BIGGER": ["Larger country: {x} or {y}?", "Compare {x} and {y}: which covers more area?", "Tell me which country is bigger, {x} or {y}.", "Between {x} and {y}, which has the larger area?"],
    "chat.KIND": ["Say what kind of thing {w} is.", "{w}: which kind of thing?", "Put {w} into a group.", "Which group fits the word {w}?"],
    "chat.MEANING": ["Explain the word {w}: which one is right?", "{w}: which definition fits?", "Pick the meaning of {w}.", "Which of these explains {w}?"],
    "chat.WORD_FOR": ["Give the word that means: {d}.", "Name the thing: {d}.", "What do you call this: {d}?", "Tell me the word: {d}."],
    "chat.UNKNOWN": ["Where is {p} from?", "When did {p} die?", "What does {p} like most?", "How tall is {p}?", "Who is married to {p}?", "What did {p} invent?", "When was {p} born?", "Tell me the age of {p}.", "What has {p} written?", "Is {p} well known, and for what?", "What happened to {p} in the end?"],
    "chat.NOT_TOLD": ["Say my {k}.", "I forgot my {k}. What is it?", "Tell me my {k}.", "Which is my {k}?", "Remind me of my {k}."],
    "chat.FORMAT": ["Give me {w} {n} times.", "Print {w} {n} times.", "Please write the word {w} {n} times in a row.", "{w}, {n} times please.", "Type {w} {n} times.", "Put {w} {n} times on one line."],
    "code.PRINTS": ["Run this in your head. What is printed?\n{p}", "{p}\nWhat is the output?", "Which output does this give?\n{p}", "{p}\nTell me what it prints."],
    "code.WRITE": ["In Python, write `{f}({a})` that {d}.", "I need a Python function {f}({a}) that {d}.", "Define {f}({a}) in Python; it {d}.", "Code a Python function {f}({a}) that {d}."],
    "code.TYPE": ["Which type does `{e}` have?", "Tell me the Python type of `{e}`.", "`{e}`: what type is it in Python?", "Give the type of {e}."],
    "cyber.T_ID": ["Tell me the ATT&CK id for {x}.", "{x}: which technique id?", "Under which id is {x} listed in ATT&CK?", "ATT&CK id of {x}?"],
    "cyber.T_NAME": ["Name the technique {i}.", "{i}: which technique?", "Tell me what {i} is in ATT&CK.", "ATT&CK {i} is called what?"],
    "cyber.T_TACTIC": ["Name the tactic of {x}.", "To which tactic is {x} assigned?", "{x}: which tactic in ATT&CK?", "Tell me the ATT&CK tactic for {x}."],
    "cyber.WHAT_IS": ["Tell me if {x} is a malware, a tool or a group.", "Is {x} a group, a tool or a malware?", "In ATT&CK, what is {x}: group, malware or tool?"],
    "cyber.VENDOR": ["Tell me the vendor of {x}.", "{x}: which vendor?", "Name the maker of {x}.", "Which company sells {x}?"],
    "cyber.PORT": ["Tell me the port of {x}.", "{x}: which port?", "On which port is {x} by default?", "Name the usual port for {x}.", "Give the port number of {x}."],
    "cyber.SERVICE": ["Tell me the service on port {p}.", "{p} is the port of what?", "Name the service that listens on {p}.", "What do I expect on port {p}?"],
    "cyber.H_LEN": ["Give the size of a {x} digest in {u}.", "How long is {x} in {u}?", "{x} gives how many {u}?", "Tell me the {u} of a {x} hash.", "A {x} digest has how many {u}?"],
    "cyber.H_KIND": ["Tell me the type of this hash: {h}", "{h}\nWhich hash is it?", "Which algorithm made this digest: {h}", "Guess the hash by length: {h}"],
    "cyber.O_CASE": ["Which category of the OWASP Top 10 is this? {s}", "Put this into an OWASP category: {s}.", "{s}: which OWASP category?", "Tell me the OWASP Top 10 category for: {s}."],
    "cyber.O_ID": ["{i} of the OWASP Top 10 is what?", "Tell me the name of OWASP {i}.", "OWASP {i}?"],
    "cyber.S_PICK": ["Pick the {q}.", "Tell me the {q}.", "Which of these is the {q}?", "Give the {q}."],
    "cyber.HOSTS": ["How many hosts fit in a /{p}?", "Number of usable hosts in {n}/{p}?", "Tell me the usable hosts of a /{p}.", "A /{p} holds how many hosts?"],
    "cyber.SIZE": ["How big is {n}/{p} in addresses?", "Tell me the number of addresses in a /{p}.", "A /{p} holds how many addresses?", "Count the addresses of {n}/{p}."],
    "cyber.MASK": ["Give the mask of {n}/{p}.", "/{p} as dotted mask?", "Tell me the netmask for /{p}.", "Which netmask has a /{p} network?", "Convert /{p} to a dotted netmask."],
    "cyber.INNET": ["Is {a} part of {n}/{p}?", "{a}: in {n}/{p} or not?", "Tell me if {a} lies in {n}/{p}.", "Check whether {n}/{p} includes {a}."],
    "cyber.PRIVATE": ["Tell me if {a} is private.", "Private or public: {a}?", "Is {a} a public or a private address?", "Check {a}: private or public."],
    "cyber.SEV": ["Tell me the severity for CVSS {s}.", "A CVSS v3 score of {s} is how severe?", "Score {s} in CVSS v3: which severity?"],
    "kine.MUSCLE": ["Tell me the muscle trained by {x}.", "{x}: main muscle?", "Name the muscle that {x} works.", "Where do I feel {x} most?"],
    "kine.EQUIPMENT": ["Tell me the equipment for {x}.", "{x}: which equipment?", "What is {x} done with?", "Name what is needed for {x}.", "With what do people do {x}?", "To do {x}, what do I use?"],
    "kine.LEVEL": ["Tell me the level of {x}.", "{x}: beginner, intermediate or expert?", "Who should do {x}: beginner, intermediate or expert?", "Which level does {x} have?"],
    "kine.CATEGORY": ["Tell me the category of {x}.", "{x}: strength, stretching, cardio or other?", "What type of training is {x}?", "Name the category for {x}."],
    "kine.FORCE": ["Tell me if {x} is push, pull or static.", "Push or pull: {x}?", "Which force does {x} use?", "Is the force of {x} push, pull or static?", "What is the force of {x}?"],
    "kine.MECHANIC": ["Tell me if {x} is compound or isolation.", "Compound or isolation: {x}?", "What is the mechanic of {x}?"],
    "kine.PICK": ["Which exercise is for the {m}?", "Choose the one that works the {m}.", "For the {m}, which one do I take?", "Tell me the exercise that trains the {m}."],
    "kine.A_DOES": ["Tell me what the {m} does.", "The {m}: what is it for?", "Name the action of the {m}.", "What is the function of the {m}?"],
    "kine.A_WHICH": ["Tell me the muscle that {a}.", "Which is the muscle that {a}?"],
    "kine.A_WHERE": ["Tell me where the {m} is.", "The {m} is in which place?", "Where do I find the {m}?", "Name the place of the {m}."],
    "kine.J_TYPE": ["Tell me the joint type of the {m}.", "The {m}: which type of joint?", "Name the kind of joint of the {m}."],
    "kine.M_NAME": ["Tell me the term for {m}.", "How is {m} called?", "Which word means {m}?"],
    "kine.HOW_MANY": ["Tell me the number of {m}.", "Count of {m} in a human?", "A person has how many {m}?"],
    "kine.VOLUME": ["{s} sets, {r} reps, {k} kg: how many kg were lifted in all?", "How many kg are lifted in {s} sets of {r} at {k} kg?", "Find the volume: {k} kg for {s} sets of {r} reps.", "With {k} kg, {s} sets and {r} reps a set, what is the load in total?", "{k} kg x {r} reps x {s} sets = how many kg?"],
    "kine.REPS": ["{s} sets with {r} reps each: how many reps?", "How many repetitions make {s} sets of {r}?", "Count all reps: {s} sets, {r} a set."],
    "kine.PULSE": ["Age {a}: what is the maximum heart rate by 220 minus age?", "What is 220 minus age for someone who is {a}?", "Find the highest pulse for age {a} with 220 - age."],
    "kine.ZONE": ["How heavy is {p}% of {k} kg?", "The maximum is {k} kg. How much is {p}% of it?", "Find {p}% of a maximum of {k} kg."],
    "kine.REST": ["A session has {s} sets of {w} seconds and {r} seconds rest in between. How long does it take?", "Work {w} s, rest {r} s between sets, {s} sets: how many seconds?", "Total time for {s} sets of {w} s with {r} s pauses between them?", "I do {s} sets, each {w} seconds, and rest {r} seconds between two sets. How many seconds is that?"],
    "kine.PROGRESS": ["{n} begins at {k} kg and puts {d} kg on each week. What is the weight after {w} weeks?", "Each week {d} kg more, first {k} kg: how much after {w} weeks?", "What does {n} lift after {w} weeks, from {k} kg with {d} kg more a week?", "Weekly increase {d} kg, start {k} kg. Find the load after {w} weeks."],
    "kine.PLAN": ["{p}\nTell me the sets of {x}.", "Look at the plan.\n{p}\nHow many sets are there of {x}?", "{p}\nHow many sets does {x} have?"],
    "kine.PLANR": ["{p}\nTell me all reps of {x}.", "Look at the plan.\n{p}\nHow many reps of {x} are there in all?", "{p}\nHow many reps does {x} make in total?"],
    "lists.SORT": ["Alphabetical order, please: {s}", "Order {s} by alphabet.", "Sort {s} alphabetically.", "Bring {s} into alphabetical order.", "List {s} in the order of the alphabet."],
    "lists.SORTN": ["Sort {s} ascending.", "Order {s}, smallest first.", "Bring {s} into order from low to high.", "List {s} from smallest to largest.", "Sort these numbers: {s}", "Small to large: {s}"],
    "lists.SORTD": ["Sort {s} descending.", "Order {s}, largest first.", "Bring {s} into order from high to low.", "List {s} from largest to smallest.", "Large to small: {s}"],
    "lists.STAT": ["{s}: what is the {w}?", "Tell me the {w} of {s}.", "Which is the {w} in {s}?", "For {s}, give the {w}."],
    "lists.NTH": ["{s}: which is the {k} item?", "Tell me the {k} of {s}.", "Name the {k} entry in {s}.", "From {s}, take the {k}."],
    "lists.COUNT": ["Letter {l} in {w}: how often?", "How often does {w} contain {l}?", "Tell me how many times {l} is in {w}.", "In {w}, count {l}."],
    "lists.LENGTH": ["{w}: how many letters?", "Give the length of {w}.", "Tell me the number of letters in {w}.", "The word {w} has how many letters?", "Length of {w}?"],
    "lists.REVERSE": ["{w} in reverse?", "Turn {w} around.", "Give {w} from the last letter to the first.", "Write {w} from back to front.", "Flip the letters of {w}."],
    "lists.CASE": ["Put {w} in {k}.", "{w} in {k}, please.", "Turn {w} into {k}.", "I want {w} in {k}.", "Make {w} {k}."],
    "lists.ACRONYM": ["First letters of {s}?", "Join the first letters of: {s}", "Give the initials of {s}.", "What are the initials of {s}, joined?", "Build an acronym from {s}."],
    "lists.FILTER": ["{s}: which are {k}?", "Pick the numbers that are {k} from {s}.", "Tell me the {k} numbers of {s}.", "Give only those of {s} that are {k}."],
    "lists.DEDUP": ["Delete repeated words in {s}.", "{s}: each word only once, please.", "Make this list unique: {s}", "Give {s} with no word twice.", "Take out the doubles: {s}"],
    "lists.CONTAINS": ["{s}: which word is the {k}?", "Tell me the {k} word: {s}", "Among {s}, which is the {k}?", "Name the {k} of these words: {s}"],
    "quantities.PERCENT": ["{p} percent of {n}?", "Tell me {p}% of {n}.", "How much is {p} percent of {n}?", "Take {p}% of {n}."],
    "quantities.DISCOUNT": ["A {x} costs ${n} and is reduced by {p}%. How much is it now?", "With {p}% off, what does a {x} of ${n} cost?", "Take {p}% off ${n} for a {x}. What is the price in dollars?", "The shop takes {p}% off a {x} that costs ${n}. What do I pay?"],
    "quantities.FRACTION": ["Sum of {a} and {b} as a fraction?", "Give {a} + {b} as a fraction.", "{a} + {b}, reduced?", "Work out {a} plus {b} in lowest terms."],
    "quantities.REDUCE": ["{a} in lowest terms?", "Make {a} as simple as possible.", "Shorten {a}.", "Give the simplest form of {a}.", "Simplify {a}."],
    "quantities.PART": ["{f} of {n}?", "Tell me {f} of {n}.", "Take {f} of {n}.", "{f} of {n} is how much?"],
    "quantities.AVERAGE": ["Average of {xs}?", "Tell me the mean of {xs}.", "{xs}: what is the average?", "Give the average: {xs}", "What is the mean value of {xs}?"],
    "quantities.CONVERT": ["{n} {a}: how many {b}?", "Change {n} {a} into {b}.", "Give {n} {a} in {b}.", "How many {b} make {n} {a}?"],
    "quantities.CHANGE": ["A {x} is ${p}; I give ${n}. What do I get back?", "What is the change from ${n} if a {x} is ${p}?", "I hand over ${n} for a {x} of ${p}. How much comes back?"],
    "quantities.LATER": ["Now it is {a}. What is the time after {h} hours and {m} minutes?", "{a} plus {h} h {m} min?", "Start {a}, {h} hours {m} minutes later: what time?"],
    "quantities.BETWEEN": ["{a} to {b} in minutes?", "Count the minutes from {a} to {b}.", "How long is it from {a} to {b}, in minutes?"],
    "quantities.WEEKDAY": ["{d} plus {n} days is which weekday?", "It is {d}. Which weekday is it after {n} days?", "Go {n} days on from {d}: which day is it?"],
    "quantities.AFTER": ["{d} plus {n} days?", "{n} days after {d}: which date?", "Start at {d} and go {n} days on. What is the date?", "Which day of the calendar is {n} days later than {d}?"],
    "quantities.ROUND": ["Round off {a} to the nearest {k}.", "{a}, rounded to the nearest {k}?", "Give {a} to the nearest {k}."],
    "quantities.AREA": ["Sides {a} and {b}: what is the {w} of the rectangle?", "Give the {w} of a rectangle of {a} by {b} cm.", "A rectangle has sides of {a} cm and {b} cm. Find the {w}."],
    "reading.FRAME": ["{q}\nText: {p}", "Here is a text.\n{p}\nNow answer: {q}", "{p}\n{q}", "Use the text to answer.\n{p}\n{q}", "Passage: {p}\n\nQuestion: {q}"],
    "reading.SUMMARY": ["Say in one sentence what this is about:\n{p}", "{p}\nSummary in one sentence, please.", "Make this short, one sentence:\n{p}"],
    "research.FRAME": ["{s}\nUse these sources. {q}", "{q}\nSources:\n{s}", "Here are some sources.\n{s}\n{q} Name the source.", "Read the sources and answer with the number of the source.\n{s}\n{q}", "{s}\n\nQuestion with citation: {q}"],
    "research.CMP": ["Between {a} and {b}, which {k}?", "Tell me which {k}: {a} or {b}.", "Compare {a} with {b}: which {k}?"],
    "research.DATE": ["Tell me the date on which {e}.", "On which day {e}?", "Which date is given for this: {e}?"],
    "research.WHICH": ["Tell me the source about {n}.", "{n}: which source?", "Where is {n} mentioned? Give the number.", "Which number has the source on {n}?", "Find the source that speaks of {n}."],
    "research.SUM": ["Tell me the inhabitants of {a} and {b} in total.", "{a} and {b}: how many people in all?", "Sum the populations of {a} and {b}."],
    "research.LATEST": ["Tell me the latest population of {a}.", "{a}: how many people by the newest source?", "What does the most recent source say about the population of {a}?"],
    "shell.TASK": ["Choose the shell command: {t}.", "Which of these does: {t}?", "{t}: which command?", "I want this: {t}. Which command is right?"],
    "shell.PURPOSE": ["Tell me what `{c}` does.", "`{c}`: what does it do?", "What happens when I run `{c}`?", "What is `{c}` for?"],
    "shell.LINE": ["Which shell command do I use to {d}?", "I want to {d} in a terminal. Give the command.", "One shell line to {d}, please.", "With which command do I {d}?", "Show me the shell command to {d}.", "Command to {d}?", "On the command line, {d}."],
    "tools.NOT_NEEDED": ["{a} + {b} = ?", "Tell me {a} + {b}.", "What do {a} and {b} make?"],
    "tools.THANKS": ["That is all, thank you.", "Thanks, nothing more.", "Great, thank you.", "I have what I need. Thank you!"],
    "tools.HELLO": ["Hi there!", "Hello there.", "Good morning!", "Good evening.", "Hey!"],
    "tools.CHAIN": ["Text {n}: {m}. You must look up the number.", "I do not know the number of {n}. Find it and send {m}.", "Get the phone number of {n} and write a message: {m}."],
    "tools.MAILS": ["Write an email to {n} with the subject {m}; look up the address.", "I do not know the address of {n}. Find it and mail the subject {m}.", "Get the email address of {n} and send the subject {m}."],
}
OPENERS = ["Hello. ", "Hi there, ", "I have a question. ", "Could you help me? ", "Quick question: ", "Next: ", "OK. ", "So, ", "Now this one. ", "Dear assistant, ",
           "Tell me: ", "Please answer: ", "I want to know: ", "Do you know this? ", "Here is my question. ", "Can you help? ", "A small task: ", "For my homework: ", "Well, ", "Let us see. "]
CLOSERS = [" Thanks.", " Thank you!", " Please.", " That is my question.", " Thanks in advance.", " Please help me."]
VERBS = "get find make set send list open run add show check read write plan call ask fetch start stop move book order load save look_up do_the create update query lookup search compute".split()
PLAIN_FAMILIES = ("greeting", "tool_none", "identity")


def syllables(rng, n):
    a = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl st tr th sh".split()
    b = "a e i o u ai ea ou ia".split()
    c = "n r s l m t d k x nd rt ss ll ck ".split(" ")
    return {(rng.choice(a) + rng.choice(b) + rng.choice(a) + rng.choice(b) + rng.choice(c)).capitalize() for _ in range(n)}


def extended_tasks():
    """The `tasks` package with more words and phrasings on its training side (this process only)."""
    if "tasks" in sys.modules:
        raise RuntimeError("extend the word lists before tasks is imported: the generators copy them at import")
    spec = importlib.util.find_spec("tasks")
    names = importlib.util.spec_from_file_location("tasks.names", os.path.join(os.path.dirname(spec.origin), "names.py"))
    module = importlib.util.module_from_spec(names)
    names.loader.exec_module(module)
    rng = random.Random(11)
    with open(os.path.join(os.path.dirname(__file__), "words.txt"), encoding="utf-8") as f:
        words = f.read().split()
    grow = {"THINGS": words, "PEOPLE": syllables(rng, 1200), "SURNAMES": syllables(rng, 2000), "INVENTED": syllables(rng, 2000), "CITIES": syllables(rng, 250)}
    for name, extra in grow.items():
        known = set(getattr(module, name))
        getattr(module, name).extend(sorted(set(extra) - known))
    sys.modules["tasks.names"] = module
    import tasks
    for key, phrasings in MORE.items():
        mod, name = key.split(".")
        pool = getattr(sys.modules["tasks." + mod], name)
        held = {t if isinstance(t, str) else t[1] for s in ("slice", "golden", "week") for t in pool.of[s]}
        held = {t.lower().strip() for t in (x[1] if isinstance(x, tuple) else x for s in ("slice", "golden", "week") for x in pool.of[s])} | held
        pool.of["train"] += [(f"{key}.x{i}", t) for i, t in enumerate(phrasings) if t.lower().strip() not in held]
    tasks.extended = True
    return tasks


def rename(item, rng, words):
    """Gives the functions of a tool item made-up names, so that names must be read from the list of tools."""
    import json
    import re
    style = rng.random()
    fresh = itertools.count()
    new = {}
    for t in item["tools"]:
        w, v = rng.choice(words), rng.choice(VERBS)
        new[t["function"]["name"]] = {0: f"{v}_{w}", 1: f"{w}_{v}", 2: v + w.capitalize(), 3: w, 4: f"{w}_{rng.choice(words)}"}[int(style * 5)]
        next(fresh)
    if len(set(new.values())) < len(new):
        return item
    text = json.dumps(item, ensure_ascii=False)
    pattern = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, sorted(new, key=len, reverse=True))) + r")(?![\w])")
    swap = lambda s: pattern.sub(lambda m: new[m[1]], s)
    out = json.loads(text)
    for t in out["tools"]:
        t["function"]["name"] = new[t["function"]["name"]]
    for m in [*out["messages"], out]:
        for c in m.get("tool_calls") or []:
            c["name"] = new.get(c["name"], c["name"])
    out["think"] = re.sub(r"(Tools?: )([^.]*)", lambda m: m[1] + swap(m[2]), out["think"])
    for m in out["messages"]:
        if m.get("reasoning_content"):
            m["reasoning_content"] = re.sub(r"(Tools?: )([^.]*)", lambda k: k[1] + swap(k[2]), m["reasoning_content"])
    return out


def vary(item, rng, words):
    """An item with renamed tools and, now and then, a polite word around the question."""
    if item.get("tools") and rng.random() < 0.6:
        item = rename(item, rng, words)
    if item.get("tools") and rng.random() < 0.35:
        item = toolbox.reorder(item, rng)
    if item.get("tool_calls"):
        item = toolbox.deliberate(item)
    last = item["messages"][-1]
    if last["role"] == "user" and item["family"] not in PLAIN_FAMILIES and rng.random() < 0.22:
        text = last["content"]
        if rng.random() < 0.7:
            text = rng.choice(OPENERS) + text
        else:
            text += rng.choice(CLOSERS)
        item["messages"][-1] = {**last, "content": text}
    return item
