"""Reads the fact tables once."""

import functools
import json
import os

from .packed import unpacked

FACTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "facts")


@functools.lru_cache(maxsize=None)
def table(name):
    """The rows of facts/NAME.json.gz."""
    return json.loads(unpacked(os.path.join(FACTS, name + ".json.gz")))
