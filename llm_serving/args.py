"""How an engine is set up: one frozen value, with the names that users of vLLM know."""

from __future__ import annotations

import os
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, TypedDict, get_args

from vtk.errors import UsageError
from vtk.kernels.kv_cache import KvDtype
from vtk.kernels.ops import LinearMode
from vtk.llm_serving.affinity import parse_cpus
from vtk.llm_serving.core.config import SchedulerConfig, Scheduling, SchedulingPolicy

KvCacheDtype = Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"]
Backend = Literal["auto", "reference", "cpu", "cuda"]
ComputeDtype = Literal["auto", "float32", "float16", "bfloat16"]

MAX_GIB = 1 << 20
_OPTIONAL = ("max_model_len", "num_gpu_blocks_override", "num_threads", "cpu_affinity")
_SIZES = ("max_num_seqs", "max_num_batched_tokens", "block_size", "long_prefill_token_threshold")
# Names, type, and how an error calls it; None is allowed for the optional ones.
_KINDS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    ((*_SIZES, *_OPTIONAL[:3]), Integral, "a whole number"),
    (("cpu_kvcache_space", "gpu_memory_utilization"), Real, "a number"),
    (("enable_prefix_caching", "enable_chunked_prefill"), bool, "True or False"),
    (("cpu_affinity",), str, "a list of cores as text"),
)


@dataclass(frozen=True)
class EngineArgs:
    """Everything that decides how a model is served.

    max_model_len: tokens of prompt and output together (None: what the model was made for, or what the KV cache holds
    if that is less). cpu_kvcache_space: GiB of KV memory on the CPU; num_gpu_blocks_override: that many KV blocks
    instead, on whichever device. gpu_memory_utilization: the share of a GPU's memory that weights, steps and KV cache
    take together. dtype: of weights and activations on a GPU; auto is the type of the stored matrices, float16 for
    blocks of fewer bits; the CPU computes in float32. kv_cache_dtype: auto is float32 in exact mode and float16 in
    quantized mode, on a GPU the type of the activations; there it may be fp8 (e4m3) too.
    linear_mode: exact multiplies in float32 by the weights as stored; quantized rounds activations to 8 bits per row
    and 32 columns. backend: auto takes an NVIDIA GPU in exact mode where PyTorch has one, else the compiled CPU kernels
    where they are there, else the plain torch reference.
    num_threads: of the CPU backend (None: every core that the process may use, or those of cpu_affinity). All models of
    a process share the threads: the one loaded last says how many.
    cpu_affinity: the cores that compute, as `0-3,8` or as a NUMA node, `node0`; other threads may use any.
    The other names are SchedulerConfig's.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling: Scheduling = "continuous"
    scheduling_policy: SchedulingPolicy = "fcfs"
    long_prefill_token_threshold: int = 0
    kv_cache_dtype: KvCacheDtype = "auto"
    dtype: ComputeDtype = "auto"
    cpu_kvcache_space: float = 0.5
    gpu_memory_utilization: float = 0.9
    num_gpu_blocks_override: int | None = None
    linear_mode: LinearMode = "exact"
    backend: Backend = "auto"
    num_threads: int | None = None
    cpu_affinity: str | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in ("max_model_len", "num_gpu_blocks_override", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}.")
        if not 0 < self.cpu_kvcache_space <= MAX_GIB:
            raise UsageError(
                f"cpu_kvcache_space must be above 0 GiB and at most {MAX_GIB}, got {self.cpu_kvcache_space}."
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise UsageError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}."
            )
        self._check_threads()
        self.scheduler_config(self.max_model_len or 1)  # refuses what it can before a model is read

    def _check_kinds(self) -> None:
        kinds = {"kv_cache_dtype": KvCacheDtype, "linear_mode": LinearMode, "backend": Backend, "dtype": ComputeDtype}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value not in get_args(kind):
                raise UsageError(f"Unknown {name} '{value}'.", hint=f"One of: {', '.join(get_args(kind))}.")
        for names, wanted, what in _KINDS:
            for name in names:
                value = getattr(self, name)
                is_given = value is not None or name not in _OPTIONAL
                if is_given and (not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)):
                    raise UsageError(f"{name} must be {what}, got {value!r}.")

    def _check_threads(self) -> None:
        if self.cpus is not None and self.num_threads is not None and self.num_threads > len(self.cpus):
            raise UsageError(f"num_threads is {self.num_threads}, but cpu_affinity names {len(self.cpus)} cores.")
        cores = os.cpu_count() or 1
        if self.num_threads is not None and self.num_threads > cores:  # they would wait for one another, spinning
            raise UsageError(f"num_threads is {self.num_threads}, but this machine has {cores} cores.")

    @property
    def cpus(self) -> frozenset[int] | None:
        """The cores to compute on; None for no choice."""
        return None if self.cpu_affinity is None else parse_cpus(self.cpu_affinity)

    @property
    def kv_dtype(self) -> KvDtype:
        """Element type of keys and values in the cache on the CPU."""
        if self.kv_cache_dtype == "auto":
            return "float32" if self.linear_mode == "exact" else "float16"
        return self.kv_cache_dtype

    def model_len(self, max_positions: int, num_blocks: int) -> int:
        """The context to serve. UsageError for an explicit one that the model or the KV cache cannot hold."""
        # The token sampled last is never computed, so it needs no slot.
        limit = min(max_positions, num_blocks * self.block_size + 1)
        if self.max_model_len is None:
            return limit
        if self.max_model_len > limit:
            what = "the model was made for" if limit == max_positions else "the KV cache holds"
            raise UsageError(
                f"max_model_len is {self.max_model_len}, but {what} {limit} tokens.",
                hint="Lower max_model_len." if limit == max_positions else "Lower it, or raise cpu_kvcache_space.",
            )
        return self.max_model_len

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        """Limits and policy, checked."""
        return SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            enable_chunked_prefill=self.enable_chunked_prefill,
            scheduling=self.scheduling,
            scheduling_policy=self.scheduling_policy,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )


class EngineOptions(TypedDict, total=False):
    """The fields of EngineArgs as keyword arguments, each optional."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    scheduling: Scheduling
    scheduling_policy: SchedulingPolicy
    long_prefill_token_threshold: int
    kv_cache_dtype: KvCacheDtype
    dtype: ComputeDtype
    cpu_kvcache_space: float
    gpu_memory_utilization: float
    num_gpu_blocks_override: int | None
    linear_mode: LinearMode
    backend: Backend
    num_threads: int | None
    cpu_affinity: str | None
