"""Made-up facts for `evidence.py` and `reading_exam.py`: somebody or something, one thing about it, a random value.

Nobody can know them, so a right answer was read. Names, kinds of facts and wordings of the exam never meet those of training:
names are dealt by a hash, kinds and wordings stand in lists of their own.
"""
import os
import random
import zlib

SPLITS = ("train", "exam")


def _lines(file):
    with open(os.path.join(os.path.dirname(__file__), file), encoding="utf-8") as f:
        return [line.split() for line in f]


WORDS = [w for line in _lines("words.txt") for w in line]
# Nouns and verbs that mean about the same in some sense (WordNet): what is told in one word is asked in another.
ALIKE = {k: [line[1:] for line in _lines("synonyms.txt") if line[0] == k] for k in "nv"}
_A = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl st tr th sh qu sk sn".split()
_B = "a e i o u ai ea ou ia ee oa".split()
_C = "n r s l m t d k x nd rt ss ll ck nt rk mb".split() + [""] * 4
FIRST = """Adam Alice Amir Anna Ben Bruno Carla Chen Clara David Dora Elena Emma Eric Fatima Felix Frank Grace Hanna Hugo Ida Ines Ivan Jack Jana Jonas Julia Karim
Kate Kenji Lara Leo Lena Lily Luis Maria Marta Max Maya Mila Nadia Nina Noah Nora Olga Omar Oscar Paula Pedro Petra Priya Rita Rosa Ruth Sam Sara Simon Sofia Tara
Theo Tom Vera Victor Walter Wendy Yara Zoe""".split()
COLOURS = "red blue green yellow black white grey brown orange purple pink silver gold beige violet turquoise".split()
MONTHS = "January February March April May June July August September October November December".split()
GROUP = "team room project ship house server station school shop garden group line unit gate boat club".split()

# Kinds named by a noun: n number, c code, w word, p person, d date, t time, l place, m money, o colour.
NOUNS = {"train": """access code:c|account number:n|age:n|aisle:n|alarm code:n|assistant:p|badge number:n|balance:m|bed:n|booking code:c|boss:p|box:c|budget:m|bus line:n|
caretaker:p|case number:n|chair:p|class:c|client:p|code:n|code word:w|coach:p|colour:o|contact:p|contract number:c|cost:m|customer number:n|date of arrival:d|deadline:d|
delivery date:d|departure:t|deposit:m|desk:n|destination:l|director:p|doctor:p|door code:n|driver:p|due date:d|email name:w|end:t|entrance:c|extension:n|favourite word:w|
flag:o|flight:c|folder:c|guide:p|height:n|home town:l|host:p|house number:n|invoice number:c|key:c|key word:w|landing place:l|lawyer:p|length:n|level:n|licence plate:c|
limit:n|lock code:n|locker:n|lunch time:t|manager:p|meeting point:l|meeting time:t|member number:n|model:c|neighbour:p|nickname:w|nurse:p|office:l|order number:n|origin:l|
owner:p|page:n|parking place:c|partner:p|password:w|phone number:n|PIN:n|platform:n|policy number:c|port:n|power:n|price:m|queue:c|radio name:w|rank:n|record:n|rent:m|
return date:d|room:n|room number:n|salary:m|score:n|seat:c|secret word:w|serial number:c|shelf:c|signal:w|size:n|speed:n|start:t|stock:n|street:l|supplier:p|symbol:w|table:n|
target:n|task:w|teacher:p|temperature:n|terminal:c|ticket number:n|title:w|topic:w|trainer:p|user name:w|version:c|wall colour:o|weight:n|winner:p|workplace:l|year:n|zone:c""",
         "exam": """boarding gate:c|cabin:n|guest count:n|tracking number:c|reference word:w|fee:m|deputy:p|launch date:d|opening hour:t|paint:o|depot:l|firmware:c|mileage:n|
landlord:p|inspection date:d|curfew:t|vault number:n|batch:c|harbour:l|call sign:w"""}
STATE = {"train": ["The {a} of {e} is {v}.", "The {a} of {e} is {v}.", "{e} has the {a} {v}.", "{v} is the {a} of {e}.", "For {e}, the {a} is {v}.", "{e}: {a} {v}", "As {a}, {e} has {v}.",
                   "{e} was given the {a} {v}.", "The {a} that belongs to {e} is {v}.", "Remember: the {a} of {e} is {v}.", "{e} now has {v} as {a}.", "The {a} for {e} is {v}.",
                   "About {e}: {a} {v}.", "{a} of {e}: {v}", "The {a} of {e} was changed to {v}.", "We know that the {a} of {e} is {v}.", "It is noted that {e} has the {a} {v}.",
                   "{e} told us the {a}: {v}.", "Under {e} the {a} is listed as {v}.", "Since last week the {a} of {e} has been {v}.", "{e} - {a} - {v}", "The {a} they gave {e} is {v}.", "{e}'s {a} is {v}.", "{v} - that is {e}'s {a}.",
                   "What {e} has for {a} is {v}.", "Ask for {v}, that is the {a} of {e}.", "{e} goes with the {a} {v}."],
         "exam": ["{e} gets {v} as the {a}.", "By the record, {e} has {v} for {a}.", "The {a} written down for {e} reads {v}.", "Everybody should note that {v} is {e}'s {a}.", "{e}'s {a} is now {v}.",
                  "With {e} the {a} comes to {v}."]}
ASK = {"train": ["What is the {a} of {e}?", "What is the {a} of {e}?", "Which {a} does {e} have?", "Tell me the {a} of {e}.", "{a} of {e}?", "I need the {a} of {e}.", "Please give me the {a} of {e}.",
                 "Do you know the {a} of {e}?", "{e} has which {a}?", "What {a} does {e} have?", "Say the {a} of {e}.", "Look up the {a} of {e}.", "What was the {a} of {e}?", "For {e}, what is the {a}?",
                 "What is the {a} for {e}?", "What does {e} have as {a}?", "Find out the {a} of {e}.", "I forgot the {a} of {e}.", "Which is the {a} of {e}?", "{e}: what is the {a}?",
                 "Give the {a} of {e}.", "I am looking for the {a} of {e}.", "Remind me of the {a} of {e}.", "How about the {a} of {e}?", "The {a} of {e} is what?", "What is {e}'s {a}?", "{e}'s {a}?", "Concerning {e}, what is the {a}?", "Which {a} belongs to {e}?", "Is there a {a} for {e}?",
                 "{e}, {a}?", "In the case of {e}, what {a} do we have?", "Find {e} and tell me the {a}."],
       "exam": ["Which {a} goes with {e}?", "Can you give me {e}'s {a}?", "I would like to know the {a} {e} has.", "The {a} for {e}, please?", "When it comes to {e}, which {a} is right?",
                "Somebody asks for the {a} of {e}. What do I say?"]}
# Kinds told by a verb: (type of value, ways to say it, ways to ask).
VERBS = {"train": [
    ("l", ["{e} lives in {v}.", "The home of {e} is in {v}.", "{e} has a flat in {v}."], ["Where does {e} live?", "In which town is the home of {e}?", "Where is {e} at home?", "Which place does {e} live in?"]),
    ("l", ["{e} was born in {v}.", "{v} is where {e} was born.", "{e} came into the world in {v}."], ["Where was {e} born?", "What is the place of birth of {e}?", "In which town was {e} born?"]),
    ("p", ["{e} is led by {v}.", "{v} leads {e}.", "{v} is in charge of {e}."], ["Who leads {e}?", "Who is in charge of {e}?", "Who is the head of {e}?"]),
    ("w", ["{e} likes {v} most.", "What {e} likes most is {v}.", "{e} is very fond of {v}."], ["What does {e} like most?", "What is {e} fond of?", "What is the favourite thing of {e}?"]),
    ("d", ["{e} arrives on {v}.", "On {v} {e} will arrive.", "We expect {e} on {v}."], ["When does {e} arrive?", "On which day does {e} come?", "When do we expect {e}?"]),
    ("t", ["{e} opens at {v}.", "At {v} {e} opens.", "The doors of {e} open at {v}."], ["When does {e} open?", "At what time does {e} open?", "From when on is {e} open?"]),
    ("m", ["{e} costs {v}.", "The price of {e} is {v}.", "You pay {v} for {e}."], ["How much is {e}?", "What does {e} cost?", "What do I pay for {e}?", "How expensive is {e}?"]),
    ("n", ["{e} is {v} metres long.", "The length of {e} is {v} metres.", "{e} measures {v} metres."], ["How long is {e}?", "How many metres does {e} measure?", "What is the length of {e}?"]),
    ("n", ["{e} weighs {v} kilos.", "The weight of {e} is {v} kilos.", "On the scale {e} shows {v} kilos."], ["How heavy is {e}?", "How much does {e} weigh?", "What is the weight of {e}?"]),
    ("n", ["{v} people work for {e}.", "{e} has {v} workers.", "The staff of {e} counts {v} people."], ["How many people work for {e}?", "How large is the staff of {e}?", "How many workers has {e}?"]),
    ("o", ["{e} is painted {v}.", "The colour of {e} is {v}.", "{e} has a {v} front."], ["What colour is {e}?", "Which colour does {e} have?", "In which colour is {e} painted?"]),
    ("p", ["{e} belongs to {v}.", "{v} owns {e}.", "The owner of {e} is {v}."], ["Who owns {e}?", "To whom does {e} belong?", "Whose is {e}?", "Who is the owner of {e}?"]),
    ("w", ["{e} collects {v}.", "{e} has a collection of {v}.", "In the evening {e} sorts {v}."], ["What does {e} collect?", "What is in the collection of {e}?"]),
    ("l", ["{e} is kept in {v}.", "You find {e} in {v}.", "{e} is stored in {v}."], ["Where is {e} kept?", "Where do I find {e}?", "In which place is {e} stored?", "Where is {e}?"]),
    ("p", ["{e} was built by {v}.", "{v} built {e}.", "The builder of {e} was {v}."], ["Who built {e}?", "By whom was {e} built?", "Who made {e}?"]),
    ("n", ["{e} was founded in {v}.", "In {v} {e} was founded.", "{e} began in {v}."], ["When was {e} founded?", "In which year did {e} begin?", "Since when does {e} exist?"]),
    ("w", ["{e} works on {v}.", "The work of {e} is about {v}.", "{e} is busy with {v}."], ["What does {e} work on?", "What is {e} busy with?", "What is the work of {e} about?"]),
    ("l", ["{e} moves to {v} next month.", "Next month {e} goes to live in {v}.", "{e} will be in {v} from next month on."], ["Where does {e} move to?", "Where will {e} be next month?", "What is the new place of {e}?"]),
    ("w", ["{e} is called {v} by friends.", "Friends call {e} {v}.", "Among friends the name of {e} is {v}."], ["What do friends call {e}?", "Which name does {e} have among friends?"]),
    ("t", ["{e} leaves at {v}.", "At {v} {e} leaves.", "The start of {e} is at {v}."], ["When does {e} leave?", "At what time does {e} start?", "When is {e} gone?"]),
    ("c", ["{e} sits in {v}.", "The place of {e} is {v}.", "{e} has the seat {v}."], ["Where does {e} sit?", "Which seat does {e} have?", "What is the place of {e}?"]),
    ("p", ["{e} reports to {v}.", "{v} is the boss of {e}.", "{e} works under {v}."], ["Who does {e} report to?", "Who is the boss of {e}?", "Under whom does {e} work?"]),
    ("m", ["{e} earns {v}.", "{v} is what {e} is paid.", "{e} gets {v} for the work."], ["How much does {e} earn?", "What is {e} paid?", "How much money does {e} get?"]),
    ("w", ["{e} ordered {v}.", "The order of {e} was {v}.", "{e} asked for {v}."], ["What did {e} order?", "What did {e} ask for?", "What was the order of {e}?"]),
    ("n", ["{e} called {v} times.", "There were {v} calls of {e}.", "We counted {v} calls of {e}."], ["How often did {e} call?", "How many calls of {e} were there?"]),
    ("p", ["{e} met {v}.", "{v} was met by {e}.", "{e} had a meeting with {v}."], ["Whom did {e} meet?", "With whom did {e} have a meeting?", "Who was met by {e}?"])],
         "exam": [
    ("w", ["{e} cannot eat {v}.", "A meal with {v} makes {e} ill."], ["What food should {e} avoid?", "Which food is bad for {e}?", "What must not be in a meal of {e}?"]),
    ("p", ["{e} is married to {v}.", "The wedding of {e} and {v} was last year."], ["Who is the spouse of {e}?", "Who did {e} marry?", "To whom is {e} married?"]),
    ("t", ["The shift of {e} begins at {v}.", "{e} is on duty from {v}."], ["From what time is {e} on duty?", "When does the shift of {e} begin?", "When must {e} be there for the shift?"]),
    ("l", ["{e} studies in {v}.", "{e} goes to the university of {v}."], ["Where does {e} study?", "At which university is {e}?", "Which town does {e} study in?"]),
    ("n", ["{e} can carry {v} boxes.", "There is room for {v} boxes in {e}."], ["How many boxes fit in {e}?", "For how many boxes is there room in {e}?", "How many boxes can {e} carry?"]),
    ("w", ["{e} is guarded by a dog named {v}.", "The dog of {e} answers to {v}."], ["What is the name of the dog of {e}?", "How is the dog of {e} called?", "Which name does the dog at {e} have?"]),
    ("d", ["{e} will be sold on {v}.", "The sale of {e} is on {v}."], ["When is {e} sold?", "On which day is the sale of {e}?", "What is the day of sale for {e}?"]),
    ("c", ["{e} is parked at {v}.", "The car of {e} stands at {v}."], ["Where is the car of {e} parked?", "At which place does the car of {e} stand?", "Where did they park {e}?"])]}


def name(rng, split, parts=2):
    """A made-up name of the split: one in five belongs to the exam."""
    while True:
        s = "".join(rng.choice(_A) + rng.choice(_B) for _ in range(parts)) + rng.choice(_C)
        if (zlib.crc32(s.encode()) % 5 == 0) == (split == "exam"):
            return s.capitalize()


def entity(rng, split):
    """Somebody or something with a name; the given name, the noun and the number alone do not tell it apart."""
    k = rng.random()
    if k < 0.3:
        return f"{rng.choice(FIRST)} {name(rng, split)}"
    if k < 0.55:
        return name(rng, split, rng.choice((1, 2, 2, 3)))
    if k < 0.7:
        return f"{rng.choice(GROUP)} {name(rng, split)}"
    if k < 0.8:
        return f"the {name(rng, split)} {rng.choice(GROUP)}"
    if k < 0.92:
        return f"the {rng.choice(WORDS)} of {name(rng, split)}"
    return f"{rng.choice(GROUP)} {name(rng, split, 1)}-{rng.randint(2, 99)}"


def neighbour(rng, split, e):
    """An entity that looks like `e`: one of its parts is another one."""
    parts = e.split(" ")
    i = rng.randrange(len(parts))
    if parts[i] in ("the", "of") or "-" in parts[i]:
        i = len(parts) - 1
    old = parts[i]
    if "-" in old:
        head, _, tail = old.partition("-")
        parts[i] = f"{head}-{(int(tail) + rng.randint(1, 9)) % 100}" if rng.random() < 0.5 else f"{name(rng, split, 1)}-{tail}"
    elif old in FIRST:
        parts[i] = rng.choice(FIRST)
    elif old in GROUP:
        parts[i] = rng.choice(GROUP)
    elif old.islower():
        parts[i] = rng.choice(WORDS)
    else:
        parts[i] = name(rng, split, rng.choice((1, 2)))
    return " ".join(parts)


def value(rng, split, kind):
    if kind == "n":
        return str(rng.randint(*rng.choice(((2, 99), (100, 999), (1000, 9999), (10000, 999999)))))
    if kind == "c":
        letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(rng.randint(1, 3)))
        return letters + rng.choice(("-", "", " ", "/")) + str(rng.randint(2, 9999))
    if kind == "w":
        return rng.choice((rng.choice(WORDS), f"{rng.choice(WORDS)} {rng.choice(WORDS)}", f"{rng.choice(COLOURS)} {rng.choice(WORDS)}", name(rng, split).lower()))
    if kind == "p":
        return rng.choice((name(rng, split), f"{rng.choice(FIRST)} {name(rng, split)}", f"{rng.choice(FIRST)} {name(rng, split)}"))
    if kind == "d":
        return rng.choice(("{d} {m}", "{d} {m} {y}", "{m} {d}")).format(d=rng.randint(1, 28), m=rng.choice(MONTHS), y=rng.randint(2024, 2032))
    if kind == "t":
        return f"{rng.randint(5, 23)}:{rng.randrange(60):02d}"
    if kind == "l":
        return rng.choice((name(rng, split), name(rng, split, 3), f"{rng.choice(('Port', 'New', 'Old', 'Saint', 'North'))} {name(rng, split)}", f"{name(rng, split)} Street"))
    if kind == "m":
        return rng.choice(("{} euros", "${}", "{} dollars")).format(rng.randint(3, 9999))
    return f"{rng.choice(('', '', 'dark ', 'light '))}{rng.choice(COLOURS)}"


# Words around statements and questions that change nothing, in training alone.
BEFORE_STATE = ["By the way, ", "As of Monday, ", "According to the list, ", "Please note: ", "Just so you know, ", "New: ", "Update: ", "For the record, ", "Somebody wrote that ", "They say that ", "In short, ", "It is true that ",
                "On page {n} it says: ", "Entry {n}: ", "Since March, ", "As agreed, ", "In the meeting we heard that ", "Good to know: ", "Correction: ", "The report says that ", "My colleague says that "]
AFTER_STATE = [", I believe.", ", as agreed.", " (entry {n}).", ", says the office.", " at the moment.", ", by the way.", ", if I am not wrong.", " these days.", ", which is new."]
BEFORE_ASK = ["Hi, ", "Hello. ", "Please, ", "One question: ", "Tell me, ", "Quick one. ", "I wonder: ", "Sorry, ", "A customer wants to know: ", "My friend asks: ", "They want to know this: ", "I was asked this: ", "Question {n}: ",
              "Now to something else. ", "Back to the list: ", "If you know it: ", "Let me ask you this. ", "Next. ", "Good morning. ", "We need to know: ", "I have to fill in a form. ", "So, ", "And ", "OK, ", "About that: ", "Help me here. "]
AFTER_ASK = [" Thanks.", " Please be brief.", " I need it for a form.", " What should I write?", " My boss wants it.", " Can you help?", " It is urgent.", " How would you answer?", " I forgot it.", " Just the answer.", " Please look it up.",
             " What is right?", " Do you know?", " I must tell my friend.", " Give it to me, please.", " One line is enough."]
VAGUE = ["What about {e}?", "What do you know about {e}?", "What is there on {e}?", "{e}?", "What does it say about {e}?", "Tell me what you have on {e}.", "Anything on {e}?"]


# Parts of statements and questions that are put together at random: no wording of training can be learned by heart.
OF = ["of", "of", "for", "at", "with", "belonging to", "given to", "set for", "used by", "kept for", "assigned to", "we have for", "chosen for", "shown for", "known for", "that goes with", "that we keep for", "entered for", "found under"]
IS = ["is", "is", "was", "reads", "says", "stands at", "amounts to", "was set to", "equals", "shows", "turned out to be", "has become", "remains", "must be", "will be", "comes out as", "is given as", "is still", "may be", "is known to be", "is down as"]
HAS = ["has", "uses", "keeps", "shows", "was given", "received", "runs with", "works with", "holds", "needs", "took", "got", "is listed with", "stands with", "was entered with", "comes with", "picked"]
AS = ["as the", "as the", "for the", "as its", "for", "under", "as", "in place of a", "by way of"]
AT = ["With", "For", "At", "Under", "Regarding", "On", "About", "In the file of", "As to", "Looking at", "In the entry of", "Next to"]
WANT = ["what is", "which is", "give me", "tell me", "show me", "I want", "could you find", "do we have", "I need", "can somebody tell me", "remind us of", "name", "let me have", "who knows", "please find", "read me", "what do we have as", "state",
        "what did they say is", "I am asked for", "check", "I am missing", "help me with", "you surely know", "write down"]
FITS = ["has been given to", "is set for", "is used by", "fits", "stands for", "do we have for", "is there for", "was chosen for", "is in use for", "is listed for", "did they give", "should I write for", "do you see for"]


def made_state(rng):
    """A way to say a kind that is named by a noun."""
    of, is_, at = rng.choice(OF), rng.choice(IS), rng.choice(AT)
    t = rng.choice((f"The {{a}} {of} {{e}} {is_} {{v}}.", f"{{e}} {rng.choice(HAS)} {{v}} {rng.choice(AS)} {{a}}.", f"{{v}} {is_} the {{a}} {of} {{e}}.", f"{at} {{e}} the {{a}} {is_} {{v}}.", f"{at} {{e}}, {{v}} {is_} the {{a}}.",
                    f"{{e}} {rng.choice(HAS)} the {{a}} {{v}}.", f"There is {{v}} as {{a}} {of} {{e}}.", f"{{e}}'s {{a}} {is_} {{v}}."))
    return made_state(rng) if t in STATE["exam"] else t


def made_ask(rng):
    of, at, want = rng.choice(OF), rng.choice(AT), rng.choice(WANT)
    t = rng.choice((f"{want} the {{a}} {of} {{e}}?", f"{want} the {{a}} {of} {{e}}.", f"Which {{a}} {rng.choice(FITS)} {{e}}?", f"{at} {{e}}, {want} the {{a}}?", f"{want} {{e}}'s {{a}}?", f"{{e}} {rng.choice(HAS)} which {{a}}?", f"The {{a}} {of} {{e}}: {want} it.",
                    f"{at} {{e}}, which {{a}} is it?", f"{{a}} {of} {{e}}, {want} that."))
    t = t if t[0] == "{" else t[0].upper() + t[1:]
    return made_ask(rng) if t in ASK["exam"] else t


def low(t):
    return t if t[0] == "{" or t.startswith("I ") else t[0].lower() + t[1:]


class Fact:
    """`kind` names what is told; `states` and `asks` are its wordings, in which {a} is `kind` or, in questions, one of `words`."""

    def __init__(self, e, kind, v, states, asks, words=(), split="exam"):
        self.e, self.kind, self.v, self.words, self.split = e, kind, v, words or (kind,), split
        self._states, self._asks, self.alone = states, asks, False

    def _say(self, t, a, n=0):
        s = t.format(e=self.e, v=self.v, a=a, n=n)
        return s[0].upper() + s[1:]

    def state(self, rng):
        t = made_state(rng) if self._states is STATE["train"] and rng.random() < 0.5 else rng.choice(self._states)
        if self.split == "train" and rng.random() < 0.25:
            t = rng.choice(BEFORE_STATE) + low(t) if rng.random() < 0.6 else t.rstrip(".") + rng.choice(AFTER_STATE)
            return self._say(t, self.kind, rng.randint(1, 99))
        return self._say(t, self.kind)

    def ask(self, rng, but=None):
        """A question for the value, in another wording than `but`."""
        if self.split == "exam":
            return rng.choice([q for q in (self._say(t, self.kind) for t in self._asks) if q != but] or [but])
        t = rng.choice(VAGUE) if self.alone and rng.random() < 0.08 else made_ask(rng) if self._asks is ASK["train"] and rng.random() < 0.5 else rng.choice(self._asks)
        k = rng.random()
        if k < 0.3:
            before = rng.choice(BEFORE_ASK)
            t = before + (low(t) if before[-2] in "," else t)
        if 0.2 < k < 0.42:
            t += rng.choice(AFTER_ASK)
        return self._say(t, rng.choice(self.words), rng.randint(1, 99))


def kinds(split):
    """All kinds of the split: (name, type of value, ways to say it, ways to ask)."""
    nouns = [tuple(x.strip().split(":")) for x in NOUNS[split].split("|")]
    return [(a, t, STATE[split], ASK[split]) for a, t in nouns], [(s[0], t, s, q) for t, s, q in VERBS[split]]


_KINDS = {s: kinds(s) for s in SPLITS}


def third(verb):
    return verb + "es" if verb.endswith(("s", "sh", "ch", "x", "z", "o")) else verb[:-1] + "ies" if verb.endswith("y") and verb[-2] not in "aeou" else verb + "s"


DOES = [("{{e}} {x}s {{v}}.", "What does {{e}} {y}?"), ("{{e}} has to {x} {{v}}.", "What must {{e}} {y}?"), ("{{e}} can {x} {{v}}.", "What is {{e}} able to {y}?"), ("{{e}} will {x} {{v}}.", "What is {{e}} going to {y}?"),
        ("What {{e}} {x}s is {{v}}.", "{{e}} {y}s what?"), ("{{e}} wants to {x} {{v}} soon.", "What does {{e}} want to {y}?"), ("{{v}} is the thing that {{e}} {x}s.", "Which thing does {{e}} {y}?"),
        ("{{e}} does not {x} {{v}}.", "What does {{e}} not {y}?"), ("We let {{e}} {x} {{v}}.", "What did we let {{e}} {y}?"), ("Every week {{e}} {x}s {{v}}.", "Say what {{e}} {y}s."),
        ("{{e}} {x}s P {{v}}.", "P what does {{e}} {y}?"), ("{{e}} was seen to {x} P {{v}}.", "Where, or P what, does {{e}} {y}?"), ("The {x} of {{e}} is {{v}}.", "What is the {y} of {{e}}?"), ("{{e}} is here to {x} {{v}}.", "What is {{e}} here to {y}?"),
        ("It was decided that {{e}} may {x} {{v}}.", "What may {{e}} {y}?"), ("{{e}} never {x}s {{v}}.", "Which thing is it that {{e}} never {y}s?")]


def doing(rng):
    """A kind told by any verb, and asked by the same one or one like it, in any of the ways to ask."""
    group = rng.choice(ALIKE["v"])
    x, same = rng.choice(group), rng.random() < 0.4
    place = rng.choice(("at", "in", "with", "for", "to", "on", "from", "by", "near"))
    form = lambda t, verb: t.replace("P what", f"{place} what").replace(" P ", f" {place} ").replace("{x}s", third(verb)).replace("{y}s", third(verb)).replace("{x}", verb).replace("{y}", verb).replace("{{", "{").replace("}}", "}")
    negative = rng.random() < 0.15
    told = [s for s, _ in DOES if ("not" in s or "never" in s) == negative]
    return "to " + x, rng.choice("wwwnpcl"), [form(rng.choice(told), x)], [form(q, x if same else rng.choice(group)) for _, q in DOES if ("not" in q or "never" in q) == negative], ()


def kind(rng, split):
    """(name, type of value, ways to say it, ways to ask, words for it in questions)"""
    nouns, verbs = _KINDS[split]
    k = rng.random()
    if split == "train" and k < 0.3:           # any word may be what is told: the question must be matched by its words
        group = rng.choice(ALIKE["n"]) if rng.random() < 0.7 else [rng.choice(WORDS)]
        a = rng.choice(group)
        return a, rng.choice("ncwwplodtm"), STATE[split], ASK[split], group
    if split == "train" and k < 0.5:
        return doing(rng)
    return (*rng.choice(verbs if k > (0.75 if split == "train" else 0.65) else nouns), ())


def fact(rng, split, e=None, of=None):
    """A fact about `e` of the kind `of`, both drawn where not given."""
    a, t, states, asks, words = of or kind(rng, split)
    made = Fact(e or entity(rng, split), a, value(rng, split, t), states, asks, words, split)
    made.of = (a, t, states, asks, words)
    return made


def board(rng, split, n, near=0.5, absent_as=(0.45, 0.75)):
    """(n facts that are told, at least two that are not): no two have entity and kind in common, no two a value.

    A share `near` of the facts is a near neighbour of an earlier one: the same of somebody else with a similar name, something else
    of the same one, or the same of anybody. All that are not told are such neighbours, in shares by the edges `absent_as`."""
    told, absent, seen, values = [], [], set(), set()
    while len(told) < n or len(absent) < 2:
        base = rng.choice(told) if told and (rng.random() < near or len(told) >= n) else None
        if base:
            k, (a, b) = rng.random(), absent_as if len(told) >= n else (0.45, 0.75)
            f = fact(rng, split, neighbour(rng, split, base.e), base.of) if k < a else fact(rng, split, base.e) if k < b else fact(rng, split, None, base.of)
        else:
            f = fact(rng, split)
        v = f.v.lower()
        if (f.e.lower(), f.kind) in seen or any(v in x or x in v for x in values):
            continue
        seen.add((f.e.lower(), f.kind))
        values.add(v)
        (told if len(told) < n else absent).append(f)
    for f in told:
        f.alone = sum(x.e.lower() == f.e.lower() for x in told) == 1
    return told, absent
