"""Runs the tests of this folder, client by client: count.py CHIMERE OFFICIAL RESULTS. RESULTS, where it is not empty, is
written anew: versions, a date, and how many tests passed, those of the official client among them (from OFFICIAL)."""

import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import unittest

CLIENTS = {
    "langchain-openai": "test_langchain",
    "litellm": "test_litellm",
    "instructor": "test_instructor",
    "pydantic-ai-slim": "test_pydantic_ai",
    "openai-agents": "test_agents",
}


def main():
    daemon, official, results = sys.argv[1:]
    here = pathlib.Path(__file__).parent
    sys.path.insert(0, str(here))
    version = subprocess.run([daemon, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    clients = {}
    if pathlib.Path(official).exists():
        clients["openai, its own API tests"] = json.loads(pathlib.Path(official).read_text())
    failed = False
    for client, module in CLIENTS.items():
        result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromName(module))
        bad = len(result.failures) + len(result.errors)
        failed |= bad > 0 or result.testsRun == 0
        own = {"tests": result.testsRun, "passed": result.testsRun - bad}
        clients[client] = {"version": importlib.metadata.version(client), **own}
    told = {"date": datetime.date.today().isoformat(), "daemon": version, "clients": clients}
    print(json.dumps(told, indent=2))
    if results:
        pathlib.Path(results).write_text(json.dumps(told, indent=2) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
