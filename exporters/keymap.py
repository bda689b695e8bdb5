"""Renaming checkpoint keys: one ordered list of regular expressions per layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Replacement: TypeAlias = "str | Callable[[re.Match[str]], str]"
Rules: TypeAlias = Sequence[tuple[str, Replacement]]


def rename(key: str, rules: Rules) -> str:
    """Apply every `(pattern, replacement)` of `rules` in order; a pattern matches anywhere unless it is anchored."""
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key
