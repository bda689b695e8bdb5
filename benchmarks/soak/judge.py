"""What of an answer must be the same for everyone who asks the same."""

from __future__ import annotations

import io
import json
import math
from typing import Any

from PIL import Image
from soak.wire import Reply

# Numbers of one picture or text, computed beside others or alone: other orders of sums, nothing else.
TOLERANCE = 1e-3
_OWN = frozenset({"id", "created", "seconds", "usage"})


def same(found: Any, expected: Any) -> bool:
    """Equal in all but the last digits of floats."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(found == expected)


def plain(reply: Reply) -> Any:
    """The JSON without what belongs to one request alone."""
    return _without_own(reply.json())


def _without_own(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_own(item) for key, item in value.items() if key not in _OWN}
    return [_without_own(item) for item in value] if isinstance(value, list) else value


def whole_text(reply: Reply) -> Any:
    """Text and end of an answer in one piece."""
    choice = reply.json()["choices"][0]
    return [choice["message"]["content"] if "message" in choice else choice["text"], choice["finish_reason"]]


def streamed_text(reply: Reply) -> Any:
    """The same of a stream, which must end as the protocol says."""
    *events, done = [event.removeprefix("data: ") for event in reply.body.decode().split("\n\n")[:-1]]
    if done != "[DONE]":
        raise ValueError(f"a stream ended with {done[:300]}")
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    pieces = [choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices]
    return ["".join(pieces), choices[-1]["finish_reason"]]


def written_json(reply: Reply) -> Any:
    """The values of an answer that follows a schema; its white space is the model's own."""
    return json.loads(reply.json()["choices"][0]["message"]["content"])


def tool_calls(reply: Reply) -> Any:
    """Names and arguments."""
    calls = reply.json()["choices"][0]["message"]["tool_calls"]
    return [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]


def picture(reply: Reply) -> Any:
    """Type and size of a drawing, which must be whole."""
    with Image.open(io.BytesIO(reply.body)) as drawn:
        drawn.load()
        return [drawn.format, *drawn.size]


def reason(reply: Reply) -> Any:
    """The word for a refusal, in either protocol; KServe's has a sentence only."""
    error = reply.json()["error"]
    return error["code"] if isinstance(error, dict) else bool(error)
