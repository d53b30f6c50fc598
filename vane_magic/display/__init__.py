"""A card (an answer, its numbered sources, notes, a banner) or a list of checks, as inert HTML or as plain text.

A leaf: it knows nothing of where the text comes from, and trusts none of it.
"""

from vane_magic.display.card import Card, CardSource, live_text
from vane_magic.display.checklist import Check, checklist
from vane_magic.display.marks import Mark, find_marks
from vane_magic.display.text import clean

__all__ = ["Card", "CardSource", "Check", "Mark", "checklist", "clean", "find_marks", "live_text"]
