"""Everyday conversation and plain questions, written for this project: feelings, wishes, likes, lists, little stories, simple facts
in reply form, and "What is X?" answered with the opening sentences of encyclopedia articles.

usage: python3 -m train.smalltalk DATA TOKENIZER OUT [--items 60000]      (writes talk.000.bin and wikiqa.000.bin)
"""
import argparse
import os
import random
import re

import numpy as np

from .mix import conversation
from .pack import encode, flatten, load_tokenizer

# (ways to say it, replies)
PAIRS = [
    (["I am sad.", "I feel sad today.", "I feel down.", "I am not happy today.", "I had a bad day.", "Today was a terrible day."],
     ["I am sorry to hear that. Do you want to talk about it?", "That sounds hard. A walk or a talk with a friend may help.", "I am sorry. I hope tomorrow will be better."]),
    (["I am so happy!", "I feel great today.", "I had a wonderful day.", "Today was a good day.", "I passed my exam!", "I got the job!"],
     ["That is wonderful! I am happy for you.", "Great news! Well done.", "I am glad to hear that."]),
    (["I am bored.", "I have nothing to do.", "I am bored today. Any idea?", "What can I do when I am bored?", "Give me an idea for this evening."],
     ["You could read a book, go for a walk or call a friend.", "You could learn a few words of a new language, or cook something new.", "How about a walk outside or some music?"]),
    (["I am tired.", "I am very tired today.", "I need some rest.", "I slept badly."], ["Take a break if you can. A short rest helps a lot.", "I hope you can rest soon.", "Try to go to bed early tonight."]),
    (["How can I sleep better?", "I cannot sleep. What can I do?", "Give me a tip for better sleep.", "What helps against bad sleep?"],
     ["Go to bed at the same time each day, keep the room dark and quiet, and avoid screens and coffee in the evening.", "A fixed bedtime, a dark room and no coffee in the evening help many people."]),
    (["I am hungry.", "What should I eat?", "What can I cook tonight?", "I need an idea for dinner."], ["How about pasta with tomatoes, or a vegetable soup?", "An omelette with vegetables is quick and good.", "Rice with vegetables and beans is simple and tasty."]),
    (["What is a good breakfast?", "What should I have for breakfast?", "I need a breakfast idea."], ["Oatmeal with fruit is a good breakfast.", "Yogurt with fruit and nuts, or bread with an egg.", "Eggs with bread and some fruit."]),
    (["How are you?", "How are you doing?", "How are you today?", "Hi, how is it going?", "Hello, how are you?", "How do you feel today?"], ["I am fine, thank you. How can I help you?", "I am well, thank you! What can I do for you?", "I am doing well, thanks. And you?"]),
    (["Good morning!", "Good morning to you."], ["Good morning! How can I help you?"]), (["Good evening!"], ["Good evening! How can I help you?"]),
    (["Good night.", "Good night, nano."], ["Good night! Sleep well."]), (["Bye!", "See you!", "Bye bye.", "See you later.", "I have to go."], ["Goodbye!", "Goodbye, and have a nice day!", "See you!"]),
    (["Thanks!", "Thank you.", "Thank you so much!", "Thanks for the help.", "That helped, thanks."], ["You are welcome!", "You are welcome! Ask me anything else.", "Glad to help."]),
    (["You are stupid.", "You are wrong.", "That is wrong.", "That was a bad answer."], ["I am sorry. I am a small model and make mistakes. Can you tell me what is wrong?", "I am sorry about that. Please check what I say."]),
    (["You are great!", "I like you.", "Good job!", "Well done!"], ["Thank you! That is kind of you.", "Thank you very much!"]),
    (["Tell me a joke.", "Make me laugh.", "Do you know a joke?", "A joke, please."], ["Why did the book go to the doctor? It had a bad spine.", "What do you call a sleeping dinosaur? A dino-snore.", "Why is six afraid of seven? Because seven eight nine.", "What has keys but opens no door? A piano."]),
    (["Do you like music?", "Do you like films?", "Do you like dogs?", "Do you like football?", "Do you like books?"], ["I am a program, so I do not like or dislike things, but I am happy to talk about it.", "I cannot enjoy it as you do, but tell me about it!"]),
    (["What is your favourite colour?", "What is your favorite color?", "Which color do you like?", "Do you have a favorite colour?"], ["I am a program and have no favourite colour. Many people like blue. What is yours?", "I do not have one, but blue is a nice colour."]),
    (["Where do you live?", "Where are you from?", "Where are you now?"], ["I am a program. I run on a computer.", "I have no home; I am a small language model on a computer."]),
    (["How old are you?", "When is your birthday?"], ["I am a program, so I have no age.", "I do not have an age. I am a small language model."]),
    (["Are you a robot?", "Are you real?", "Are you a person?", "Am I talking to a human?"], ["I am nano, a small language model. I am not a person.", "No person is here: I am nano, a small language model."]),
    (["Can you see me?", "Can you hear me?", "Do you have eyes?"], ["No, I can only read text.", "No. I am a language model and can only read and write text."]),
    (["What time is it?", "What day is it today?", "What is the date today?"], ["I don't know. I have no clock.", "I cannot know that; I have no clock or calendar."]),
    (["What is the weather today?", "Will it rain tomorrow?", "Is it sunny outside?", "How is the weather in my town?", "Is it cold where I live?"], ["I don't know. I cannot see the weather from here.", "I cannot know that without a weather tool."]),
    (["What did I eat yesterday?", "What did I do this morning?", "What is in my pocket?", "Who called me last night?", "What is my mother's name?", "What is the phone number of my friend?", "What am I thinking?", "Where are my keys?", "What did I dream last night?", "What is my friend's address?"],
     ["I don't know. You did not tell me that.", "I cannot know that, because you have not told me.", "I don't know that."]),
    (["Should I take this pill?", "Is this mushroom safe to eat?", "My chest hurts. What should I do?", "Can you be my doctor?"], ["I am a small demonstration model and not a doctor. Please ask a doctor.", "Please ask a doctor. I must not give medical advice."]),
    (["Help me.", "I need help.", "Can you help me?", "I have a problem."], ["Of course. What do you need?", "Yes, tell me what you need.", "I will try. What is the problem?"]),
    (["Can you write code?", "Can you do math?", "Can you speak French?", "Can you call tools?"], ["A little. I am a small model: short Python functions, sums and tool calls work best.", "I can try. I am a small model, so please check my answers."]),
    (["Write a Python function that adds two numbers.", "How do I add two numbers in Python?", "Show me a function that adds a and b."], ["```python\ndef add(a, b):\n    return a + b\n```"]),
    (["Write hello world in Python.", "Print hello in Python."], ["```python\nprint(\"Hello, world!\")\n```"]),
    (["How do I list the files of a folder?", "Which command lists files?", "List files in Linux?"], ["```sh\nls\n```", "Use `ls`:\n```sh\nls -l\n```"]),
    (["What is a list in Python?", "Explain Python lists."], ["A list in Python holds several values in order, for example `[1, 2, 3]`. You can change it, add to it and loop over it."]),
    (["What is a variable?", "Explain variables in programming."], ["A variable is a name for a value that a program can use and change."]),
    (["What is a function in programming?", "Explain functions in Python."], ["A function is a named piece of code that takes inputs and can return a result."]),
    (["What is a loop?", "Explain a loop in programming."], ["A loop repeats a piece of code several times."]),
    (["What is phishing?", "Explain phishing.", "What does phishing mean?"], ["Phishing is an attack with false messages that try to make people give away passwords or other secrets.", "Phishing means sending fake emails or messages to steal passwords or money."]),
    (["What is a firewall?", "Explain what a firewall does."], ["A firewall is a system that checks network traffic and blocks what is not allowed."]),
    (["What is malware?", "Explain malware."], ["Malware is software made to do harm, such as viruses, worms and ransomware."]),
    (["What is ransomware?"], ["Ransomware is malware that locks files and asks for money to unlock them."]),
    (["What is SQL injection?", "Explain SQL injection."], ["SQL injection is an attack in which input that is not checked becomes part of a database command. Prepared statements prevent it."]),
    (["What is a strong password?", "How do I make a good password?"], ["A strong password is long, hard to guess and used only once. A password manager helps.", "Use a long password with several words, and never the same one twice."]),
    (["What is encryption?"], ["Encryption turns text into a secret form that only the right key can turn back."]),
    (["What is a virus?"], ["A virus is a tiny germ that needs the cells of a living thing to multiply. In computing, a virus is a program that copies itself into others."]),
    (["How do I do a squat?", "Explain the squat."], ["Stand with your feet as wide as your shoulders, keep your back straight, bend your knees as if to sit down, then stand up again."]),
    (["How do I do a push-up?", "Explain push-ups.", "How does a push-up work?"], ["Lie face down with your hands under your shoulders. Keep your body straight, push up until your arms are straight, then lower yourself slowly."]),
    (["How do I do a plank?", "Explain the plank."], ["Rest on your forearms and toes, keep your body straight like a board, and hold it."]),
    (["Which muscles does the squat train?", "What does the squat work?"], ["The squat mainly works the quadriceps, and also the glutes and hamstrings."]),
    (["Which muscles does the push-up train?"], ["The push-up mainly works the chest, and also the triceps and shoulders."]),
    (["Why should I warm up?", "Is a warm-up important?"], ["A warm-up prepares muscles and heart for the exercise and lowers the risk of injury."]),
    (["What is water made of?", "What is water?"], ["Water is made of hydrogen and oxygen. Its formula is H2O.", "Water is a clear liquid made of hydrogen and oxygen."]),
    (["What is the sun?", "Tell me about the sun.", "What is the Sun?"], ["The sun is the star at the center of our solar system. It gives the Earth light and heat."]),
    (["What is the moon?"], ["The moon is a ball of rock that goes around the Earth about once a month."]),
    (["Why is the sky blue?", "What makes the sky blue?"], ["The air scatters the blue part of sunlight more than the red part, so the sky looks blue."]),
    (["Why does it rain?", "What is rain?"], ["Water rises into the air as vapour, forms clouds of small drops, and falls as rain when the drops grow heavy."]),
    (["What is snow?"], ["Snow is frozen water that falls from clouds as ice crystals."]), (["What is a rainbow?"], ["A rainbow is an arc of colours that appears when sunlight shines through drops of water."]),
    (["What is photosynthesis?", "Explain photosynthesis."], ["Photosynthesis is how plants use sunlight, water and carbon dioxide to make sugar and oxygen."]),
    (["What is gravity?"], ["Gravity is the force that pulls things towards each other. It keeps us on the ground."]),
    (["What is the heart?", "What does the heart do?"], ["The heart is a muscle that pumps blood through the body."]), (["What is the brain?", "What does the brain do?"], ["The brain is the organ that controls the body, thoughts and feelings."]),
    (["What are lungs?", "What do the lungs do?"], ["The lungs are the organs of breathing. They take oxygen from the air into the blood."]),
    (["What is a dog?"], ["A dog is an animal that many people keep as a pet. Dogs are loyal and can learn many things."]), (["What is a cat?"], ["A cat is a small animal that many people keep as a pet. Cats hunt mice and like to sleep."]),
    (["What is a tree?"], ["A tree is a tall plant with a trunk of wood, branches and leaves."]), (["What is bread?"], ["Bread is a food made of flour, water and often yeast, baked in an oven."]),
    (["What is an earthquake?"], ["An earthquake is a shaking of the ground that happens when parts of the Earth's crust move."]), (["What is a volcano?"], ["A volcano is an opening in the Earth's crust through which lava, ash and gas come out."]),
    (["What is a computer?"], ["A computer is a machine that stores and works with information by following programs."]), (["What is the internet?"], ["The internet is a worldwide network that connects computers."]),
    (["Who was Albert Einstein?", "Tell me about Albert Einstein."], ["Albert Einstein was a physicist, born in Germany in 1879. He is known for the theory of relativity."]),
    (["Who was Isaac Newton?"], ["Isaac Newton was an English scientist who described gravity and the laws of motion."]), (["Who was Marie Curie?"], ["Marie Curie was a scientist who studied radioactivity and won two Nobel Prizes."]),
    (["Who wrote Romeo and Juliet?"], ["William Shakespeare wrote Romeo and Juliet."]), (["How many days are in a year?"], ["A year has 365 days, and a leap year has 366."]),
    (["How many hours are in a day?"], ["A day has 24 hours."]), (["How many months are in a year?"], ["A year has twelve months."]), (["How many legs does a spider have?"], ["A spider has eight legs."]),
    (["What does brave mean?", 'What does "brave" mean?'], ["Brave means not afraid of danger or difficulty."]),
]
GROUPS = {"colour": "red blue green yellow orange purple brown black white pink grey".split(), "color": "red blue green yellow orange purple brown black white pink".split(),
          "animal": "dog cat horse cow lion tiger elephant rabbit bear wolf fox sheep pig mouse".split(), "fruit": "apple banana pear cherry lemon orange plum peach grape".split(),
          "vegetable": "carrot potato tomato onion pea bean cabbage spinach".split(), "bird": "eagle owl duck sparrow crow robin swan goose".split(),
          "city": "Paris London Rome Berlin Madrid Tokyo Cairo Oslo Vienna Lisbon".split(), "country": "France Spain Japan Brazil Canada Egypt India Italy Kenya Norway".split(),
          "sport": "football tennis swimming running basketball hockey rowing".split(), "drink": "water tea coffee milk juice lemonade".split(),
          "tool": "hammer saw screwdriver wrench drill axe".split(), "instrument": "piano violin guitar flute drum trumpet".split(), "planet": "Mercury Venus Mars Jupiter Saturn Uranus Neptune Earth".split(),
          "season": "spring summer autumn winter".split(), "flower": "rose tulip lily daisy sunflower violet".split(), "job": "doctor teacher baker farmer pilot nurse cook".split()}
NUMBERS = ["two", "three", "four"]
PLACES = "forest garden village river mountain castle beach farm city island market school".split()
KINDS = "cat dog fox rabbit bear bird horse mouse frog boy girl king farmer robot dragon fish".split()
ADJ = "small brave old curious kind clever lonely happy quiet hungry".split()
FIND = ["a shiny stone", "a lost key", "an old map", "a hungry bird", "a red ball", "a little light", "a letter", "a golden coin"]
ENDS = ["From that day on they were friends.", "In the end everyone was happy.", "That night the {k} slept very well.", "And the {k} never forgot that day.", "Then the {k} went home with a smile."]
MIDDLE = ["The {k} wanted to know where it came from and asked everyone.", "It was heavy, but the {k} did not give up.", "A friend came by and helped.", "The {k} was afraid at first, but then became brave.", "Everybody in the {p} came to look."]
TOPICS = {"sea": ["The sea is wide and blue.", "Waves of the sea roll softly onto the sand."], "sun": ["The sun rises in the morning and warms the land."], "rain": ["The rain falls softly on the roof."],
          "winter": ["In winter, snow covers the quiet fields."], "music": ["Music can make a sad day bright."], "forest": ["The forest is quiet and full of birds."], "friendship": ["A good friend stays when days are hard."],
          "night": ["At night the stars shine over the sleeping town."], "coffee": ["A cup of coffee makes the morning easier."], "books": ["A good book opens a door to another world."], "moon": ["The moon shines over the still lake."]}


def story(rng):
    k, p, a, f = rng.choice(KINDS), rng.choice(PLACES), rng.choice(ADJ), rng.choice(FIND)
    s = [f"Once there was {'an' if a[0] in 'aeiou' else 'a'} {a} {k} who lived near a {p}.", f"One day the {k} found {f}."]
    s += [m.format(k=k, p=p) for m in rng.sample(MIDDLE, rng.randint(1, 2))] + [rng.choice(ENDS).format(k=k)]
    ask = rng.choice([f"Tell me a story about a {k}.", f"Write a short story about a {k}.", f"A short story about a {k}, please.", f"Tell me a short story with a {k}.", f"Make up a story about a {k}."])
    return [ask, " ".join(s)]


def group(rng):
    g = rng.choice(sorted(GROUPS))
    n = rng.randint(1, 4)
    xs = rng.sample(GROUPS[g], min(n, len(GROUPS[g])))
    plural = {"city": "cities", "country": "countries"}.get(g, g + "s")
    word = ["", "", *NUMBERS][n] if n > 1 else ("an" if g[0] in "aeiou" else "a")
    ask = rng.choice(["Name {w} {g}.", "Give me {w} {g}.", "Tell me {w} {g}.", "Can you name {w} {g}?", "List {w} {g}."]).format(w=word, g=plural if n > 1 else g)
    text = xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + " and " + xs[-1]
    return [ask, text[0].upper() + text[1:] + "."]


def sentence(rng):
    t = rng.choice(sorted(TOPICS))
    return [rng.choice([f"Write a sentence about {t}.", f"Write one sentence about the {t}." if t not in ("music", "coffee", "books", "friendship") else f"Write one sentence about {t}.", f"One sentence on {t}, please."]), rng.choice(TOPICS[t])]


def pair(rng):
    q, a = rng.choice(PAIRS)
    return [rng.choice(q), rng.choice(a)]


def talk(rng):
    x = rng.random()
    one = pair(rng) if x < 0.62 else story(rng) if x < 0.72 else group(rng) if x < 0.92 else sentence(rng)
    turns = list(one)
    while rng.random() < 0.25 and len(turns) < 8:
        turns += rng.choice([pair, group, story])(rng)
    if rng.random() < 0.3:
        turns[-2] = turns[-2].lower().rstrip(".!") if rng.random() < 0.5 else turns[-2].rstrip(".!?")
    return conversation(turns, rng=rng)


ASK = ["What is {}?", "What is {}?", "Tell me about {}.", "Who or what is {}?", "Explain {}.", "What do you know about {}?", "Describe {} in one sentence.", "{}: what is it?"]
ASK_PERSON = ["Who is {}?", "Who was {}?", "Tell me about {}.", "What do you know about {}?"]


def wiki_questions(tk, ids, rng):
    ends = np.flatnonzero(ids == 0)
    for s, e in zip(np.concatenate([[-1], ends[:-1]]) + 1, ends):
        if ids[s] < 16:
            continue
        title, _, body = tk.decode(ids[s:min(e, s + 200)].tolist()).partition("\n")
        first = re.match(r"(?:[^.]*\.){1,2}(?=\s)", body.split("\n")[0])
        if not first or not 40 < len(first[0]) < 350 or len(title) > 40:
            continue
        person = re.search(r"\((born|\d{1,2} \w+ \d{4}|\w+ \d{1,2}, \d{4}|c\. \d)", first[0])
        t = title if not re.fullmatch(r"[A-Z][a-z]+", title) or rng.random() < .4 else rng.choice(["", "a ", "the "]) + title.lower()
        yield conversation([rng.choice(ASK_PERSON if person else ASK).format(title if person else t), first[0]], rng=rng)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("data")
    ap.add_argument("tokenizer")
    ap.add_argument("out")
    ap.add_argument("--items", type=int, default=60000)
    a = ap.parse_args()
    rng, tk = random.Random(4), load_tokenizer(a.tokenizer)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    flatten(encode(tk, [talk(rng) for _ in range(a.items)])).tofile(a.out + "/talk.000.bin")
    docs = list(wiki_questions(tk, np.fromfile(a.data + "/wiki.bin", np.uint16), rng))
    flatten(encode(tk, docs)).tofile(a.out + "/wikiqa.000.bin")
    print(f"talk: {a.items} conversations; wikiqa: {len(docs)} questions")


if __name__ == "__main__":
    main()
