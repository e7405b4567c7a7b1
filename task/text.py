"""Make text from outside safe to print, and name the place where files are written."""

import logging
import unicodedata

logger = logging.getLogger("flwr")  # in another Flower app these lines appear among Flower's own

KEPT = frozenset("\n\t")
# Characters that change the direction of writing; others of their category join letters of some scripts.
TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
UNSEEN = frozenset({"Cc", "Cs"})  # control characters; halves of a character, which cannot be encoded


def plain(text: str) -> str:
    """Return a text without terminal control characters; they become question marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in KEPT or _shown(c) else "?" for c in text)


def _shown(letter: str) -> bool:
    return letter not in TURNS and unicodedata.category(letter) not in UNSEEN
