"""Tool calls out of an output as it grows: the text around them, and each call as soon as its name is known."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from vtk.server.openai.tools import ToolPlan


@dataclass(frozen=True)
class CallPart:
    """What a piece of output adds to call `index`; `name` and `id` come with its first part."""

    index: int
    arguments: str
    name: str | None = None
    id: str | None = None


Part: TypeAlias = "str | CallPart"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_FIRST_KEY = re.compile(r'\s*\{\s*"([^"\\]*)"')
_CALL_KEYS = {"name", "arguments", "parameters", "type", "id"}


class JsonScanner:
    """Follows the brackets of JSON through pieces of text; `depth` counts those that are open."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._in_string = False
        self._escaped = False

    def until(self, text: str, depth: int) -> int | None:
        """Index after the character that closes down to `depth`; None if the text ends before."""
        for i, char in enumerate(text):
            if self._step(char) and self.depth == depth:
                return i + 1
        return None

    def _step(self, char: str) -> bool:
        """True if the character closed a bracket."""
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
            return True
        return False


class ToolReader:
    """Reads one output. What looks like a call and is none of the request's functions stays text.

    A whole output may be pushed at once: the parts say the same as those of its pieces.
    """

    def __init__(self, plan: ToolPlan) -> None:
        self._plan = plan
        self._text = ""  # not decided yet
        self._scanner = JsonScanner()
        self._unscanned = 0
        self._state: Callable[[], list[Part] | None] = self._states[plan.style]
        self.num_calls = 0

    @property
    def is_plain(self) -> bool:
        """No tools: every text is content, at once."""
        return self._plan.style == "none"

    def push(self, text: str) -> list[Part]:
        """The parts that this text completes."""
        self._text += text
        parts: list[Part] = []
        while (more := self._state()) is not None:
            parts += more
        return self._merged(parts)

    def finish(self) -> list[Part]:
        """What is left when the output has ended: a call without its name is text."""
        rest, self._text = self._text, ""
        if self._state == self._in_head and self._plan.style == "hermes":
            rest = _OPEN + rest
        is_over = self._state in (self._in_rest, self._in_close) or (self.num_calls and not rest.strip())
        return [] if is_over or not rest else [rest]

    @property
    def _states(self) -> dict[str, Callable[[], list[Part] | None]]:
        return {
            "none": self._plain,
            "arguments": self._whole,
            "hermes": self._outside_tags,
            "json": self._outside_json,
            "list": self._outside_list,
        }

    def _merged(self, parts: list[Part]) -> list[Part]:
        """Without empty parts, and without the calls beyond what the request takes."""
        limit = self._plan.max_calls
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                kept += [part] if part else []
            elif (part.arguments or part.name) and (limit is None or part.index < limit):
                kept.append(part)
        return kept

    def _take(self, size: int) -> str:
        taken, self._text = self._text[:size], self._text[size:]
        return taken

    def _plain(self) -> list[Part] | None:
        return [self._take(len(self._text))] if self._text else None

    def _whole(self) -> list[Part] | None:
        """The output is the arguments of the one function."""
        if not self._text:
            return None
        text = self._take(len(self._text))
        return [CallPart(0, text)] if self.num_calls else [self._begin(self._plan.named, text)]

    def _outside_tags(self) -> list[Part] | None:
        before, tag, after = self._text.partition(_OPEN)
        if tag:
            self._text = after
            self._enter(self._in_head)
            return [before.rstrip()]
        keep = len(self._text) - _undecided(self._text, _OPEN)
        keep = len(self._text[:keep].rstrip())
        return [self._take(keep)] if keep else None

    def _outside_json(self) -> list[Part] | None:
        start = self._text.lstrip("; \t\r\n")
        if not start:
            return None
        if not start.startswith("{"):
            self._enter(self._plain)
            return []
        self._text = start
        self._enter(self._in_head)
        return []

    def _outside_list(self) -> list[Part] | None:
        start = self._text.lstrip("[], \t\r\n")
        self._text = start
        if not start:
            return None
        self._enter(self._in_head)
        return []

    def _in_head(self) -> list[Part] | None:
        if (head := _HEAD.match(self._text)) is not None:
            name = json.loads(head[1], strict=False)
            if name not in self._plan.names:
                return self._reject()
            self._take(head.end())
            self._enter(self._in_arguments, depth=1)
            return [self._begin(name, "")]
        first = _FIRST_KEY.match(self._text)
        if first is not None and first[1] not in _CALL_KEYS:
            return self._reject()
        end = self._scanner.until(self._text[self._unscanned :], 0)
        if end is None:
            self._unscanned = len(self._text)
            return None
        return self._read_whole(self._unscanned + end)

    def _read_whole(self, end: int) -> list[Part]:
        """A complete object whose keys came in another order."""
        try:
            call = json.loads(self._text[:end])
        except (ValueError, RecursionError):
            return self._reject()
        arguments = call.get("arguments", call.get("parameters")) if isinstance(call, dict) else None
        if arguments is None or call.get("name") not in self._plan.names:
            return self._reject()
        self._take(end)
        self._enter(self._in_close)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [self._begin(call["name"], text)]

    def _in_arguments(self) -> list[Part] | None:
        if not self._text:
            return None
        end = self._scanner.until(self._text, 1)
        text = self._take(len(self._text) if end is None else end)
        if end is not None:
            self._state = self._in_rest
        return [CallPart(self.num_calls - 1, text)]

    def _in_rest(self) -> list[Part] | None:
        """Behind the arguments, up to the end of the call's object."""
        if not self._text:
            return None
        end = self._scanner.until(self._text, 0)
        self._take(len(self._text) if end is None else end)
        if end is not None:
            self._enter(self._in_close)
        return []

    def _in_close(self) -> list[Part] | None:
        text = self._text.lstrip()
        if self._plan.style == "hermes" and len(text) < len(_CLOSE) and _CLOSE.startswith(text):
            return None
        if self._plan.style == "hermes":
            self._text = text.removeprefix(_CLOSE)
        self._enter(self._states[self._plan.style])
        return []

    def _reject(self) -> list[Part]:
        """It is no call: text again, and for plain JSON for good."""
        if self._plan.style == "hermes":
            self._enter(self._outside_tags)
            return [_OPEN]
        self._enter(self._plain)
        return []

    def _begin(self, name: str, arguments: str) -> CallPart:
        self.num_calls += 1
        return CallPart(self.num_calls - 1, arguments, name, f"call_{uuid.uuid4().hex[:24]}")

    def _enter(self, state: Callable[[], list[Part] | None], *, depth: int = 0) -> None:
        self._state = state
        self._scanner = JsonScanner(depth)
        self._unscanned = 0


def _undecided(text: str, tag: str) -> int:
    """Length of the end of `text` that may become `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)
