"""Text for a screen: names made safe to show, and counts."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` without the control characters that a terminal would obey and the halves of characters it cannot show."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


def counted(count: int, noun: str) -> str:
    """`1 picture`, `24 pictures`: a noun whose plural ends in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def one_line(name: str) -> str:
    r"""A name without line breaks: what cannot be shown is written by its escape, such as `\n`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)
