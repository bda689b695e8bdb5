"""What the modes of the CPU backend promise on the real model: rows that no neighbor changes, and little loss."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.kernels import cpu_library
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.step_inputs import AttentionMetadata, StepInputs
from vtk.llm_serving.engine import Delta, Generation, LLMEngine
from vtk.llm_serving.load import LoadedEngine, make_engine
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.runner.base import Logits, ModelRunner
from vtk.llm_serving.sampling.params import SamplingParams

pytestmark = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
LICENSE = Path(__file__).parents[2] / "LICENSE"
BLOCK = 16
Chunk = tuple[int, int, int]  # sequence, first position, end


def tokens_of(sequence: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(sequence).integers(20, 49000, 64)


def step(runner: ModelRunner, chunks: Sequence[Chunk]) -> Logits:
    """Logits of every row; sequence i owns the blocks 4i to 4i + 3."""
    positions = np.concatenate([np.arange(start, stop) for _, start, stop in chunks])
    owners = np.concatenate([np.full(stop - start, sequence) for sequence, start, stop in chunks])
    counts = [stop - start for _, start, stop in chunks]
    tables = np.array([[4 * sequence + i for i in range(4)] for sequence, *_ in chunks], np.int32)
    slots = (4 * owners + positions // BLOCK) * BLOCK + positions % BLOCK
    attention = AttentionMetadata(
        np.cumsum([0, *counts]).astype(np.int32), np.array([stop for *_, stop in chunks], np.int32), tables, slots
    )
    token_ids = np.concatenate([tokens_of(sequence)[start:stop] for sequence, start, stop in chunks])
    return runner.forward(StepInputs(token_ids, positions, attention, np.arange(len(positions)), ())).copy()


@pytest.fixture(scope="module", params=["exact", "quantized"])
def loaded(request: pytest.FixtureRequest, smollm2: ModelSource) -> LoadedEngine:
    return make_engine(smollm2, EngineArgs(backend="cpu", linear_mode=request.param, cpu_kvcache_space=0.1))


def test_logits_do_not_depend_on_the_batch(loaded: LoadedEngine) -> None:
    """Case L09: bit for bit, beside prompts, chunks and decodes of others."""
    alone = step(loaded.runner, [(0, 0, 40)])
    together = step(loaded.runner, [(1, 0, 64), (0, 0, 40), (2, 0, 3)])
    np.testing.assert_array_equal(together[64:104], alone)
    decode = step(loaded.runner, [(0, 40, 41)])
    np.testing.assert_array_equal(step(loaded.runner, [(2, 3, 40), (0, 40, 41)])[37:], decode)


def test_logits_do_not_depend_on_the_chunks(loaded: LoadedEngine) -> None:
    """Case L08: bit for bit, so that a warm cache cannot change a text."""
    whole = step(loaded.runner, [(0, 0, 40)])
    parts = [step(loaded.runner, [(0, start, stop)]) for start, stop in ((0, 1), (1, 8), (8, 16), (16, 39), (39, 40))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def drain(engine: LLMEngine) -> list[Delta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


def perplexity(source: ModelSource, args: EngineArgs, num_tokens: int = 512) -> float:
    ids = source.tokenizer.encode(LICENSE.read_text())[:num_tokens]
    engine = make_engine(source, args).engine
    engine.add(Generation("text", ids, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)))
    deltas = drain(engine)
    logprobs = [sampled.logprob for sampled in deltas[0].prompt_logprobs or () if sampled is not None]
    assert len(logprobs) == num_tokens - 1
    return math.exp(-sum(value for value in logprobs if value is not None) / len(logprobs))


@pytest.fixture(scope="module")
def exact(smollm2: ModelSource) -> float:
    return perplexity(smollm2, EngineArgs(cpu_kvcache_space=0.1))


@pytest.mark.parametrize(
    ("args", "loss"),
    [
        (EngineArgs(linear_mode="quantized", cpu_kvcache_space=0.1), 0.01),
        (EngineArgs(kv_cache_dtype="float16", cpu_kvcache_space=0.1), 0.001),
        (EngineArgs(kv_cache_dtype="int8", cpu_kvcache_space=0.1), 0.01),
    ],
)
def test_perplexity_stays(smollm2: ModelSource, exact: float, args: EngineArgs, loss: float) -> None:
    """Case L23, on its 512 tokens: within 1 % for 8-bit activations, and for each type of KV cache."""
    changed = perplexity(smollm2, args)
    assert changed != exact
    assert abs(changed / exact - 1) < loss


@pytest.mark.parametrize(("kv_cache_dtype", "near_tie"), [("float16", 0.0), ("int8", 0.3)])
def test_greedy_output_stays(
    smollm2: ModelSource, recorded: dict[str, Any], kv_cache_dtype: Any, near_tie: float
) -> None:
    """Case L23, 8 prompts: the tokens of transformers, up to where its next one is less than `near_tie` nats behind."""
    engine = make_engine(smollm2, EngineArgs(kv_cache_dtype=kv_cache_dtype, cpu_kvcache_space=0.1)).engine
    entries = recorded["chats"] + recorded["sentences"][:5]
    for index, entry in enumerate(entries):
        params = SamplingParams(temperature=0, max_tokens=len(entry["output"]), logprobs=10)
        engine.add(Generation(str(index), entry["ids"], params))
    deltas = drain(engine)
    for index, entry in enumerate(entries):
        sampled = [token for delta in deltas if delta.request_id == str(index) for token in delta.tokens]
        pairs = zip(sampled, entry["output"], strict=False)
        first = next(((token, wanted) for token, wanted in pairs if token.token != wanted), None)
        if first is not None:
            token, wanted = first
            assert token.top[0][1] - dict(token.top)[wanted] < near_tie


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "float16", "int8"])
def test_a_chat_of_three_turns_reads_from_the_cache_what_it_would_compute(
    smollm2: ModelSource, kv_cache_dtype: Any
) -> None:
    """Case L23: not the same text as one turn only."""
    asked = ("What is the capital of France?", "And of Italy?", "Which of them is larger?")
    texts = []
    for caching in (True, False):
        args = EngineArgs(kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=caching, cpu_kvcache_space=0.1)
        engine = make_engine(smollm2, args).engine
        messages: list[dict[str, str]] = []
        for question in asked:
            messages.append({"role": "user", "content": question})
            ids = smollm2.tokenizer.encode_chat(messages)
            engine.add(Generation("turn", ids, SamplingParams(temperature=0, max_tokens=12)))
            deltas = drain(engine)
            is_first = len(messages) == 1
            assert (deltas[0].num_cached >= 32) == (caching and not is_first)
            messages.append({"role": "assistant", "content": "".join(delta.text for delta in deltas)})
        texts.append(messages)
    assert texts[0] == texts[1]
    assert "Paris" in texts[0][1]["content"]
