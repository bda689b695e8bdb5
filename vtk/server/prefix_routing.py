"""Which of several replicas gets a request: prompts that begin alike go to the one that has their blocks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

MAX_HEAD = 256  # characters that decide: about four blocks of 16 tokens
SLACK = 1.25
FREE = 4  # requests that a replica batches with hardly a loss, whatever the others have
_GENERATING = ("/v1/chat/completions", "/v1/completions")


def prefix_key(path: str, body: bytes) -> bytes | None:
    """A hash of model, salt, tools and the prompt's beginning; None for what has no prompt or cannot be read.

    Of a chat, messages up to the first of the user count, so that all turns of a conversation have one key.
    """
    if path not in _GENERATING:
        return None
    try:
        asked = json.loads(body)
        told = [asked["model"], asked.get("cache_salt"), asked.get("tools"), _head(asked)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # the replica says what is wrong with it
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).digest()


def _head(asked: dict[str, Any]) -> str:
    if "prompt" in asked:
        return json.dumps(asked["prompt"])[:MAX_HEAD]
    messages = asked["messages"]
    first = next((index for index, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return json.dumps([[message["role"], message["content"]] for message in messages[: first + 1]])[:MAX_HEAD]


def choose_order(key: bytes | None, loads: Mapping[str, int], *, slack: float = SLACK) -> list[str]:
    """Replicas, the best first. loads: by replica, the requests that it has now.

    Without a key, the least loaded first. With one, rendezvous hashing (Thaler and Ravishankar, 1998): each replica has
    a rank of its own for the key, so that a replica that comes or goes moves only the keys that it gains or loses.
    Those that have `slack` times their share of all requests already, and at least `FREE`, come last (the bound of
    Mirrokni, Thorup and Zadimoghaddam, 2018), so that a popular prefix spreads over as many replicas as it needs.
    """
    if key is None:
        return sorted(loads, key=lambda name: (loads[name], name))
    bound = max(FREE, math.ceil(slack * (sum(loads.values()) + 1) / max(1, len(loads))))
    return sorted(loads, key=lambda name: (loads[name] >= bound, _rank(key, name)))


def _rank(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(name.encode(), key=key, digest_size=16).digest()
