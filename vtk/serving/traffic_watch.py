"""Feeds the traffic profile from the prompts that the engines remember anyway, so that no request pays for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

from vtk.errors import NotFoundError, UnavailableError
from vtk.serving.model_table import ModelTable
from vtk.serving.traffic import TrafficProfile

if TYPE_CHECKING:
    from vtk.llm_serving.core.prefix_cache import SeenPrompt
    from vtk.serving.language_model import LanguageModel

WARM_UP = "warm-up"


class TrafficWatch:
    """Call it every few seconds: an engine remembers its last prompts only, so that of a burst some are missed."""

    def __init__(self, profile: TrafficProfile, table: ModelTable) -> None:
        self._profile = profile
        self._table = table
        self._last: WeakKeyDictionary[LanguageModel, SeenPrompt] = WeakKeyDictionary()

    def __call__(self) -> None:
        """Count the prompts that came since the last call, and save the profile."""
        for name in sorted({status.name for status in self._table.statuses() if status.kind == "llm"}):
            with suppress(NotFoundError, UnavailableError), self._table.lease("llm", name) as opened:
                self._count(cast("LanguageModel", opened.model))
        self._profile.save()

    def _count(self, model: LanguageModel) -> None:
        prompts = model.loaded.engine.cache.recent()
        for prompt in _after(prompts, self._last.get(model)):
            # A salt says that nobody else shall profit from this prefix.
            if not prompt.keys and not prompt.request_id.startswith(WARM_UP):
                self._profile.record_prompt(model.info.tensor_digest, prompt.tokens)
        if prompts:
            self._last[model] = prompts[-1]


def _after(prompts: Sequence[SeenPrompt], last: SeenPrompt | None) -> Sequence[SeenPrompt]:
    place = next((i for i, prompt in enumerate(prompts) if prompt is last), -1)
    return prompts[place + 1 :]
