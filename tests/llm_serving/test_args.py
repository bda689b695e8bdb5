"""What an engine cannot be set up with is refused by name, before a model is read."""

import os
from typing import Any

import pytest

from vtk.errors import UsageError
from vtk.llm_serving.args import EngineArgs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_model_len": "100"}, "max_model_len must be a whole number, got '100'"),
        ({"block_size": 1.5}, "block_size must be a whole number, got 1.5"),
        ({"max_num_seqs": None}, "max_num_seqs must be a whole number, got None"),
        ({"num_gpu_blocks_override": 8.0}, "num_gpu_blocks_override must be a whole number"),
        ({"num_threads": True}, "num_threads must be a whole number, got True"),
        ({"cpu_kvcache_space": "1"}, "cpu_kvcache_space must be a number, got '1'"),
        ({"cpu_kvcache_space": float("inf")}, "cpu_kvcache_space must be above 0 GiB and at most 1048576, got inf"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be True or False, got 'no'"),
        ({"enable_chunked_prefill": 1}, "enable_chunked_prefill must be True or False, got 1"),
        ({"cpu_affinity": 0}, "cpu_affinity must be a list of cores as text, got 0"),
        ({"backend": None}, "Unknown backend 'None'"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
    ],
)
def test_values_that_no_engine_takes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineArgs(**arguments)


def test_what_may_be_left_open() -> None:
    EngineArgs(max_model_len=None, num_gpu_blocks_override=None, num_threads=None, cpu_affinity=None)
    EngineArgs(cpu_kvcache_space=1, num_threads=1, long_prefill_token_threshold=0)


def test_more_threads_than_the_machine_has_cores_are_refused() -> None:
    """A thousand on two cores take minutes for a token; a hundred thousand are not even given."""
    cores = os.cpu_count() or 1
    assert EngineArgs(num_threads=cores).num_threads == cores
    with pytest.raises(UsageError, match=f"num_threads is {cores + 1}, but this machine has {cores} cores"):
        EngineArgs(num_threads=cores + 1)
