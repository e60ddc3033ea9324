"""Generators of exactly checkable tasks: training data from a seed, and the three exams."""

from . import arithmetic, quantities, problems, lists, code, shell, tools, chat, reading, kine, cyber, research  # noqa: F401 (each registers its families)
from .checks import check
from .core import DOMAINS, FAMILIES, SPLITS, generate

__all__ = ["DOMAINS", "FAMILIES", "SPLITS", "check", "generate"]
