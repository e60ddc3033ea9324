"""Reads the fact tables once."""

import functools
import json
import os

FACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts")


@functools.lru_cache(maxsize=None)
def table(name):
    """The rows of facts/NAME.json."""
    with open(os.path.join(FACTS, name + ".json"), encoding="utf-8") as f:
        return json.load(f)
