"""Arguments resolve once, into an engine of the sizes asked for; what cannot be is refused with its numbers."""

from typing import Any

import pytest

from vtk.errors import BackendError, RequestError, UsageError
from vtk.kernels import cpu_library
from vtk.kernels.kv_cache import KvDtype
from vtk.llm_serving import load
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import LoadedEngine, make_engine
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.runner.decoder_runner import block_bytes, num_blocks_within
from vtk.llm_serving.sampling.params import SamplingParams

NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
CONFIG = ModelConfig("llama", 64, 96, 3, 4, 2, 16, 300, 512, 1e-5, 1e4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kv_cache_dtype": "fp4"},
            r"Unknown kv_cache_dtype 'fp4'\. One of: auto, float32, float16, bfloat16, int8, fp8",
        ),
        ({"dtype": "half"}, "One of: auto, float32, float16, bfloat16"),
        ({"gpu_memory_utilization": 1.5}, "above 0 and at most 1, got 1.5"),
        ({"linear_mode": "fast"}, "One of: exact, quantized"),
        ({"backend": "tpu"}, "One of: auto, reference, cpu, cuda"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override must be at least 1"),
        ({"num_threads": 0}, "num_threads must be at least 1"),
        ({"cpu_kvcache_space": 0}, "above 0 GiB"),
        ({"cpu_kvcache_space": float("nan")}, "above 0 GiB"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineArgs(**arguments)


def test_the_kv_type_follows_the_mode() -> None:
    assert EngineArgs().kv_dtype == "float32"
    assert EngineArgs(linear_mode="quantized").kv_dtype == "float16"
    assert EngineArgs(kv_cache_dtype="int8").kv_dtype == "int8"


def test_the_context_is_what_model_and_pool_hold() -> None:
    args = EngineArgs(block_size=16)
    assert args.model_len(512, 100) == 512
    assert args.model_len(512, 10) == 161
    assert EngineArgs(max_model_len=100).model_len(512, 10) == 100
    with pytest.raises(UsageError, match="is 513, but the model was made for 512"):
        EngineArgs(max_model_len=513).model_len(512, 100)
    with pytest.raises(UsageError, match="is 200, but the KV cache holds 161"):
        EngineArgs(max_model_len=200).model_len(512, 10)


@pytest.mark.parametrize(("dtype", "per_head"), [("float32", 64), ("float16", 32), ("int8", 16 + 4)])
def test_the_pool_fits_its_budget(dtype: KvDtype, per_head: int) -> None:
    """Keys and values of 3 layers, 2 heads of 16 and 8 tokens; int8 with a float32 scale a head."""
    size = 3 * 2 * 2 * 8 * per_head
    assert block_bytes(CONFIG, 8, dtype) == size
    assert num_blocks_within(10 * size + 1, CONFIG, 8, dtype) == 10
    with pytest.raises(UsageError, match=f"takes {size}"):
        num_blocks_within(size - 1, CONFIG, 8, dtype)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise BackendError("The compiled CPU kernels cannot be loaded.", hint="Install a C++ compiler.")

    monkeypatch.setattr(cpu_library, "isa", missing)
    monkeypatch.setattr(cpu_library, "set_num_threads", missing)


def test_a_backend_asked_for_by_name_is_not_replaced(smollm2: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    with pytest.raises(BackendError):
        make_engine(smollm2, EngineArgs(backend="cpu", num_gpu_blocks_override=4))
    assert make_engine(smollm2, EngineArgs(num_gpu_blocks_override=4)).runner.backend == "reference"


def test_without_kernels_and_torch_both_ways_out_are_named(
    smollm2: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels(monkeypatch)
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"cannot be loaded\. Install a C\+\+ compiler .* 'vtk-deploy\[torch\]'"):
        make_engine(smollm2, EngineArgs(num_gpu_blocks_override=4))


@NO_KERNELS
def test_a_wrong_instruction_set_is_not_replaced_by_torch(
    smollm2: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_library.ISA_VARIABLE, "avx1024")
    with pytest.raises(UsageError, match="VTK_CPU_ISA is 'avx1024'"):
        make_engine(smollm2, EngineArgs(num_gpu_blocks_override=4))


@NO_KERNELS
def test_a_gpu_that_cannot_be_used_is_told(
    smollm2: ModelSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    assert make_engine(smollm2, EngineArgs(num_gpu_blocks_override=4)).runner.device == "cpu"
    (told,) = caplog.messages
    assert told.startswith("the NVIDIA GPU is not used: The backend 'cuda' needs the package 'torch'")
    assert told.endswith("pip install 'vtk-deploy[gpu]'")


@pytest.fixture(scope="module")
def loaded(smollm2: ModelSource) -> LoadedEngine:
    return make_engine(smollm2, EngineArgs(kv_cache_dtype="float16"))


@pytest.mark.parametrize(("length", "max_tokens"), [(9000, 1), (8192, 1), (8191, 2)])
def test_prompts_beyond_the_context(loaded: LoadedEngine, length: int, max_tokens: int) -> None:
    """Case L14: refused at admission with both numbers."""
    with pytest.raises(RequestError, match=rf"{length} tokens.*8192 tokens") as error:
        loaded.engine.add(Generation("long", [1] * length, SamplingParams(max_tokens=max_tokens)))
    assert error.value.code == "context_length_exceeded"
    assert not loaded.engine.has_work


def test_the_longest_prompt_is_admitted(loaded: LoadedEngine) -> None:
    loaded.engine.add(Generation("longest", [1] * 8191, SamplingParams(max_tokens=1)))
    assert loaded.engine.abort("longest")
    assert loaded.engine.num_live == 0


def test_requests_that_the_pool_never_holds(smollm2: ModelSource) -> None:
    """Case L13: refused at once, and the next one is served."""
    small = make_engine(smollm2, EngineArgs(num_gpu_blocks_override=8))
    with pytest.raises(RequestError, match="exceed the context of 129 tokens"):
        small.engine.add(Generation("big", [1] * 200, SamplingParams(max_tokens=1)))
    small.engine.add(Generation("small", [504, 3575, 282], SamplingParams(temperature=0, max_tokens=2)))
    tokens = []
    while small.engine.has_work:
        tokens += [sampled for delta in small.engine.step() for sampled in delta.tokens]
    assert len(tokens) == 2
