"""What an output may be required to look like, as a caller states it."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtk.errors import RequestError

MAX_GRAMMAR_CHARACTERS = 1 << 17
_KINDS = ("json", "regex", "choice", "grammar", "structural_tag")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of: a JSON schema, a regular expression, strings to choose from, a grammar in EBNF (GBNF notation,
    starting at `root`), any JSON object, or a structural tag of xgrammar as JSON: free text with parts that follow
    schemas, which whoever writes it has checked. The names are vLLM's.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        given += ["json_object"] if self.json_object else []
        if len(given) != 1:
            raise RequestError(
                "invalid_grammar",
                f"structured_outputs takes exactly one of {', '.join(_KINDS)} and json_object; got "
                f"{', '.join(given) or 'none'}.",
            )
        if self.choice is not None and ("" in self.choice or not self.choice):
            raise RequestError("invalid_grammar", "structured_outputs.choice takes one or more strings, none empty.")
        if self.size > MAX_GRAMMAR_CHARACTERS:
            raise RequestError(
                "invalid_grammar",
                f"structured_outputs.{given[0]} has {self.size} characters; the limit is {MAX_GRAMMAR_CHARACTERS}.",
            )

    @property
    def size(self) -> int:
        """Characters of what is given."""
        if self.json is not None:
            return len(self.schema_text())
        return len(self.regex or self.grammar or self.structural_tag or "".join(self.choice or ()))

    def schema_text(self) -> str:
        """The JSON schema as text. RequestError for a value that is no JSON."""
        if isinstance(self.json, str):
            return self.json
        try:
            return json_text.dumps(self.json)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError("invalid_grammar", f"structured_outputs.json is not a JSON value: {error}.") from error
