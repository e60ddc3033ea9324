"""Security: ATT&CK, exploited products, OWASP, ports, hashes, subnets, log lines and safe choices."""

from .core import SPLITS, Pool, family
from .names import PEOPLE, THINGS
from .store import table

T_ID = Pool("technique_id", ["What is the ATT&CK id of {x}?", "Which ATT&CK technique id has {x}?", "Give the technique id for {x}.", "ATT&CK id of {x}?"],
            ["Under which id does ATT&CK list {x}?", "Name the technique number of {x}.", "{x} has what id in ATT&CK?"])
T_NAME = Pool("technique_name", ["What is ATT&CK technique {i}?", "Which technique is {i}?", "What does {i} stand for in ATT&CK?", "Name the technique {i}."],
              ["Under {i}, ATT&CK describes which technique?", "Say the name of {i}.", "I read {i} in a report. Which technique is it?"])
T_TACTIC = Pool("technique_tactic", ["Which ATT&CK tactic does {x} belong to?", "What is the tactic of {x}?", "{x} serves which tactic?"],
                ["Name a tactic of {x}.", "Under which tactic is {x} filed?", "For what tactic do attackers use {x}?"])


@family("cyber", "technique_id", 1.5)
def technique_id(c):
    i, x, _ = c.choice(table("techniques"))
    t, ask = c.phr(T_ID)
    return c.item(t, ask.format(x=x), "", f"{x} is {i}.", {"kind": "contains", "any": [i]}, "medium", max_tokens=64)


@family("cyber", "technique_name", 1.5)
def technique_name(c):
    i, x, _ = c.choice(table("techniques"))
    t, ask = c.phr(T_NAME)
    return c.item(t, ask.format(i=i), "", f"{i} is {x}.", {"kind": "contains", "any": [x]}, "medium", max_tokens=64)


@family("cyber", "technique_tactic", 1.5)
def technique_tactic(c):
    i, x, tactics = c.choice([r for r in table("techniques") if r[2]])
    t, ask = c.phr(T_TACTIC)
    said = " and ".join(tactics)
    return c.item(t, ask.format(x=x), "", f"{x} belongs to {said}.", {"kind": "contains", "any": list(tactics)}, "medium", max_tokens=64)


WHAT_IS = Pool("threat_kind", ["Is {x} a malware, a tool or a group in ATT&CK?", "What kind of ATT&CK entry is {x}: malware, tool or group?", "{x}: malware, tool or group?"],
               ["In ATT&CK, does {x} name a malware, a tool or a group?", "Say whether {x} is malware, tool or group.", "How is {x} listed: as malware, tool or group?"])


@family("cyber", "threat_kind", 0.8)
def threat_kind(c):
    x, k = c.choice(table("attack_tools"))
    t, ask = c.phr(WHAT_IS)
    return c.item(t, ask.format(x=x), "", f"{x} is a {k}.", {"kind": "contains", "any": [k]}, "medium", max_tokens=48)


VENDOR = Pool("vendor", ["Which vendor makes {x}, listed as exploited?", "Who is the vendor of {x}?", "{x} is a product of which vendor?", "Name the vendor of {x}."],
              ["By which company is {x} made?", "From what vendor comes {x}?", "In the exploited list, {x} belongs to which vendor?"])


@family("cyber", "vendor", 1.2)
def vendor(c):
    v, x, _ = c.choice(table("exploited"))
    t, ask = c.phr(VENDOR)
    return c.item(t, ask.format(x=x), "", f"The vendor is {v}.", {"kind": "contains", "any": [v]}, "hard", max_tokens=48)


PORTS = [("FTP", 21), ("SSH", 22), ("Telnet", 23), ("SMTP", 25), ("DNS", 53), ("TFTP", 69), ("HTTP", 80), ("Kerberos", 88), ("POP3", 110), ("NTP", 123), ("NetBIOS session", 139), ("IMAP", 143), ("SNMP", 161),
         ("LDAP", 389), ("HTTPS", 443), ("SMB", 445), ("syslog", 514), ("IMAPS", 993), ("LDAPS", 636), ("POP3S", 995), ("MySQL", 3306), ("RDP", 3389), ("PostgreSQL", 5432), ("VNC", 5900), ("Redis", 6379), ("MongoDB", 27017),
         ("Elasticsearch", 9200), ("Microsoft SQL Server", 1433), ("Oracle database", 1521), ("MQTT", 1883), ("Docker daemon", 2375), ("Memcached", 11211), ("WinRM", 5985), ("SIP", 5060), ("BGP", 179), ("rsync", 873)]
PORT = Pool("port", ["Which port does {x} use?", "What is the default port of {x}?", "{x} runs on which port?", "Port number of {x}?"], ["On what port would I find {x}?", "Name the standard port for {x}.", "A scan looks for {x}. Which port?"])
SERVICE = Pool("service", ["Which service uses port {p}?", "What runs on port {p} by default?", "Port {p} is for which service?"], ["A scan finds port {p} open. Which service is likely?", "Name the service behind port {p}.", "For what is port {p} the standard?"])


@family("cyber", "port", 1.2)
def port(c):
    x, p = c.choice(PORTS)
    if c.chance(0.5):
        t, ask = c.phr(PORT)
        return c.item(t, ask.format(x=x), "", f"{x} uses port {p}.", {"kind": "number", "value": str(p)}, "easy", max_tokens=48)
    t, ask = c.phr(SERVICE)
    return c.item(t, ask.format(p=p), "", f"Port {p} is {x}.", {"kind": "contains", "any": [x]}, "easy", max_tokens=48)


HASHES = [("MD5", 128), ("SHA-1", 160), ("SHA-224", 224), ("SHA-256", 256), ("SHA-384", 384), ("SHA-512", 512), ("CRC32", 32), ("RIPEMD-160", 160), ("BLAKE2s", 256), ("BLAKE2b", 512), ("SHA3-256", 256), ("SHA3-512", 512)]
H_LEN = Pool("hash_length", ["How many {u} does a {x} digest have?", "What is the length of {x} in {u}?", "{x}: how many {u}?"], ["Give the size of a {x} hash in {u}.", "In {u}, how long is {x}?", "A {x} value is how many {u} long?"])


@family("cyber", "hash_length", 0.8)
def hash_length(c):
    x, b = c.choice(HASHES)
    u, k = c.choice((("bits", 1), ("bytes", 8), ("hexadecimal digits", 4)))
    t, ask = c.phr(H_LEN)
    think = f"{x} has {b} bits." + (f" {b} / {k} = {b // k}." if k > 1 else "")
    return c.item(t, ask.format(x=x, u=u), think, f"{x} has {b // k} {u}.", {"kind": "contains", "any": [f"{b // k} {u}"]}, "easy", max_tokens=80)


HEX = "0123456789abcdef"
H_KIND = Pool("hash_kind", ["Which hash could this be: {h}?", "What kind of hash is {h}?", "Identify this hash by its length: {h}"], ["By its length, which hash is {h}?", "Name the hash function behind {h}.", "I found {h}. MD5, SHA-1 or SHA-256?"])


@family("cyber", "hash_kind", 0.8)
def hash_kind(c):
    name, n = c.choice((("MD5", 32), ("SHA-1", 40), ("SHA-256", 64)))
    h = "".join(c.choice(HEX) for _ in range(n))
    t, ask = c.phr(H_KIND)
    lines = " ".join(h[i:i + 8] for i in range(0, n, 8))
    return c.item(t, ask.format(h=h), f"{lines}: {n // 8} groups of 8 make {n} digits.", f"It is {name}.", {"kind": "contains", "any": [name], "none": [x for x in ("MD5", "SHA-1", "SHA-256") if x != name]}, "hard", max_tokens=160)


OWASP = [("A01", "Broken Access Control", ["a user opens another user's invoice by changing the id in the address", "a normal user calls the admin page and it works", "an API does not check who owns the record", "the role is taken from a cookie that the user can edit"]),
         ("A02", "Cryptographic Failures", ["passwords are stored with MD5", "card numbers are sent over plain HTTP", "a secret key is hard-coded and weak", "an old cipher protects the backups"]),
         ("A03", "Injection", ["a login form puts text straight into an SQL query", "a comment with a script tag runs in other browsers", "a file name is passed to a shell unescaped", "a search box is pasted into an LDAP filter"]),
         ("A04", "Insecure Design", ["the design has no limit for booking seats", "password recovery asks for a pet's name by design", "no threat model was made for the payment flow", "the shop lets bots buy all the stock because nobody planned for it"]),
         ("A05", "Security Misconfiguration", ["the default admin password was never changed", "directory listing is on in production", "stack traces are shown to users", "a storage bucket is public by mistake"]),
         ("A06", "Vulnerable and Outdated Components", ["the site runs a library with a known hole", "the framework has not been updated for years", "an unsupported operating system serves the site", "nobody tracks the versions of dependencies"]),
         ("A07", "Identification and Authentication Failures", ["the login allows endless password guesses", "the session id stays the same after login", "weak passwords such as 1234 are accepted", "sessions never expire"]),
         ("A08", "Software and Data Integrity Failures", ["updates are installed without checking the signature", "the build pipeline runs unsigned plugins", "untrusted data is deserialised", "a script from a foreign server is loaded without an integrity hash"]),
         ("A09", "Security Logging and Monitoring Failures", ["failed logins are not recorded", "nobody is warned of an attack that lasts for days", "logs are kept only on the attacked host", "alerts have no threshold"]),
         ("A10", "Server-Side Request Forgery", ["a form makes the server fetch any address, also internal ones", "the server downloads an image from a user's address without a check", "a webhook can be pointed at the cloud metadata service", "a preview service opens links on the internal network"])]
O_CASE = Pool("owasp_case", ["Which OWASP Top 10 (2021) category fits: {s}?", "Name the OWASP category: {s}.", "Case: {s}. Which OWASP Top 10 category is it?"],
              ["Under which OWASP 2021 risk does this fall: {s}?", "In review we saw that {s}. Which OWASP category?", "Sort this into the OWASP Top 10 of 2021: {s}."])
O_ID = Pool("owasp_id", ["What is OWASP {i}:2021?", "Which risk is {i} in the OWASP Top 10 of 2021?", "Name OWASP category {i}."], ["What does {i} mean in the 2021 OWASP Top 10?", "OWASP 2021: which risk has number {i}?", "Say the name of OWASP {i}."])


@family("cyber", "owasp", 1.5)
def owasp(c):
    i, name, cases = c.choice(OWASP)
    if c.chance(0.3):
        t, ask = c.phr(O_ID)
        return c.item(t, ask.format(i=i), "", f"{i} is {name}.", {"kind": "contains", "any": [name]}, "easy", max_tokens=64)
    t, ask = c.phr(O_CASE)
    s = c.choice(cases)
    if c.chance(0.5):
        return c.choose(t, ask.format(s=s), name, c.sample([o[1] for o in OWASP if o[1] != name], 3), f"This is {i}, {name}.", "medium")
    return c.item(t, ask.format(s=s), "", f"{i} {name}.", {"kind": "contains", "any": [name]}, "medium", max_tokens=64)


SAFE = [("header that stops a page from being framed", "X-Frame-Options", ["Content-Length", "Accept", "ETag"]), ("header that forces HTTPS in later visits", "Strict-Transport-Security", ["Cache-Control", "Location", "Vary"]),
        ("header that limits where scripts may come from", "Content-Security-Policy", ["Content-Type", "User-Agent", "Expires"]), ("header that stops guessing of content types", "X-Content-Type-Options", ["Accept-Encoding", "Host", "Age"]),
        ("cookie flag that hides the cookie from scripts", "HttpOnly", ["Path", "Domain", "Max-Age"]), ("cookie flag that sends the cookie over HTTPS only", "Secure", ["Path", "Expires", "Domain"]), ("cookie flag against cross-site requests", "SameSite", ["Max-Age", "Path", "Version"]),
        ("cipher that is safe today", "AES-256-GCM", ["DES", "RC4", "3DES"]), ("way to store passwords", "Argon2id", ["MD5", "SHA-1", "Base64"]), ("hash that still resists collisions", "SHA-256", ["MD5", "SHA-1", "CRC32"]), ("newest TLS version", "TLS 1.3", ["SSL 3.0", "TLS 1.0", "TLS 1.1"]),
        ("secure replacement for Telnet", "SSH", ["FTP", "HTTP", "TFTP"]), ("defence against SQL injection", "prepared statements", ["longer table names", "a faster server", "a hidden form field"]), ("strongest second factor", "hardware security key", ["SMS code", "secret question", "email code"]),
        ("stream cipher of modern TLS", "ChaCha20-Poly1305", ["RC4", "DES-CBC", "NULL"]), ("mode of AES that also authenticates", "GCM", ["ECB", "CBC", "CTR"]), ("file permission for a private key", "600", ["777", "644", "666"]), ("safe RSA key length", "3072 bits", ["512 bits", "768 bits", "1024 bits"]),
        ("record that lists who may send mail for a domain", "SPF", ["MX", "CNAME", "PTR"]), ("secure form of DNS answers", "DNSSEC", ["DHCP", "NAT", "ARP"]), ("protocol to share files that must not face the internet", "SMB", ["HTTPS", "SSH", "DNS over TLS"]),
        ("key exchange with forward secrecy", "ECDHE", ["static RSA", "plain text", "ROT13"]), ("control against brute force", "rate limiting", ["bigger logo", "gzip", "HTTP caching"]), ("first step when a key leaks", "revoke the key", ["wait a week", "rename the file", "restart the laptop"])]
S_PICK = Pool("safe_choice", ["Which one is the {q}?", "Choose the {q}.", "What is the {q}?"], ["Only one line names the {q}. Which?", "I am looking for the {q}. Point to it.", "Somebody asks for the {q}. What do you say?"])


@family("cyber", "safe_choice", 1.2)
def safe_choice(c):
    q, right, wrong = c.choice(SAFE)
    t, ask = c.phr(S_PICK)
    return c.choose(t, ask.format(q=q), right, wrong, f"The {q} is {right}.", "easy")


HOSTS = Pool("subnet_hosts", ["How many usable hosts are in a /{p} network?", "How many host addresses does a /{p} subnet offer?", "Usable addresses of {n}/{p}?"], ["For {n}/{p}, count the usable hosts.", "A network {n}/{p} has room for how many hosts?", "What number of hosts fits in {n}/{p}?"])
SIZE = Pool("subnet_size", ["How many addresses has a /{p} network?", "What is the size of a /{p} block in addresses?", "Number of addresses in {n}/{p}?"], ["For {n}/{p}, count all addresses.", "The block {n}/{p} spans how many addresses?", "All in all, how many addresses are in {n}/{p}?"])


def _net(c):
    return f"10.{c.int(0, 255)}.{c.int(0, 255)}.0"


@family("cyber", "subnet_size", 1)
def subnet_size(c):
    p = c.int(20, 30)
    b = 32 - p
    n = 2 ** b
    net = c.draw(lambda: (lambda x: ("net" + x, x))(_net(c)))
    usable = c.chance(0.5)
    t, ask = c.phr(HOSTS if usable else SIZE)
    think = f"32 - {p} = {b} host bits. 2^{b} = {n}." + (f" Without network and broadcast: {n} - 2 = {n - 2}." if usable else "")
    return c.number(t, ask.format(p=p, n=net), n - 2 if usable else n, think, "medium")


MASK = Pool("mask", ["What is the subnet mask of /{p}?", "Write /{p} as a subnet mask.", "{n}/{p}: which mask?"], ["Give the dotted mask for {n}/{p}.", "Which subnet mask belongs to {n}/{p}?", "Express the prefix of {n}/{p} as a mask."])


@family("cyber", "subnet_mask", 0.8)
def subnet_mask(c):
    p = c.int(8, 30)
    v = ".".join(str((0xFFFFFFFF << (32 - p) >> s) & 255) for s in (24, 16, 8, 0))
    t, ask = c.phr(MASK)
    full, rest = divmod(p, 8)
    think = f"{p} = {full} * 8 + {rest}: {full} times 255" + (f", then {rest} bits give {256 - 2 ** (8 - rest)}" if rest else "") + ", the others 0."
    net = c.draw(lambda: (lambda x: ("net" + x, x))(_net(c)))
    return c.item(t, ask.format(p=p, n=net), think, f"{v}", {"kind": "contains", "any": [v]}, "medium")


INNET = Pool("in_subnet", ["Is {a} inside {n}/{p}?", "Does {n}/{p} contain {a}?", "Does the address {a} belong to {n}/{p}?"], ["Check if {a} lies within {n}/{p}.", "Is {a} part of the network {n}/{p}?", "Would {n}/{p} cover {a}?"])


@family("cyber", "in_subnet", 1)
def in_subnet(c):
    def make():
        p = c.int(25, 29) if c.chance(0.7) else 24
        size = 2 ** (32 - p)
        base = c.int(0, 256 // size - 1) * size
        pre = f"192.168.{c.int(0, 255)}"
        if c.chance(0.5):
            h = base + c.int(0, size - 1)
            pre2 = pre
        else:
            h, pre2 = c.int(0, 255), pre if c.chance(0.7) else f"192.168.{c.int(0, 255)}"
        return f"in{pre}{base}{p}{pre2}{h}", (pre, base, p, size, pre2, h)
    pre, base, p, size, pre2, h = c.draw(make)
    ok = pre == pre2 and base <= h < base + size
    think = f"/{p} has {size} addresses: {pre}.{base} to {pre}.{base + size - 1}. " + \
        (f"{h} is {'inside' if ok else 'outside'} {base} to {base + size - 1}." if pre == pre2 else f"{pre2} is not {pre}.")
    t, ask = c.phr(INNET)
    return c.item(t, ask.format(a=f"{pre2}.{h}", n=f"{pre}.{base}", p=p), think, "Yes." if ok else "No.", {"kind": "exact", "value": "Yes" if ok else "No"}, "hard", max_tokens=128)


PRIVATE = Pool("private_ip", ["Is {a} a private address?", "Is the address {a} private or public?", "{a}: private or public?"], ["Does {a} belong to a private range?", "State if {a} is private or public.", "Public or private: {a}?"])


@family("cyber", "private_ip", 0.8)
def private_ip(c):
    def make():
        k = c.int(0, 5)
        x, y = c.int(0, 255), c.int(1, 254)
        b = c.int(0, 255)
        a = (f"10.{b}.{x}.{y}", f"192.168.{x}.{y}", f"172.{c.int(16, 31)}.{x}.{y}", f"172.{c.choice((8, 12, 14, 32, 33, 40, 80))}.{x}.{y}", f"192.{c.choice((10, 12, 100, 160, 167, 169))}.{x}.{y}", f"{c.int(11, 126)}.{b}.{x}.{y}")[k]
        return "ip" + a, a
    a = c.draw(make)
    o = [int(x) for x in a.split(".")]
    ok = o[0] == 10 or o[:2] == [192, 168] or (o[0] == 172 and 16 <= o[1] <= 31)
    why = "10.x is private" if o[0] == 10 else f"172.{o[1]} is {'in' if ok else 'not in'} 172.16 to 172.31" if o[0] == 172 else f"192.{o[1]} is {'' if ok else 'not '}192.168" if o[0] == 192 else f"{o[0]} is no private start"
    v = "private" if ok else "public"
    t, ask = c.phr(PRIVATE)
    return c.item(t, ask.format(a=a), why + ".", f"{a} is {v}.", {"kind": "contains", "any": [v], "none": ["public" if ok else "private"]}, "medium", max_tokens=80)


L_ASK = {
    "ip": (["Which address failed to log in?", "From which IP came the failed login?", "Which IP address is the attacker?"], ["Name the address behind the failed login.", "What IP tried and failed?", "The failed attempt came from where?"]),
    "user": (["Which user name was tried?", "Whose login failed?", "Which account was attacked?"], ["Name the account in the failed line.", "Which login name was used in the failure?", "The failed attempt was for whom?"]),
    "count": (["How many failed logins are there?", "Count the failed logins.", "How many attempts failed?"], ["Say how many lines are failures.", "What is the number of failed attempts?", "Failures in this log: how many?"]),
    "status": (["What was the status code of the request to {p}?", "Which HTTP status did {p} get?", "Status code for {p}?"], ["The request to {p} ended with which status?", "Name the code returned for {p}.", "With what code was {p} answered?"]),
}


def _ask(c, key):
    pool = L_ASK[key]
    if c.train:
        i = c.int(0, len(pool[0]) - 1)
        return f"log.{key}.t{i}", pool[0][i]
    i = SPLITS[1:].index(c.split)
    return f"log.{key}.h{i}", pool[1][i]


@family("cyber", "log_reading", 1.5)
def log_reading(c):
    host, n = c.of(THINGS), c.int(3, 6)
    if c.chance(0.3):
        paths = ["/" + w for w in c.some(THINGS, n)]
        codes = [c.choice((200, 201, 204, 301, 302, 304, 400, 401, 403, 404, 429, 500, 502, 503)) for _ in paths]
        lines = [f'{_ip(c)} - "{c.choice(("GET", "POST"))} {p} HTTP/1.1" {s} {c.int(100, 9000)}' for p, s in zip(paths, codes)]
        i = c.int(0, n - 1)
        t, ask = _ask(c, "status")
        return c.item(t, "\n".join(lines) + "\n" + ask.format(p=paths[i]), f"Line {i + 1} has {paths[i]} with {codes[i]}.", f"The status was {codes[i]}.", {"kind": "number", "value": str(codes[i])}, "easy", max_tokens=80)
    key = c.choice(("ip", "user", "count"))
    bad = {c.int(0, n - 1)} if key != "count" else {i for i in range(n) if c.chance(0.5)}
    lines, who = [], []
    m = c.int(0, 30)
    for i in range(n):
        u, ip = c.of(PEOPLE).lower(), _ip(c)
        m += c.int(0, 4)
        who.append((u, ip))
        lines.append(f"{9 + m // 60:02d}:{m % 60:02d}:{c.int(0, 59):02d} {host} sshd[{c.int(300, 9000)}]: {'Failed' if i in bad else 'Accepted'} password for {u} from {ip} port {c.int(20000, 60000)}")
    t, ask = _ask(c, key)
    if key == "count":
        think = ", ".join(f"{i + 1} {'failed' if i in bad else 'accepted'}" for i in range(n)) + "."
        return c.item(t, "\n".join(lines) + "\n" + ask, think, f"There are {len(bad)} failed logins.", {"kind": "number", "value": str(len(bad))}, "medium", max_tokens=96)
    u, ip = who[min(bad)]
    v = ip if key == "ip" else u
    return c.item(t, "\n".join(lines) + "\n" + ask, f"Line {min(bad) + 1} says Failed password for {u} from {ip}.", f"It was {v}.", {"kind": "contains", "any": [v]}, "easy", max_tokens=96)


def _ip(c):
    return c.draw(lambda: (lambda x: ("ip" + x, x))(f"{c.int(11, 220)}.{c.int(0, 255)}.{c.int(0, 255)}.{c.int(1, 254)}"))


SEV = Pool("cvss", ["What severity has a CVSS v3 score of {s}?", "CVSS {s}: which severity?", "Name the severity of CVSS v3 score {s}."], ["Rate a CVSS v3 score of {s} in words.", "How severe is CVSS {s}?", "A hole scores {s} in CVSS v3. Which severity is that?"])


@family("cyber", "cvss", 0.8)
def cvss(c):
    s = c.int(1, 100)
    v, rng = ("low", "0.1 to 3.9") if s < 40 else ("medium", "4.0 to 6.9") if s < 70 else ("high", "7.0 to 8.9") if s < 90 else ("critical", "9.0 to 10.0")
    t, ask = c.phr(SEV)
    return c.item(t, ask.format(s=f"{s / 10:.1f}"), f"{s / 10:.1f} lies in {rng}: {v}.", f"The severity is {v}.", {"kind": "contains", "any": [v]}, "easy", max_tokens=80)
