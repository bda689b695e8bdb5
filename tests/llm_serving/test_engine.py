"""The engine over a fake device: what callers see is right, whatever the scheduler does underneath."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vtk.errors import RequestError
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.core.step_inputs import StepInputs
from vtk.llm_serving.engine import Delta, Generation, LLMEngine, Vocabulary
from vtk.llm_serving.sampling.params import SamplingParams

VOCAB = 128  # token i is the character i; 0 ends the output
PROMPT = [ord(c) for c in "the quick brown fox"]


def row_for(tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The fake model: logits that depend on every token before, printable tokens far likelier than others."""
    row = np.random.default_rng(abs(hash(tuple(tokens)))).normal(0, 2, VOCAB).astype(np.float32)
    row[:32] -= 50
    row[127] -= 50
    return row


class FakeRunner:
    """KV slots that hold the tokens themselves."""

    backend = device = "fake"
    vocab_size = VOCAB

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self._slots = np.full(num_blocks * block_size, -1, np.int64)

    def forward(self, inputs: StepInputs) -> np.ndarray[Any, np.dtype[np.float32]]:
        size, attention = self.block_size, inputs.attention
        for source, target in inputs.copies:
            self._slots[target * size : (target + 1) * size] = self._slots[source * size : (source + 1) * size]
        self._slots[attention.slot_mapping] = inputs.token_ids
        rows = []
        for wanted in inputs.logits_rows:
            i = int(np.searchsorted(attention.cu_seqlens, wanted, side="right")) - 1
            past = np.arange(inputs.positions[wanted] + 1)
            rows.append(row_for(self._slots[attention.block_tables[i][past // size] * size + past % size].tolist()))
        return np.array(rows, np.float32).reshape(-1, VOCAB)

    def close(self) -> None:
        pass


def make(num_blocks: int = 64, **config: Any) -> LLMEngine:
    settings = {"max_model_len": 200, "max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 4} | config
    caching = settings.pop("caching", True)
    vocabulary = Vocabulary(lambda token: bytes([token]), frozenset({0}), frozenset({0}))
    runner = FakeRunner(num_blocks, settings["block_size"])
    return LLMEngine(runner, vocabulary, SchedulerConfig(**settings), enable_prefix_caching=caching)


def run(engine: LLMEngine, after_step: Callable[[], None] = lambda: None) -> dict[tuple[str, int], list[Delta]]:
    deltas = defaultdict(list)
    while engine.has_work:
        for delta in engine.step():
            deltas[delta.request_id, delta.index].append(delta)
        engine.scheduler.check_integrity()
        after_step()
    assert engine.num_live == 0
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks
    return deltas


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def greedy(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(row_for(tokens).argmax()))
    return "".join(map(chr, tokens[len(prompt) :]))


def request(name: str = "a", prompt: list[int] = PROMPT, **params: Any) -> Generation:
    return Generation(name, prompt, SamplingParams(**({"temperature": 0.0, "max_tokens": 12} | params)))


def test_a_greedy_request_streams_its_text() -> None:
    engine = make()
    engine.add(request())
    deltas = run(engine)["a", 0]
    assert text_of(deltas) == greedy(PROMPT, 12)
    assert [delta.finish_reason for delta in deltas] == [None] * 11 + [FinishReason.LENGTH]
    assert all(len(delta.tokens) == 1 for delta in deltas)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [9, 16, 200])
@pytest.mark.parametrize("num_blocks", [14, 64])
def test_text_depends_on_nothing_but_the_request(caching: bool, budget: int, num_blocks: int) -> None:
    engine = make(num_blocks, caching=caching, max_num_batched_tokens=budget)
    prompts = {f"r{i}": PROMPT[: 3 + 2 * i] for i in range(8)}
    for name, prompt in prompts.items():
        engine.add(request(name, prompt, max_tokens=20))
    deltas = run(engine)
    assert {name: text_of(deltas[name, 0]) for name in prompts} == {n: greedy(p, 20) for n, p in prompts.items()}


def test_a_stop_string_ends_the_text_before_it() -> None:
    whole = greedy(PROMPT, 12)
    stop = whole[4:7]
    engine = make()
    engine.add(request("cut", stop=(stop,)))
    engine.add(request("kept", stop=(stop,), include_stop_str_in_output=True))
    deltas = run(engine)
    assert text_of(deltas["cut", 0]) == whole[: whole.index(stop)]
    assert text_of(deltas["kept", 0]) == whole[: whole.index(stop) + 3]
    assert deltas["cut", 0][-1].finish_reason is FinishReason.STOP
    assert deltas["cut", 0][-1].stop_reason == stop


def test_text_held_for_a_stop_string_is_sent_at_the_end() -> None:
    whole = greedy(PROMPT, 12)
    engine = make()
    engine.add(request(stop=(whole[-2:] + "never",)))
    assert text_of(run(engine)["a", 0]) == whole


def test_stop_ids_and_eos_are_not_shown() -> None:
    whole = greedy(PROMPT, 12)
    engine = make()
    engine.add(request("id", stop_token_ids=(ord(whole[5]),)))
    engine.add(request("eos", logit_bias={0: 1000.0}))
    engine.add(request("on", logit_bias={0: 1000.0}, ignore_eos=True, max_tokens=3))
    engine.add(request("late", logit_bias={0: 1000.0}, min_tokens=2))
    deltas = run(engine)
    assert text_of(deltas["id", 0]) == whole[: whole.index(whole[5])]
    assert deltas["id", 0][-1].stop_reason == ord(whole[5])
    assert (text_of(deltas["eos", 0]), deltas["eos", 0][-1].stop_reason) == ("", None)
    assert (text_of(deltas["on", 0]), len(deltas["on", 0])) == ("", 3)
    assert text_of(deltas["late", 0]) == whole[:2]


def test_parallel_samples_are_streams_of_their_own() -> None:
    engine = make()
    engine.add(request(n=3, temperature=1.5, seed=3))
    engine.add(request("greedy", n=2))
    deltas = run(engine)
    texts = [text_of(deltas["a", i]) for i in range(3)]
    assert len(set(texts)) == 3
    assert text_of(deltas["greedy", 0]) == text_of(deltas["greedy", 1]) == greedy(PROMPT, 12)
    alone = make(caching=False, max_num_batched_tokens=60)
    alone.add(request(n=3, temperature=1.5, seed=3))
    again = run(alone)
    assert [text_of(again["a", i]) for i in range(3)] == texts


def test_logprobs_are_those_of_the_rows() -> None:
    engine = make()
    engine.add(request(logprobs=2, max_tokens=2))
    first = run(engine)["a", 0][0].tokens[0]
    row = row_for(PROMPT).astype(np.float64)
    logprobs = row - np.log(np.exp(row).sum())
    assert first.rank == 1
    assert first.logprob == pytest.approx(logprobs.max(), abs=1e-6)
    assert [token for token, _ in first.top] == np.argsort(-logprobs)[:2].tolist()


@pytest.mark.parametrize("warm", [False, True])
def test_prompt_logprobs_cover_the_whole_prompt_even_when_cached(warm: bool) -> None:
    engine = make()
    if warm:
        engine.add(request())
        run(engine)
    engine.add(request("p", prompt_logprobs=1, max_tokens=2))
    deltas = run(engine)["p", 0]
    logprobs = deltas[0].prompt_logprobs
    assert logprobs is not None
    assert logprobs[0] is None
    assert [sampled.token for sampled in logprobs[1:] if sampled] == PROMPT[1:]
    for i, sampled in enumerate(logprobs[1:], start=1):
        row = row_for(PROMPT[:i]).astype(np.float64)
        assert sampled is not None
        assert sampled.logprob == pytest.approx(row[PROMPT[i]] - np.log(np.exp(row).sum()), abs=1e-6)
    assert deltas[1].prompt_logprobs is None


def test_abort_at_any_step_frees_everything() -> None:
    for when in range(14):
        engine = make(num_blocks=24, max_num_batched_tokens=9)
        engine.add(request("stay", PROMPT[:6], max_tokens=8))
        engine.add(request("go", n=2))
        steps = iter(range(1000))

        def leave(engine: LLMEngine = engine, steps: Any = steps, when: int = when) -> None:
            if next(steps) == when:
                engine.abort("go")

        deltas = run(engine, leave)
        assert text_of(deltas["stay", 0]) == greedy(PROMPT[:6], 8)
        assert engine.abort("go") is False


def test_a_refused_request_leaves_nothing_behind() -> None:
    engine = make()
    with pytest.raises(RequestError, match="exceed the context of 200"):
        engine.add(request(max_tokens=500, n=3))
    assert engine.num_live == 0
    assert not engine.has_work
    engine.add(request())
    with pytest.raises(RequestError, match="already live"):
        engine.add(request())


def test_without_max_tokens_the_context_is_the_limit() -> None:
    """Case L43: no shift, no endless output: `length` at the edge."""
    engine = make(max_model_len=40)
    engine.add(request(max_tokens=None))
    deltas = run(engine)["a", 0]
    assert len(deltas) == 40 - len(PROMPT)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_cached_tokens_are_told() -> None:
    engine = make()
    for name in ("cold", "warm"):
        engine.add(request(name))
        assert run(engine)[name, 0][-1].num_cached == (0 if name == "cold" else 16)


def test_many_requests_leave_no_trace() -> None:
    """Case L36: nothing is kept of a finished request."""
    engine = make()
    for i in range(300):
        engine.add(request(f"r{i}", PROMPT[: 1 + i % 19], max_tokens=1 + i % 3))
        if i % 7 == 0:
            run(engine)
    run(engine)
    assert not engine._by_id
    assert not engine._sequences
