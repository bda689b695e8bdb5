"""Everything that decides which models are served and how they share the machine: one frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from vtk.errors import UsageError

if TYPE_CHECKING:
    from vtk.llm_serving.args import EngineOptions

Kind = Literal["vision", "llm"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_SECONDS = 365 * 86_400  # clocks and locks take no time without a bound
KIND_NAMES: dict[Kind, str] = {"vision": "vision model", "llm": "language model"}


def vtk_home() -> Path:
    """Where vtk keeps what belongs to a user: $VTK_HOME, by default `~/.vtk`."""
    return Path(os.environ.get("VTK_HOME") or "~/.vtk").expanduser()


def default_models() -> Path:
    """The model folder, unless the user names another: `$VTK_HOME/models`."""
    return vtk_home() / "models"


def default_traffic_profile() -> Path:
    """Where `vtk serve` keeps what it warms up with: `$VTK_HOME/traffic.json`."""
    return vtk_home() / "traffic.json"


def _no_options() -> EngineOptions:
    return {}


@dataclass(frozen=True)
class RuntimeSettings:
    """The models, their memory, and the shares of vision and language.

    models: the model folder (None: `$VTK_HOME/models`). selected: names in that folder, or paths of bundles, GGUF files
    and Hugging Face folders; empty: all that the folder holds. kinds: what of these is served.
    memory_bytes: what all models together may take, in bytes; None: `gpu_memory_utilization` of what is available when
    the runtime starts. engine: options of every language model, with vLLM's names.
    backend, device, threads: of the engines of bundles. max_queue_delay: seconds that a picture may wait for others to
    fill its batch. max_itl: seconds between two tokens of a stream that a vision batch may not exceed. vision_share: of
    the device's time while both kinds have work, above 0 and below 1.
    embedding_cache_bytes: of features of pictures that each promptable model may remember, part of the memory.
    max_queued_requests, max_queued_pictures: what may wait for one model. reload_interval: seconds between two looks at
    the model folder; None: models change only when told. traffic_profile: the file that frequent prompt prefixes are
    kept in, to warm up with; None: nothing is kept. verify_on_load: reproduce the golden data of a bundle before it
    serves; file hashes are compared whatever it says.
    """

    models: Path | None = None
    selected: tuple[str, ...] = ()
    kinds: frozenset[Kind] = frozenset(KINDS)
    memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    engine: EngineOptions = field(default_factory=_no_options)
    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    max_queue_delay: float = 0.002
    max_itl: float = 0.2
    vision_share: float = 0.5
    embedding_cache_bytes: int = 512 << 20
    max_queued_requests: int = 256
    max_queued_pictures: int = 512
    reload_interval: float | None = None
    traffic_profile: Path | None = None
    verify_on_load: bool = True

    def __post_init__(self) -> None:
        if not self.kinds or not self.kinds <= set(KINDS):
            raise UsageError(
                f"kinds must be some of {', '.join(KINDS)}, got {', '.join(sorted(self.kinds)) or 'none'}."
            )
        for name in ("gpu_memory_utilization", "vision_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UsageError(f"{name} is a share above 0 and at most 1, got {value}.")
        if self.vision_share == 1:
            raise UsageError("vision_share must leave something to language models: below 1.")
        for name in (
            "memory_bytes",
            "threads",
            "max_itl",
            "max_queued_requests",
            "max_queued_pictures",
            "reload_interval",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}.")
        if self.reload_interval is not None and self.reload_interval > MAX_SECONDS:
            raise UsageError(f"reload_interval must be at most {MAX_SECONDS} seconds, got {self.reload_interval}.")
        if not 0 <= self.max_queue_delay <= MAX_SECONDS:
            raise UsageError(
                f"max_queue_delay must be 0 or more and at most {MAX_SECONDS} seconds, got {self.max_queue_delay}."
            )
        if self.embedding_cache_bytes < 0:
            raise UsageError(f"embedding_cache_bytes must be 0 or more, got {self.embedding_cache_bytes}.")

    @property
    def model_folder(self) -> Path:
        """The folder that models are looked for in."""
        return self.models or default_models()
