"""Reduces the public source sets to the few facts that the generators ask about.

Run once as `python3 -m tasks distil --corpus DIR`; the results are small packed JSON files in
`facts/`, kept in the repository so that exams and training data can be made anywhere.
Only sets whose licence allows redistribution with attribution are read
(see facts/README.md).
"""

import collections
import json
import os
import re
import unicodedata

from .packed import write

FACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts")

CONTINENT = {
    "africa": "Africa", "europe": "Europe", "south-america": "South America",
    "central-america-n-caribbean": "North America", "north-america": "North America",
    "australia-oceania": "Oceania", "east-n-southeast-asia": "Asia", "central-asia": "Asia",
    "south-asia": "Asia", "middle-east": "Asia",
}
# Countries on two continents: the question would not have one exact answer.
TWO_CONTINENTS = {"Russia", "Turkey", "Kazakhstan", "Egypt", "Cyprus", "Georgia", "Armenia", "Azerbaijan"}

RENAME = {"Burma": "Myanmar", "Turkey (Turkiye)": "Turkey", "The Dominican": "Dominican Republic", "DRC": "DR Congo",
          "Congo (Brazzaville)": "Congo", "Côte d'Ivoire": "Ivory Coast", "none": ""}
# Where the source speaks of two capitals, abbreviates or says nothing; and countries without one capital.
CAPITAL = {"Moldova": "Chisinau", "Myanmar": "Naypyidaw", "United States": "Washington", "Ivory Coast": "Yamoussoukro"}
NO_CAPITAL = {"Nauru", "Niue", "Cook Islands", "Sri Lanka"}
CURRENCY = {"Thailand": "baht", "Ecuador": "US dollars", "El Salvador": "US dollars", "United States": "US dollars", "Kuwait": "Kuwaiti dinars",
            "Belarus": "Belarusian rubles", "Mongolia": "tugriks", "Panama": "balboas", "Tuvalu": "Australian dollars", "China": "yuan", "Peru": "soles"}
# Words that a small model should not be drilled on, and plurals or verb forms without use as questions.
NO_WORDS = set("""anus bra brothel cocaine feces foreskin genitalia genitals glans hashish heroin hymen penis scrotum semen sperm testicle vagina
vas vulva rectum stays eats liking thinner warmer helping belonging boards quarters everything colours heme spoke stole tails seats""".split())

TLDR_PAGES = """ls cd cp mv rm mkdir rmdir cat less head tail grep find sort uniq wc cut tr sed awk tar gzip gunzip
zip unzip chmod chown ln touch df du ps kill top free uptime whoami hostname date echo pwd curl wget ssh scp rsync
ping ip ss dig nslookup git-add git-commit git-push git-pull git-clone git-status git-log git-diff git-branch
git-checkout git-merge git-stash git-tag git-init docker-run docker-ps docker-build docker-images pip python
npm cargo make diff tee xargs watch crontab systemctl journalctl mount umount id groups passwd history alias
basename dirname file stat md5sum sha256sum base64 openssl nmap tcpdump lsof env export seq sleep split rev
tac nl paste join comm fold column""".split()


def _records(corpus, name, file="data.jsonl"):
    with open(os.path.join(corpus, name, file), encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)


def _ascii(text):
    """The text without accents, as the questions write it."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _plain(text):
    """The text without brackets and notes."""
    return re.sub(r"\s*\(.*?\)", "", text.split(";")[0].split("note:")[0]).strip()


def countries(corpus):
    """Rows [name, capital, continent, currency, adjective, domain, area in sq km, population]."""
    out = []
    for r in _records(corpus, "factbook"):
        f = r["facts"]
        get = lambda end: next((v for k, v in f.items() if k.strip().endswith(end)), "")
        name = get("conventional short form") or get("conventional long form")
        name = RENAME.get(name, name)
        capital = CAPITAL.get(name) or _ascii(_plain(get("Capital/name")))
        if "independence" not in " ".join(f).lower() or "none" in f.get("Government/Independence", "none")[:6]:
            continue
        if not name or name in NO_CAPITAL or len(name) > 28 or "(" in name or not capital or len(capital) > 24 or "," in capital:
            continue
        cur = re.match(r"(?:Currency)?\s*([A-Za-zé' -]+?) \([A-Z]{3}\) per", get("Exchange rates/Currency"))
        adj = get("Nationality/adjective")
        tld = re.match(r"\.[a-z]{2}", get("Internet country code"))
        area = re.match(r"([\d,]+) sq km", get("Geography/Area/total"))
        pop = re.match(r"([\d,]+)", get("Population/total"))
        cont = CONTINENT.get(r["region"]) if name not in TWO_CONTINENTS else None
        cont = "Oceania" if name == "Papua New Guinea" else cont
        money = CURRENCY.get(name) or (cur and cur[1].strip())
        money = "CFA francs" if money and "Financiere" in money else money
        adj = adj.split(" or ")[0]
        tld = tld or (name == "France" and [".fr"])
        out.append([name, capital, cont, money, adj if re.fullmatch(r"[A-Z][A-Za-z ]+", adj) else None,
                    tld and tld[0], area and int(area[1].replace(",", "")), pop and int(pop[1].replace(",", ""))])
    return sorted(out)


def exercises(corpus):
    """Rows [name, primary muscle, level, equipment, category, force, mechanic]."""
    out = []
    for r in _records(corpus, "free-exercise-db"):
        if len(r["primaryMuscles"]) == 1 and len(r["name"]) < 45:
            out.append([r["name"], r["primaryMuscles"][0], r["level"], r["equipment"], r["category"], r["force"], r["mechanic"]])
    return sorted(out)


def techniques(corpus):
    """Rows [id, name, [tactics]] of enterprise ATT&CK techniques, parents only."""
    out = []
    for r in _records(corpus, "mitre-attack-capec"):
        if r["type"] == "attack-pattern" and r["domain"] == "enterprise-attack" and re.fullmatch(r"T\d{4}", r["ext_id"] or ""):
            out.append([r["ext_id"], r["name"], [t.replace("-", " ") for t in r.get("tactics", [])]])
    return sorted(out)


def attack_tools(corpus):
    """Rows [name, "malware" | "tool" | "group"] of well-connected ATT&CK entries."""
    use = collections.Counter(r["src"][1] for r in _records(corpus, "mitre-attack-capec", "relations.jsonl") if r["rel"] == "uses")
    kinds = {"malware": "malware", "tool": "tool", "intrusion-set": "group"}
    rows = {(r["name"], kinds[r["type"]]) for r in _records(corpus, "mitre-attack-capec")
            if r["type"] in kinds and use[r["name"]] >= 25}
    name = collections.Counter(x[0] for x in rows)
    return sorted(list(x) for x in rows if name[x[0]] == 1)


def exploited(corpus):
    """Rows [vendor, product] of the known exploited vulnerabilities, one vendor a product."""
    who = collections.defaultdict(set)
    n = collections.Counter()
    for r in _records(corpus, "cisa-kev"):
        product, vendor = r["product"].strip(), r["vendorProject"].strip()
        who[product].add(vendor)
        n[product] += 1
    out = []
    for product, vendors in who.items():
        v = next(iter(vendors))
        if len(vendors) == 1 and v != "WordPress" and len(product) < 32 and v.lower() not in product.lower() and product.lower() not in v.lower() \
                and not re.search(r"multiple|product|devices|router|server$", product.lower()):
            out.append([v, product, n[product]])
    return sorted(out)


def words(corpus):
    """Rows [word, category, definition]: common nouns of five plain categories."""
    seen = collections.Counter()
    for i, r in enumerate(_records(corpus, "simplewiki")):
        if i >= 12000:
            break
        seen.update(re.findall(r"\b[a-z]{3,12}\b", r["text"][:3000]))
    senses = collections.defaultdict(list)
    for r in _records(corpus, "wordnet"):
        for k, m in enumerate(r.get("members") or []):
            senses[m].append((r["file"], k, r["def"]))
    cats = {"noun.animal": "animal", "noun.plant": "plant", "noun.food": "food", "noun.body": "body part",
            "noun.artifact": "artifact", "noun.substance": "substance", "noun.feeling": "feeling"}
    out = []
    for w, ss in senses.items():
        files = {s[0] for s in ss}
        if len(files) == 1 and seen[w] >= 8 and ss[0][0] in cats and re.fullmatch(r"[a-z]{3,12}", w):
            d = re.sub(r"^\(.*?\)\s*", "", ss[0][2]).split(";")[0].strip()
            if 15 < len(d) < 90 and w not in d:
                out.append([w, cats[ss[0][0]], d])
    taken = collections.Counter(r[2] for r in out)
    return sorted(r for r in out if taken[r[2]] == 1 and r[0] not in NO_WORDS)


def shell(corpus):
    """Rows [page, task, command line] of everyday shell commands."""
    keep, out = set(TLDR_PAGES), []
    for r in _records(corpus, "tldr-pages"):
        if r["lang"] != "en" or r["platform"] not in ("common", "linux") or r["page"] not in keep:
            continue
        for task, cmd in re.findall(r"^- (.*?):\n\n`(.*?)`$", r["md"], re.M)[:5]:
            cmd = re.sub(r"\{\{\[(\S+?)\|(\S+?)\]\}\}", r"\2", cmd)
            cmd = re.sub(r"\{\{|\}\}", "", cmd)
            if len(cmd) < 60 and len(task) < 90 and "\n" not in cmd:
                out.append([r["page"].replace("-", " ") if r["page"].startswith(("git-", "docker-")) else r["page"],
                            re.sub(r"[\[\]]", "", task), cmd])
    return sorted(out)


def run(corpus):
    """Writes every table to facts/NAME.json.gz, one row a line."""
    os.makedirs(FACTS, exist_ok=True)
    for make in (countries, exercises, techniques, attack_tools, exploited, words, shell):
        rows = make(corpus)
        lines = ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows)
        write(os.path.join(FACTS, make.__name__ + ".json.gz"), "[\n" + lines + "\n]\n")
        print(make.__name__, len(rows))
