"""Shell commands: which command does a task, and the exact line for small parametrised tasks."""

from .core import Pool, family
from .names import THINGS
from .store import table

TASK = Pool("shell_task", ["Which shell command does this: {t}?", "How do I do this in a shell: {t}?", "Pick the command for: {t}.", "In a terminal, which line is for: {t}?"],
            ["What would you type to do this: {t}?", "Choose the command line that does: {t}.", "Which of these lines does the following: {t}?"])


@family("code", "shell_choice", 1.2)
def shell_choice(c):
    rows = table("shell")
    page, task, cmd = c.choice(rows)
    wrong = {}
    while len(wrong) < 3:
        p, _, other = c.choice(rows)
        if p != page and other != cmd:
            wrong[other] = 1
    t, ask = c.phr(TASK)
    return c.choose(t, ask.format(t=task[0].lower() + task[1:]), cmd, list(wrong), f"That is done with {page}.", "medium")


PURPOSE = Pool("shell_what", ["What does `{c}` do?", "Explain the command `{c}`.", "What is the effect of `{c}`?"],
               ["What happens when I type `{c}`?", "Say what `{c}` is for.", "Which description fits `{c}`?"])


@family("code", "shell_purpose", 1)
def shell_purpose(c):
    rows = table("shell")
    page, task, cmd = c.choice(rows)
    wrong = {}
    while len(wrong) < 3:
        p, other, _ = c.choice(rows)
        if p != page and other != task:
            wrong[other] = 1
    t, ask = c.phr(PURPOSE)
    return c.choose(t, ask.format(c=cmd), task, list(wrong), f"{page}: {task}.", "medium")


# (description, line, other right lines); {a}, {b} are names, {e} an extension, {n} a number
LINES = [
    ("print the first {n} lines of {a}.{e}", "head -n {n} {a}.{e}", ["head -{n} {a}.{e}"]), ("print the last {n} lines of {a}.{e}", "tail -n {n} {a}.{e}", ["tail -{n} {a}.{e}"]),
    ("count the lines of {a}.{e}", "wc -l {a}.{e}", ["wc -l < {a}.{e}"]), ("copy {a}.{e} to {b}.{e}", "cp {a}.{e} {b}.{e}", []),
    ("rename {a}.{e} to {b}.{e}", "mv {a}.{e} {b}.{e}", []), ("delete the file {a}.{e}", "rm {a}.{e}", []), ("make the directory {a}", "mkdir {a}", ["mkdir -p {a}"]),
    ("remove the empty directory {a}", "rmdir {a}", []), ("go to the directory {a}", "cd {a}", ["cd {a}/"]), ("show the content of {a}.{e}", "cat {a}.{e}", []),
    ("find lines with {b} in {a}.{e}", "grep {b} {a}.{e}", ["grep '{b}' {a}.{e}", 'grep "{b}" {a}.{e}']), ("sort the lines of {a}.{e}", "sort {a}.{e}", []),
    ("make {a}.sh executable", "chmod +x {a}.sh", []), ("create the empty file {a}.{e}", "touch {a}.{e}", []), ("wait {n} seconds", "sleep {n}", []),
    ("compress {a}.{e} with gzip", "gzip {a}.{e}", []), ("list the files in the directory {a}", "ls {a}", ["ls {a}/"]), ("show differences between {a}.{e} and {b}.{e}", "diff {a}.{e} {b}.{e}", []),
    ("commit staged changes with the message {a}", 'git commit -m "{a}"', ["git commit -m {a}", "git commit -m '{a}'"]), ("create and switch to the git branch {a}", "git checkout -b {a}", ["git switch -c {a}"]),
    ("stage the file {a}.{e} in git", "git add {a}.{e}", []), ("count from 1 to {n}", "seq {n}", ["seq 1 {n}"]), ("print the SHA-256 of {a}.{e}", "sha256sum {a}.{e}", []),
    ("kill the process {n}", "kill {n}", []), ("show the size of the directory {a}", "du -sh {a}", ["du -s {a}", "du -sh {a}/"]), ("run the Python file {a}.py", "python3 {a}.py", ["python {a}.py"]),
    ("install the Python package {a}", "pip install {a}", ["pip3 install {a}", "python3 -m pip install {a}"]), ("find files named {a}.{e} here", "find . -name {a}.{e}", ["find . -name '{a}.{e}'", 'find . -name "{a}.{e}"']),
    ("print the word {a}", "echo {a}", ["echo '{a}'", 'echo "{a}"']), ("change the permissions of {a}.{e} to {m}", "chmod {m} {a}.{e}", []),
]
LINE = Pool("shell_line", ["Give the shell command to {d}.", "How do I {d} on Linux? Command only.", "Write a shell command to {d}.", "Which command line will {d}?", "Linux command: {d}"],
            ["What do I type to {d}?", "I want to {d}. Give the command.", "One shell line to {d}, please.", "Show me the command to {d}.", "In bash, {d}. Only the line.", "Need a command to {d}."])


@family("code", "shell_line", 2)
def shell_line(c):
    desc, line, also = c.choice(LINES)
    a, b = c.some(THINGS, 2)
    v = {"a": a, "b": b, "e": c.choice(("txt", "csv", "log", "md", "json", "conf", "dat")), "n": c.int(2, 60), "m": c.choice(("600", "644", "700", "755", "640", "400"))}
    t, ask = c.phr(LINE)
    code = line.format(**v)
    return c.item(t, ask.format(d=desc.format(**v)), "", f"```sh\n{code}\n```", {"kind": "code", "value": code, "also": [x.format(**v) for x in also]}, "medium", max_tokens=128)
