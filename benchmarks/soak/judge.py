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


def difference(found: Any, expected: Any, where: str = "") -> str | None:
    """The first place where they differ in more than the last digits of floats."""
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        pairs = ((f"{where}.{key}", found[key], value) for key, value in expected.items())
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = ((f"{where}[{index}]", *pair) for index, pair in enumerate(zip(found, expected, strict=True)))
    elif isinstance(expected, float) and isinstance(found, (int, float)):
        close = math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return None if close else f"{found} instead of {expected} at {where}"
    else:
        return None if found == expected else f"{str(found)[:300]} instead of {str(expected)[:300]} at {where}"
    return next((text for here, one, other in pairs if (text := difference(one, other, here))), None)


def refused_pictures(found: Any) -> dict[int, Any]:
    """By index, what an answer says, with a reason, about those of its pictures that came to a full queue."""
    results = found.get("results", []) if isinstance(found, dict) else []
    return {
        index: result
        for index, result in enumerate(results)
        if (error := result.get("error"))
        and (error["code"], error["param"], result["index"]) == ("rate_limit_exceeded", f"images.{index}", index)
        and error["message"]
    }


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
