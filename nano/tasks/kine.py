"""Training and anatomy: exercise facts, muscles and joints, and the arithmetic of sets, repetitions and loads."""

from .arithmetic import _line
from .core import Pool, family
from .names import PEOPLE
from .store import table

MUSCLE = Pool("muscle", ["Which muscle does {x} train?", "What is the main muscle of {x}?", "{x} works which muscle?", "What muscle does the exercise {x} target?", "Main muscle for {x}?",
                         "Tell me the primary muscle of {x}."],
              ["With {x}, which muscle is trained first of all?", "Name the main muscle that {x} works.", "If I do {x}, what muscle gets stronger?",
               "{x}: which muscle is that for?", "Which muscle is the target of {x}?", "What does {x} mostly train?"])
EQUIPMENT = Pool("equipment", ["What equipment does {x} need?", "Which equipment is used for {x}?", "What do I need for {x}?", "Equipment for {x}?"],
                 ["With what equipment is {x} done?", "Which gear must be at hand before I start {x}?", "To do {x}, what should I have?"])
LEVEL = Pool("level", ["What level is {x}?", "Is {x} for beginner, intermediate or expert?", "How hard is {x}?", "Which level does {x} have?"],
             ["For whom is {x}: beginner, intermediate or expert?", "Say the level of {x}.", "{x} is rated at which level?"])
CATEGORY = Pool("category", ["What kind of exercise is {x}?", "Which category does {x} belong to?", "Is {x} strength, stretching, plyometrics or cardio?"],
                ["Name the category of {x}.", "Under which category do you file {x}?", "{x} is an exercise of what kind?"])
FORCE = Pool("force", ["Is {x} a push or a pull exercise?", "Does {x} push or pull?", "{x}: push, pull or static?"],
             ["When I do {x}, which force is at work: push, pull or static?", "Name the force type of {x}.", "What force does {x} use: push, pull or static?"])
MECHANIC = Pool("mechanic", ["Is {x} a compound or an isolation exercise?", "{x}: compound or isolation?", "Does {x} count as compound or isolation?"],
                ["Are many joints at work in {x}? Say compound or isolation.", "State whether {x} is compound or isolation.", "Compound or isolation: what is {x}?"])


def _rows(col):
    return [r for r in table("exercises") if r[col] and r[col] != "other"]


def _fact(c, pool, col, answer, level):
    r = c.choice(_rows(col))
    t, ask = c.phr(pool)
    return c.item(t, ask.format(x=r[0]), "", answer.format(x=r[0], v=r[col]), {"kind": "contains", "any": [r[col]]}, level, max_tokens=64)


@family("kine", "muscle", 3)
def muscle(c):
    return _fact(c, MUSCLE, 1, "{x} mainly trains the {v}.", "medium")


@family("kine", "equipment", 1.5)
def equipment(c):
    return _fact(c, EQUIPMENT, 3, "{x} uses: {v}.", "medium")


@family("kine", "level", 1.2)
def level(c):
    return _fact(c, LEVEL, 2, "{x} is at {v} level.", "hard")


@family("kine", "category", 1.2)
def category(c):
    return _fact(c, CATEGORY, 4, "{x} is a {v} exercise.", "medium")


@family("kine", "force", 0.8)
def force(c):
    return _fact(c, FORCE, 5, "{x} is a {v} exercise.", "medium")


@family("kine", "mechanic", 0.8)
def mechanic(c):
    return _fact(c, MECHANIC, 6, "{x} is a {v} exercise.", "medium")


PICK = Pool("pick_exercise", ["Which of these exercises trains the {m}?", "Pick the exercise for the {m}.", "I want to train my {m}. Which exercise is right?"],
            ["Choose an exercise that works the {m}.", "For the {m}, which exercise do you take?", "Which one is good for the {m}?"])


@family("kine", "pick_exercise", 1.2)
def pick_exercise(c):
    rows = table("exercises")
    r = c.choice(rows)
    wrong = c.sample([x for x in rows if x[1] != r[1]], 3)
    t, ask = c.phr(PICK)
    return c.choose(t, ask.format(m=r[1]), r[0], [x[0] for x in wrong], f"{r[0]} trains the {r[1]}.", "hard")


# Textbook anatomy: (muscle, what it does, where it is); one muscle, one wording
ACTIONS = [
    ("biceps", "bends the elbow", "front of the upper arm"), ("triceps", "straightens the elbow", "back of the upper arm"), ("quadriceps", "straightens the knee", "front of the thigh"),
    ("hamstrings", "bend the knee", "back of the thigh"), ("gastrocnemius", "points the foot down", "back of the lower leg"), ("gluteus maximus", "straightens the hip", "buttock"),
    ("deltoid", "lifts the arm to the side", "shoulder"), ("pectoralis major", "pulls the arm across the chest", "front of the chest"), ("latissimus dorsi", "pulls the arm down and back", "side of the back"),
    ("trapezius", "lifts the shoulder blade", "upper back and neck"), ("rectus abdominis", "bends the trunk forward", "front of the belly"), ("diaphragm", "draws air into the lungs", "under the lungs"),
    ("iliopsoas", "bends the hip", "front of the hip"), ("tibialis anterior", "lifts the foot", "front of the lower leg"), ("gluteus medius", "moves the leg out to the side", "side of the hip"),
    ("masseter", "closes the jaw", "jaw"), ("brachialis", "bends the elbow under the biceps", "deep front of the upper arm"), ("soleus", "points the foot down with the knee bent", "deep calf"),
    ("sternocleidomastoid", "turns the head", "side of the neck"), ("erector spinae", "straightens the spine", "along the spine"), ("supraspinatus", "starts lifting the arm sideways", "top of the shoulder blade"),
    ("subscapularis", "turns the arm inwards", "front of the shoulder blade"), ("infraspinatus", "turns the arm outwards", "back of the shoulder blade"), ("serratus anterior", "pulls the shoulder blade forward", "side of the ribs"),
]
BONES = [
    ("femur", "thigh"), ("tibia", "lower leg, inner side"), ("fibula", "lower leg, outer side"), ("humerus", "upper arm"), ("radius", "forearm, thumb side"), ("ulna", "forearm, little finger side"),
    ("patella", "front of the knee"), ("clavicle", "front of the shoulder"), ("scapula", "back of the shoulder"), ("sternum", "middle of the chest"), ("pelvis", "hip"), ("calcaneus", "heel"),
    ("mandible", "lower jaw"), ("sacrum", "base of the spine"), ("carpals", "wrist"), ("tarsals", "ankle"), ("metacarpals", "palm"), ("phalanges", "fingers and toes"), ("cranium", "head"), ("coccyx", "tail of the spine"),
]
JOINTS = [("shoulder", "ball and socket"), ("hip", "ball and socket"), ("elbow", "hinge"), ("knee", "hinge"), ("thumb base", "saddle"), ("neck between atlas and axis", "pivot"), ("wrist", "condyloid"), ("ankle", "hinge"),
          ("finger middle joint", "hinge"), ("between the carpals", "gliding")]
MOVES = [("bending a joint", "flexion"), ("straightening a joint", "extension"), ("moving a limb away from the middle of the body", "abduction"), ("moving a limb towards the middle of the body", "adduction"),
         ("turning a limb inwards", "internal rotation"), ("turning a limb outwards", "external rotation"), ("turning the palm up", "supination"), ("turning the palm down", "pronation"),
         ("pointing the toes down", "plantar flexion"), ("lifting the toes towards the shin", "dorsiflexion"), ("turning the sole inwards", "inversion"), ("turning the sole outwards", "eversion"),
         ("a muscle shortening under load", "concentric contraction"), ("a muscle lengthening under load", "eccentric contraction"), ("a muscle working without changing length", "isometric contraction")]
COUNTS = [("cervical vertebrae", 7), ("thoracic vertebrae", 12), ("lumbar vertebrae", 5), ("bones in the adult body", 206), ("pairs of ribs", 12), ("muscles in the rotator cuff", 4), ("heads of the quadriceps", 4),
          ("heads of the triceps", 3), ("heads of the biceps", 2), ("hamstring muscles", 3), ("chambers of the heart", 4), ("fused bones of the sacrum", 5), ("carpal bones in one wrist", 8), ("tarsal bones in one foot", 7),
          ("cranial nerves, in pairs", 12)]
A_DOES = Pool("action", ["What does the {m} do?", "What is the job of the {m}?", "Which movement does the {m} make?"],
              ["Say what the {m} does.", "The {m} is there for which movement?", "When the {m} works, what happens?"])
A_WHICH = Pool("action_of", ["Which muscle {a}?", "Name the muscle that {a}.", "What muscle {a}?"], ["It {a}: which muscle is it?", "Find the muscle which {a}.", "The muscle that {a} is called what?"])
A_WHERE = Pool("place", ["Where is the {m}?", "Where in the body is the {m}?", "In which place do you find the {m}?"], ["Show where the {m} sits.", "The {m} is located where?", "Point out the place of the {m}."])
J_TYPE = Pool("joint", ["What type of joint is the {m}?", "Which kind of joint is the {m}?", "The {m} is what type of joint?"], ["Name the joint type of the {m}.", "How is the {m} joint classified?", "Of which type is the joint at the {m}?"])
M_NAME = Pool("movement", ["What is {m} called?", "What is the term for {m}?", "Name the movement: {m}."], ["Which word stands for {m}?", "In anatomy, {m} is named what?", "Give the technical term for {m}."])
HOW_MANY = Pool("how_many", ["How many {m} are there?", "What is the number of {m}?", "How many {m} does a human have?"], ["Give the count of {m}.", "Humans have how many {m}?", "Say how many {m} there are."])


def _held_choice(c, pool, key, right, others, why="", **fmt):
    t, ask = c.phr(pool)
    return c.choose(t, ask.format(**fmt), right, c.sample(sorted(set(others) - {right}), 3), why, "medium")


@family("kine", "anatomy", 2.5)
def anatomy(c):
    k = c.int(0, 5)
    if k == 0:
        m, a, _ = c.choice(ACTIONS)
        return _held_choice(c, A_DOES, m, "it " + a, ["it " + x[1] for x in ACTIONS if x[1] != a], f"The {m} {a}.", m=m)
    if k == 1:
        m, a, _ = c.choice([x for x in ACTIONS if not x[1].startswith(("bend the", "bends the elbow", "points"))])
        t, ask = c.phr(A_WHICH)
        return c.item(t, ask.format(a=a), "", f"The {m} {a}.", {"kind": "contains", "any": [m]}, "medium", max_tokens=64)
    if k == 2:
        m, p = c.choice([(x[0], x[2]) for x in ACTIONS] + BONES)
        t, ask = c.phr(A_WHERE)
        return c.item(t, ask.format(m=m), "", f"Place of the {m}: {p}.", {"kind": "contains", "any": [p]}, "medium", max_tokens=64)
    if k == 3:
        m, j = c.choice(JOINTS)
        t, ask = c.phr(J_TYPE)
        return c.item(t, ask.format(m=m), "", f"It is a {j} joint.", {"kind": "contains", "any": [j]}, "medium", max_tokens=64)
    if k == 4:
        m, w = c.choice(MOVES)
        t, ask = c.phr(M_NAME)
        return c.item(t, ask.format(m=m), "", f"It is called {w}.", {"kind": "contains", "any": [w]}, "medium", max_tokens=64)
    m, n = c.choice(COUNTS)
    t, ask = c.phr(HOW_MANY)
    return c.item(t, ask.format(m=m), "", f"There are {n}.", {"kind": "number", "value": str(n)}, "medium", max_tokens=64)


VOLUME = Pool("volume", ["{n} does {s} sets of {r} reps with {k} kg. What is the total load in kg?", "What is the training volume of {s} x {r} at {k} kg?", "Compute sets times reps times load: {s} sets, {r} reps, {k} kg.",
                         "How many kg are lifted in {s} sets of {r} reps with {k} kg?"],
              ["{n} lifts {k} kg, {r} times in each of {s} sets. How many kg is that in all?", "Total kg moved: {k} kg, {s} sets, {r} reps each?", "A session has {s} sets of {r} reps at {k} kg. Find the volume in kg."])


@family("kine", "volume", 2)
def volume(c):
    def make():
        s, r, k = c.int(2, 6), c.int(3, 15), c.int(4, 60) * c.choice((1, 2))
        return f"vol{s},{r},{k}", (s, r, k)
    s, r, k = c.draw(make)
    a, t1 = _line("*", s, r)
    v, t2 = _line("*", k, a) if a < 100 else _line("*", a, k)
    t, ask = c.phr(VOLUME)
    return c.number(t, ask.format(n=c.of(PEOPLE), s=s, r=r, k=k), v, f"{t1}\n{t2}", "medium", unit="kg")


REPS = Pool("total_reps", ["How many reps are {s} sets of {r}?", "{n} does {s} sets of {r} reps. How many reps in total?", "Total reps of {s} x {r}?"],
            ["Count all reps in {s} sets with {r} each.", "{s} sets, {r} reps in each: how many reps?", "In sum, how many repetitions are {s} times {r}?"])


@family("kine", "total_reps", 1)
def total_reps(c):
    def make():
        s, r = c.int(2, 8), c.int(5, 30)
        return f"reps{s},{r}", (s, r)
    s, r = c.draw(make)
    v, t1 = _line("*", r, s)
    t, ask = c.phr(REPS)
    return c.number(t, ask.format(n=c.of(PEOPLE), s=s, r=r), v, t1, "easy", unit="reps")


PULSE = Pool("max_pulse", ["By the rule 220 minus age, what is the maximum heart rate at age {a}?", "Estimate the maximum pulse of a person aged {a} (220 minus age).", "{n} is {a}. Use 220 - age: what is the maximum heart rate?"],
             ["Take 220 minus age: what maximum heart rate has {n}, aged {a}?", "At {a} years, which maximum pulse does 220 - age give?", "Age {a}: maximum heart rate with the 220 rule?"])


@family("kine", "max_pulse", 0.8)
def max_pulse(c):
    def make():
        a = c.int(16, 89)
        return f"hr{a}", a
    a = c.draw(make)
    v, t1 = _line("-", 220, a)
    t, ask = c.phr(PULSE)
    return c.number(t, ask.format(a=a, n=c.of(PEOPLE)), v, t1, "easy", unit="beats per minute")


ZONE = Pool("load_percent", ["What is {p}% of a {k} kg one-rep maximum?", "{n} can lift {k} kg once. What load is {p}%?", "Training at {p}% of {k} kg: how many kg?"],
            ["The best lift of {n} is {k} kg. How many kg are {p}% of it?", "Load for {p}% with a maximum of {k} kg?", "Take {p}% of the {k} kg maximum."])


@family("kine", "load_percent", 1.2)
def load_percent(c):
    def make():
        p, k = c.int(5, 9) * 10, c.int(4, 24) * 10
        return f"load{p},{k}", (p, k)
    p, k = c.draw(make)
    t, ask = c.phr(ZONE)
    _, s = _line("*", k // 10, p // 10)
    return c.number(t, ask.format(n=c.of(PEOPLE), p=p, k=k), k * p // 100, f"10% of {k} is {k // 10}.\n{s}", "medium", unit="kg")


REST = Pool("session_time", ["{s} sets take {w} seconds each with {r} seconds of rest between sets. How many seconds in total?", "How long are {s} sets of {w} seconds with {r} seconds rest between them?"],
            ["Each of {s} sets lasts {w} seconds, and {r} seconds of rest lie between sets. Total seconds?", "Find the seconds of a block: {s} sets of {w} s, {r} s rest in between.", "With {r} seconds between {s} sets of {w} seconds, how many seconds pass?"])


@family("kine", "session_time", 1)
def session_time(c):
    def make():
        s, w, r = c.int(2, 6), c.int(4, 12) * 5, c.int(2, 12) * 10
        return f"rest{s},{w},{r}", (s, w, r)
    s, w, r = c.draw(make)
    a, t1 = _line("*", w, s)
    b, t2 = _line("*", r, s - 1)
    v, t3 = _line("+", a, b)
    t, ask = c.phr(REST)
    return c.number(t, ask.format(s=s, w=w, r=r), v, f"{t1}\n{s} sets have {s - 1} rests.\n{t2}\n{t3}", "hard", unit="seconds")


PROGRESS = Pool("progression", ["{n} lifts {k} kg and adds {d} kg every week. How much after {w} weeks?", "Starting at {k} kg, adding {d} kg a week, what is the load after {w} weeks?"],
                ["The load is {k} kg and grows by {d} kg a week. What is it {w} weeks later?", "After {w} weeks of plus {d} kg, from {k} kg, what does {n} lift?", "{k} kg now, {d} kg more each week: the load after {w} weeks?"])


@family("kine", "progression", 1)
def progression(c):
    def make():
        k, d, w = c.int(10, 120), c.int(1, 5), c.int(2, 12)
        return f"prog{k},{d},{w}", (k, d, w)
    k, d, w = c.draw(make)
    a, t1 = _line("*", w, d)
    v, t2 = _line("+", k, a)
    t, ask = c.phr(PROGRESS)
    return c.number(t, ask.format(n=c.of(PEOPLE), k=k, d=d, w=w), v, f"{t1}\n{t2}", "medium", unit="kg")


PLAN = Pool("plan_read", ["Plan:\n{p}\nHow many sets of {x} are planned?", "Here is a plan.\n{p}\nHow many sets of {x}?"], ["Look at this plan:\n{p}\nSay the number of sets for {x}.", "{p}\nWhich number of sets does {x} have?", "From the plan below, how many sets of {x} are due?\n{p}"])
PLANR = Pool("plan_reps", ["Plan:\n{p}\nHow many reps in all for {x}?", "Here is a plan.\n{p}\nTotal reps of {x}?"], ["Look at this plan:\n{p}\nAll reps of {x} together?", "{p}\nHow many reps is {x} in sum?", "From the plan below, add up the reps of {x}.\n{p}"])


@family("kine", "plan", 1.2)
def plan(c):
    rows = c.some(table("exercises"), c.int(3, 5)) if not c.train else c.sample(table("exercises"), c.int(3, 5))
    def make():
        xs = [(r[0], c.int(2, 6), c.int(4, 15)) for r in rows]
        return "plan" + str([x[1:] for x in xs]), xs
    xs = c.draw(make)
    x, s, r = c.choice(xs)
    text = "\n".join(f"- {n}: {a} sets of {b}" for n, a, b in xs)
    if c.chance(0.5):
        t, ask = c.phr(PLAN)
        return c.number(t, ask.format(p=text, x=x), s, f"{x}: {s} sets of {r}.", "easy", unit="sets")
    t, ask = c.phr(PLANR)
    v, t1 = _line("*", r, s)
    return c.number(t, ask.format(p=text, x=x), v, f"{x}: {s} sets of {r}.\n{t1}", "medium", unit="reps")
