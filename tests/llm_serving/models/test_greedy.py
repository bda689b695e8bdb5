"""Greedy output is transformers' token for token, whatever the batch, the chunks, the preemptions and the cache."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from vtk.kernels import cpu_library
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.step_inputs import AttentionMetadata, StepInputs
from vtk.llm_serving.engine import Generation, LLMEngine
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.sampling.params import SamplingParams

if TYPE_CHECKING:
    from conftest import TinyModel

NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
BACKENDS = ["reference", pytest.param("cpu", marks=NO_KERNELS)]
pytestmark = pytest.mark.parametrize("backend", BACKENDS)
SMALL = EngineArgs(max_model_len=256, max_num_seqs=16, num_gpu_blocks_override=256)


def make(tiny: "TinyModel", backend: str, **changes: object) -> LLMEngine:
    return load_engine(tiny.folder, replace(SMALL, backend=backend, **changes)).engine  # type: ignore[arg-type]


def generation(tiny: "TinyModel", index: int) -> Generation:
    params = SamplingParams(temperature=0, max_tokens=len(tiny.outputs[index]))
    return Generation(str(index), tiny.prompts[index], params)


def run(engine: LLMEngine, tiny: "TinyModel", rng: np.random.Generator | None = None) -> dict[int, list[int]]:
    """Every prompt once, all at the start or (with rng) at random steps."""
    waiting = list(range(len(tiny.prompts)))
    outputs: dict[int, list[int]] = {index: [] for index in waiting}
    if rng is not None:
        rng.shuffle(waiting)
    while waiting or engine.has_work:
        arriving = len(waiting) if rng is None else int(rng.integers(0, 3))
        for index in waiting[:arriving]:
            engine.add(generation(tiny, index))
        del waiting[:arriving]
        for delta in engine.step():
            outputs[int(delta.request_id)] += [sampled.token for sampled in delta.tokens]
        engine.scheduler.check_integrity()
    return outputs


def test_logits_are_those_of_transformers(tiny: "TinyModel", backend: str) -> None:
    """All positions of a prompt in two chunks, over blocks in disorder."""
    loaded = load_engine(tiny.folder, replace(SMALL, backend=backend))
    prompt = tiny.prompts[8]
    table = np.random.default_rng(0).permutation(256)[: -(-len(prompt) // 16)].astype(np.int32)
    rows = []
    for start, stop in ((0, 70), (70, len(prompt))):
        positions = np.arange(start, stop)
        attention = AttentionMetadata(
            np.array([0, stop - start], np.int32), np.array([stop], np.int32), table[None],
            table[positions // 16].astype(np.int64) * 16 + positions % 16,
        )  # fmt: skip
        token_ids = np.array(prompt[start:stop])
        step = StepInputs(token_ids, positions, attention, np.arange(stop - start), ())
        rows.append(loaded.runner.forward(step).copy())
    with torch.no_grad():
        expected = tiny.reference(torch.tensor([prompt])).logits[0].numpy()
    assert expected.std() > 0.5
    np.testing.assert_allclose(np.concatenate(rows), expected, rtol=0, atol=1e-4)


def test_alone(tiny: "TinyModel", backend: str) -> None:
    engine = make(tiny, backend, enable_prefix_caching=False)
    for index, expected in enumerate(tiny.outputs):
        engine.add(generation(tiny, index))
        tokens = []
        while engine.has_work:
            tokens += [sampled.token for delta in engine.step() for sampled in delta.tokens]
        assert tokens == expected


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_in_mixed_batches_with_random_arrivals(tiny: "TinyModel", backend: str, chunk: int) -> None:
    engine = make(tiny, backend, long_prefill_token_threshold=chunk)
    for seed in range(2):  # the second round meets a warm cache
        assert list(run(engine, tiny, np.random.default_rng(seed)).values()) == tiny.outputs
    assert engine.cache.stats.hits > 300


@pytest.mark.parametrize("caching", [True, False])
def test_under_preemption(tiny: "TinyModel", backend: str, caching: bool) -> None:
    engine = make(tiny, backend, num_gpu_blocks_override=17, enable_prefix_caching=caching, max_num_batched_tokens=48)
    engine.scheduler.config = replace(engine.scheduler.config, watermark=0.0)
    assert list(run(engine, tiny, np.random.default_rng(5)).values()) == tiny.outputs
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.pool.num_free == 17


def test_preempted_at_every_step(tiny: "TinyModel", backend: str) -> None:
    """Case L16: whoever is thrown out, and whenever, the output is the same."""
    engine = make(tiny, backend, enable_prefix_caching=False)
    for when in range(len(tiny.outputs[4]) - 1):
        for index in (4, 6):
            engine.add(generation(tiny, index))
        outputs: dict[str, list[int]] = {"4": [], "6": []}
        for step in range(1000):
            for delta in engine.step():
                outputs[delta.request_id] += [sampled.token for sampled in delta.tokens]
            if step == when:
                engine.scheduler._preempt(next(iter(engine.scheduler._running.values())))
            if not engine.has_work:
                break
        assert list(outputs.values()) == [tiny.outputs[4], tiny.outputs[6]]


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_a_repeated_prompt_reuses_whole_blocks(tiny: "TinyModel", backend: str, length: int) -> None:
    """Case L01: all but the last token may be cached, in whole blocks."""
    engine = make(tiny, backend)
    prompt = tiny.prompts[8][:length]
    outputs = []
    for turn in range(3):
        engine.add(Generation(str(turn), prompt, SamplingParams(temperature=0, max_tokens=8)))
        deltas = []
        while engine.has_work:
            deltas += engine.step()
        outputs.append([sampled.token for delta in deltas for sampled in delta.tokens])
        assert deltas[-1].num_cached == (0 if turn == 0 else (length - 1) // 16 * 16)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
def test_a_smaller_kv_cache_changes_logits_little(tiny: "TinyModel", backend: str, kv_cache_dtype: str) -> None:
    """Case L05: with a warm cache too."""
    engine = make(tiny, backend, kv_cache_dtype=kv_cache_dtype)
    cold = run(engine, tiny)
    hits = engine.cache.stats.hits
    warm = run(engine, tiny)
    assert engine.cache.stats.hits > hits + 300
    first = [tokens[0] == wanted[0] for tokens, wanted in zip(cold.values(), tiny.outputs, strict=True)]
    assert sum(first) >= len(first) - 1
    assert cold == warm


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "int8"])
def test_parallel_samples_copy_all_of_a_shared_block(tiny: "TinyModel", backend: str, kv_cache_dtype: str) -> None:
    """Case L21: the last block of a prompt is copied, the scales of an int8 cache with it."""
    engine = make(tiny, backend, kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False)
    prompt = tiny.prompts[8][:25]

    def outputs(name: str, n: int) -> list[list[int]]:
        engine.add(Generation(name, prompt, SamplingParams(temperature=0, max_tokens=12, n=n)))
        found: list[list[int]] = [[] for _ in range(n)]
        while engine.has_work:
            for delta in engine.step():
                found[delta.index] += [sampled.token for sampled in delta.tokens]
        return found

    assert outputs("many", 3) == outputs("one", 1) * 3


@pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
def test_shared_prefixes_in_an_int8_cache_that_is_too_small(tiny: "TinyModel", backend: str) -> None:
    """Case L21, on the backend whose rows are bit-stable: features in pairs, the text of a request alone."""
    if backend == "reference":
        pytest.skip("plain torch rounds differently from batch to batch, and int8 magnifies that")
    prompts = [tiny.prompts[8] + [tail] * (1 + tail % 5) for tail in range(24)]
    params = SamplingParams(temperature=0, max_tokens=12)

    def outputs(engine: LLMEngine, at_once: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(prompts), at_once):
            for index, prompt in list(enumerate(prompts))[start : start + at_once]:
                engine.add(Generation(str(index), prompt, params))
            while engine.has_work:
                for delta in engine.step():
                    found[int(delta.request_id)] += [sampled.token for sampled in delta.tokens]
                engine.scheduler.check_integrity()
        return found

    alone = outputs(make(tiny, backend, kv_cache_dtype="int8", enable_prefix_caching=False), at_once=1)
    crowded = make(tiny, backend, kv_cache_dtype="int8", num_gpu_blocks_override=18, max_num_seqs=24)
    crowded.scheduler.config = replace(crowded.scheduler.config, watermark=0.0)
    assert outputs(crowded, at_once=24) == alone
    assert crowded.scheduler.num_preemptions > 0
    assert crowded.cache.stats.hits > 1000
