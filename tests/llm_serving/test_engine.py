"""The engine over a fake device: what callers see is right, whatever the scheduler does underneath."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_engine import PROMPT, greedy, make, request, row_for

from vtk.errors import RequestError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, LLMEngine
from vtk.llm_serving.sampling.sampler import NOT_NUMBERS


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


def test_the_static_baseline_gives_the_same_text() -> None:
    engine = make(scheduling="static", max_num_seqs=3)
    for i in range(7):
        engine.add(request(f"r{i}", PROMPT[: 3 + 2 * i], max_tokens=5 + i, n=1 + i % 2))
    deltas = run(engine)
    assert {name: text_of(parts) for (name, _), parts in deltas.items()} == {
        f"r{i}": greedy(PROMPT[: 3 + 2 * i], 5 + i) for i in range(7)
    }
    assert engine.cache.stats.hits == 0


def test_after_a_reset_the_engine_is_empty_and_knows_nothing() -> None:
    engine = make()
    engine.add(request("a", n=3))
    engine.step()
    engine.reset()
    assert run(engine) == {}
    engine.add(request("a"))
    assert run(engine)["a", 0][0].num_cached == 0


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
        engine.add(request(max_tokens=3))
    assert text_of(run(engine)["a", 0]) == greedy(PROMPT, 12)


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


def test_no_delta_needs_the_logits_of_a_step_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner overwrites them in the next step."""

    def deltas(*, overwrite: bool) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
        engine = make()
        forward, last = engine._runner.forward, np.zeros(0, np.float32)

        def overwriting(*arguments: Any) -> Any:
            nonlocal last
            last[...] = np.nan
            last = forward(*arguments)
            return last

        if overwrite:
            monkeypatch.setattr(engine._runner, "forward", overwriting)
        engine.add(request("greedy", logprobs=3, prompt_logprobs=2, n=2))
        engine.add(request("drawn", temperature=1.0, seed=1, logprobs=1, n=2))
        engine.add(request("bent", repetition_penalty=1.2, logit_bias={70: 9.0, 71: 9.0}, min_tokens=4))
        found = run(engine)
        return {name: [(d.tokens, d.text, d.prompt_logprobs) for d in parts] for name, parts in found.items()}

    assert deltas(overwrite=True) == deltas(overwrite=False)


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


@pytest.mark.parametrize("params", [{"logit_bias": {256: 1.0}}, {"logit_bias": {-1: 1.0}}, {"stop_token_ids": (256,)}])
def test_a_token_that_the_model_does_not_have_is_refused_before_any_step(params: dict[str, Any]) -> None:
    """It would fail the step, and with it everybody's request."""
    engine = make()
    engine.add(request("b", max_tokens=3))
    wrong = request("a", **params)
    for ask in (engine.check, engine.add):
        with pytest.raises(RequestError, match="Token ids of this model are 0 to 127"):
            ask(wrong)
    assert text_of(run(engine)["b", 0]) == greedy(PROMPT, 3)


def test_logits_that_are_no_numbers_end_their_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of damaged weights says so, instead of answering with token 0 for ever."""

    def row(tokens: list[int]) -> Any:
        values = row_for(tokens)
        return values * np.float32("nan") if tokens[0] == ord("X") and len(tokens) > 4 else values

    monkeypatch.setattr("fake_engine.row_for", row)
    engine = make()
    engine.add(request("bad", [ord("X")] * 3))
    engine.add(request("good"))
    deltas = run(engine)
    assert [delta.finish_reason for delta in deltas["bad", 0]] == [None, None, FinishReason.ABORT]
    assert deltas["bad", 0][-1].stop_reason == NOT_NUMBERS
    monkeypatch.undo()
    assert text_of(deltas["good", 0]) == greedy(PROMPT, 12)
