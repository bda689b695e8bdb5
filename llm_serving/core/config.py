"""How a scheduler is set up, resolved once. Names and defaults are those that users of vLLM know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vtk.errors import UsageError

Scheduling = Literal["continuous", "static"]
SchedulingPolicy = Literal["fcfs", "priority", "short_first"]


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and policy of one scheduler.

    max_num_batched_tokens is the token budget of a step, shared by decodes first and prefill chunks after.
    long_prefill_token_threshold caps one request's chunk (0: the budget alone does). watermark is the share of blocks
    kept free at admission so that running requests can grow. short_first_max_wait (seconds) is when `short_first` stops
    letting shorter prompts pass. scheduling `static` is the baseline of StaticScheduler, which heeds max_model_len,
    max_num_seqs and block_size alone and has no prefix cache.
    """

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    enable_chunked_prefill: bool = True
    scheduling: Scheduling = "continuous"
    scheduling_policy: SchedulingPolicy = "fcfs"
    long_prefill_token_threshold: int = 0
    watermark: float = 0.01
    short_first_max_wait: float = 10.0

    def __post_init__(self) -> None:
        for name, kind in (("scheduling", Scheduling), ("scheduling_policy", SchedulingPolicy)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(
                    f"Unknown {name} '{getattr(self, name)}'.", hint=f"One of: {', '.join(get_args(kind))}."
                )
        if self.scheduling == "static" and self.scheduling_policy != "fcfs":
            raise UsageError(f"Static scheduling serves in order of arrival, not by '{self.scheduling_policy}'.")
        if min(self.max_model_len, self.max_num_seqs, self.block_size) < 1:
            raise UsageError("max_model_len, max_num_seqs and block_size must be at least 1.")
        if self.long_prefill_token_threshold < 0:
            raise UsageError(
                f"long_prefill_token_threshold must be at least 0, got {self.long_prefill_token_threshold}."
            )
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed max_num_seqs "
                f"({self.max_num_seqs}): a step of decodes alone would leave no room for a prompt.",
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise UsageError(
                f"Without chunked prefill a whole prompt must fit a step: max_num_batched_tokens is "
                f"{self.max_num_batched_tokens}, max_model_len {self.max_model_len}.",
                hint="Raise max_num_batched_tokens, lower max_model_len, or enable_chunked_prefill.",
            )
