"""Why prompts miss the prefix cache: what differs first between recent prompts, and what to do about it.

Prompts are compared within one cache salt only, so that nobody is shown another's text. The text itself leaves through
`diagnose`, which `/debug/prefix` answers with; the log gets kinds and positions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vtk.errors import NotFoundError, UnavailableError
from vtk.llm_serving.core.prefix_cache import SeenPrompt
from vtk.llm_serving.core.request import ExtraKey
from vtk.server.volatile_text import Difference, first_difference
from vtk.serving.traffic_watch import WARM_UP

if TYPE_CHECKING:
    from vtk.runtime import Runtime

LOW_HIT_RATE = 0.5
MIN_PROMPTS = 4
MIN_SHARED = 32  # characters behind a value that make it worth moving
INTERVAL = 600.0  # seconds between two warnings about a model
_CONTEXT = 60  # characters shown before a value
_MAX_VALUE = 80
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptReport:
    """A recent prompt. first_divergent_token: where it left the earlier prompt that it follows longest, if it did."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    first_divergent_token: int | None


@dataclass(frozen=True)
class Divergence:
    """Where `prompts` of the recent prompts left an earlier one: a value of a `kind` that differs.

    token: the first token that differs. character: where the value begins in the prompt as the model sees it, special
    tokens included. before: the text that leads to it. values: some that stood there. same_after: characters behind it
    that were the same again in all of them.
    """

    token: int
    character: int
    kind: str
    prompts: int
    before: str
    values: tuple[str, ...]
    same_after: int
    hint: str


@dataclass(frozen=True)
class PrefixReport:
    """The recent prompts of one model under one salt. hit_rate: share of their tokens that were cached, 0..1."""

    model: str
    prompts: int
    hit_rate: float
    divergences: tuple[Divergence, ...]
    recent: tuple[PromptReport, ...]


@dataclass(frozen=True)
class _Split:
    """A prompt that left an earlier one at a token."""

    token: int
    text: str
    difference: Difference


def diagnose(model: str, prompts: Sequence[SeenPrompt], decode: Callable[[Sequence[int]], str]) -> PrefixReport:
    """Compare prompts of one salt, oldest first. What costs most comes first."""
    text = cache(lambda i: decode(prompts[i].tokens))
    arrays = [np.array(prompt.tokens, np.int64) for prompt in prompts]
    splits: list[_Split] = []
    recent: list[PromptReport] = []
    for i, prompt in enumerate(prompts):
        closest, token = _closest(arrays[i], arrays[:i])
        name = prompt.request_id.removesuffix("#0")
        recent.append(PromptReport(name, prompt.length, prompt.num_cached, token))
        if closest is not None and token is not None:
            difference = first_difference(text(i), text(closest))
            if difference is not None:
                splits.append(_Split(token, text(i), difference))
    return PrefixReport(model, len(prompts), _hit_rate(prompts), _grouped(splits), tuple(recent))


class PrefixDoctor:
    """Looks at the recent prompts of every language model that a runtime serves."""

    def __init__(self, runtime: Runtime, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._clock = clock
        self._warned: dict[str, float] = {}

    def reports(self, salt: str | None) -> list[PrefixReport]:
        """One for each model, of the prompts that came with this salt, or with none."""
        keys = (ExtraKey("salt", salt),) if salt else ()
        return [
            diagnose(model, [prompt for prompt in prompts if prompt.keys == keys], decode)
            for model, prompts, decode in self._served()
        ]

    def warn(self) -> None:
        """Log the costliest divergence of each model with a low hit rate, at most once per INTERVAL and model."""
        now = self._clock()
        for model, prompts, decode in self._served():
            if now - self._warned.get(model, -np.inf) < INTERVAL:
                continue
            by_salt = [[p for p in prompts if p.keys == keys] for keys in dict.fromkeys(p.keys for p in prompts)]
            low = [group for group in by_salt if len(group) >= MIN_PROMPTS and _hit_rate(group) < LOW_HIT_RATE]
            reports = (diagnose(model, group, decode) for group in low)
            worst = min(filter(_can_be_helped, reports), key=lambda report: report.hit_rate, default=None)
            if worst is not None:
                self._warned[model] = now
                _log.warning(_told(worst))

    def _served(self) -> Iterator[tuple[str, tuple[SeenPrompt, ...], Callable[[Sequence[int]], str]]]:
        names = [status.name for status in self._runtime.statuses() if status.kind == "llm" and status.state == "ready"]
        for name in names:
            with suppress(NotFoundError, UnavailableError), self._runtime.language(name) as model:
                decode = partial(model.tokenizer.decode, skip_special_tokens=False)
                seen = model.loaded.engine.cache.recent()
                yield name, tuple(prompt for prompt in seen if not prompt.request_id.startswith(WARM_UP)), decode


def _closest(tokens: npt.NDArray[np.int64], earlier: Sequence[npt.NDArray[np.int64]]) -> tuple[int | None, int | None]:
    """Which earlier prompt is followed longest, and the token where it is left; None if one is the start of the other.

    Of equally close ones the latest counts.
    """
    best, closest, token = -1, None, None
    for i, other in enumerate(earlier):
        length = min(len(tokens), len(other))
        differs = tokens[:length] != other[:length]
        common = int(differs.argmax()) if differs.any() else length
        if common >= best:
            best, closest, token = common, i, None if common == length else common
    return closest, token


def _grouped(splits: Sequence[_Split]) -> tuple[Divergence, ...]:
    """Splits at a value of one kind in one place are one divergence."""
    groups: dict[tuple[str, int], list[_Split]] = {}
    for split in splits:
        groups.setdefault((split.difference.kind, split.difference.start), []).append(split)
    found = [_divergence(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda d: d.prompts * d.same_after, reverse=True))


def _divergence(group: Sequence[_Split]) -> Divergence:
    last, start = group[-1], group[-1].difference.start
    same = min(split.difference.same_after for split in group)
    values = dict.fromkeys(value for s in group[-2:] for value in (s.difference.theirs, s.difference.ours))
    return Divergence(
        token=min(split.token for split in group),
        character=start,
        kind=_kind(group),
        prompts=len(group),
        before=last.text[max(0, start - _CONTEXT) : start],
        values=tuple(value[:_MAX_VALUE] for value in values),
        same_after=same,
        hint=_hint(same),
    )


def _kind(group: Sequence[_Split]) -> str:
    """A number that only ever grows is a counter."""
    differences = [split.difference for split in group]
    grows = all(d.kind == "a number" and float(d.ours) > float(d.theirs) for d in differences)
    return "a counter" if grows else differences[0].kind


def _hint(same_after: int) -> str:
    if same_after < MIN_SHARED:
        return "Little or nothing behind it is shared: there is nothing to move."
    return (
        f"Move it to the end of the system prompt, or into the last message: the {same_after} characters behind it are "
        "the same in these prompts and are computed again for each."
    )


def _hit_rate(prompts: Sequence[SeenPrompt]) -> float:
    total = sum(prompt.length for prompt in prompts)
    return sum(prompt.num_cached for prompt in prompts) / total if total else 0.0


def _can_be_helped(report: PrefixReport) -> bool:
    return bool(report.divergences) and report.divergences[0].same_after >= MIN_SHARED


def _told(report: PrefixReport) -> str:
    """The worst divergence in one line, without any of the text."""
    worst = report.divergences[0]
    return (
        f"{report.model}: {report.hit_rate:.0%} of the tokens of the last {report.prompts} prompts were in the prefix "
        f"cache. {worst.prompts} of them leave the others first at token {worst.token}: {worst.kind} at character "
        f"{worst.character}. {worst.hint} GET /debug/prefix shows the text."
    )
