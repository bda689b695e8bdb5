"""Sampling laws: kept sets by definition, right frequencies, streams that no neighbor disturbs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import RequestError
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import NOT_NUMBERS, SamplerState, _kept, new_state, sample

VOCAB = 1000


def logits(seed: int, rows: int = 1, vocab: int = VOCAB) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def state(output: list[int] | None = None, prompt: list[int] | None = None, **params: Any) -> SamplerState:
    return new_state(SamplingParams(**params), prompt or [1, 2], output if output is not None else [])


def naive_kept(row: np.ndarray[Any, Any], top_k: int, top_p: float, min_p: float) -> list[int]:
    """The definitions, word for word."""
    probabilities = np.exp(row.astype(np.float64) - row.max())
    order = sorted(range(len(row)), key=lambda i: (-probabilities[i], i))
    order = order[: top_k if top_k > 0 else None]
    total = sum(probabilities[i] for i in order)
    nucleus, mass = [], 0.0
    for i in order:
        if mass >= top_p * total and top_p < 1:
            break
        nucleus.append(i)
        mass += probabilities[i]
    return [i for i in nucleus if probabilities[i] >= min_p * probabilities[order[0]]]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([3, 255, 256, 257, 2000]),
    top_k=st.sampled_from([-1, 0, 1, 5, 300, 10**6]),
    top_p=st.sampled_from([1.0, 0.99, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    spread=st.sampled_from([0.01, 3.0, 30.0]),
)
def test_the_kept_tokens_are_those_of_the_definitions(
    seed: int, vocab: int, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    row = (logits(seed, vocab=vocab)[0] * spread).astype(np.float32)
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    ids, weights = _kept(row, params)
    expected = naive_kept(row, top_k, top_p, min_p)
    # Sums in another order may move the border of the nucleus by a token that weighs less than rounding.
    assert abs(len(ids) - len(expected)) <= (0 if top_p == 1 else 1)
    assert ids.tolist()[: len(expected)] == expected[: len(ids)]
    assert len(ids) == len(weights) >= 1


def test_frequencies_are_the_probabilities() -> None:
    row = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    one = state(temperature=1.0, seed=7)
    counts = Counter(sample(row, [one])[0].token for _ in range(20_000))
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert counts[token] / 20_000 == pytest.approx(probability, abs=0.015)


def test_temperature_sharpens() -> None:
    row = np.log(np.array([[0.6, 0.4]], np.float32))
    cold = state(temperature=0.25, seed=1)
    share = np.mean([sample(row, [cold])[0].token == 0 for _ in range(5000)])
    assert share == pytest.approx(0.6**4 / (0.6**4 + 0.4**4), abs=0.03)


def test_a_seeded_stream_does_not_depend_on_the_batch() -> None:
    rows = logits(3, rows=40)
    alone = state(seed=11, temperature=1.5)
    tokens = [sample(rows[i : i + 1], [alone])[0].token for i in range(40)]
    crowded = state(seed=11, temperature=1.5)
    others = [state(seed=i, temperature=0.7, top_p=0.9) for i in range(5)] + [state(temperature=0)]
    again = [
        sample(np.concatenate([logits(i, rows=6), rows[i : i + 1]]), [*others, crowded])[-1].token for i in range(40)
    ]
    assert tokens == again
    assert len(set(tokens)) > 5


def test_parallel_samples_of_one_seed_differ() -> None:
    params = SamplingParams(seed=5, temperature=2.0)
    rows = logits(1, rows=20)
    drawn = [
        [sample(rows[i : i + 1], [s])[0].token for i in range(20)]
        for s in (new_state(params, [1], [], index=0), new_state(params, [1], [], index=1))
    ]
    assert drawn[0] != drawn[1]


def test_greedy_takes_the_first_maximum() -> None:
    row = np.zeros((1, 8), np.float32)
    row[0, [3, 5]] = 2
    assert sample(row, [state(temperature=0)])[0].token == 3
    assert sample(row, [state(temperature=0, logprobs=2)])[0].token == 3


def test_penalties_follow_their_formulas() -> None:
    row = np.array([2.0, -2.0, 1.0, 1.0, 0.5], np.float32)
    one = state([2, 2, 3], prompt=[0, 1], repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    adjusted = one.adjust(row)
    expected = [1.0, -4.0, 0.5 - 0.5 - 0.25 * 2, 0.5 - 0.5 - 0.25, 0.5]
    np.testing.assert_allclose(adjusted, expected, atol=1e-6)
    assert row[0] == 2.0, "the caller's logits are untouched"


def test_counts_grow_with_the_output() -> None:
    output: list[int] = []
    one = state(output, frequency_penalty=1.0, temperature=0)
    output.extend(sample(np.array([[1.0, 0.5, 0.2]], np.float32), [one])[0].token for _ in range(4))
    assert output == [0, 1, 2, 0]


def test_bias_forces_and_forbids() -> None:
    row = logits(5)
    best = int(row[0].argmax())
    assert sample(row, [state(temperature=0, logit_bias={best: -100.0})])[0].token != best
    assert sample(row, [state(temperature=1, seed=1, logit_bias={17: 1000.0})])[0].token == 17


def test_stop_tokens_are_held_back_until_min_tokens() -> None:
    row = np.array([[5.0, 1.0, 0.0]], np.float32)
    output: list[int] = []
    one = new_state(SamplingParams(temperature=0, min_tokens=2), [9], output, forbidden=(0,))
    output.extend(sample(row, [one])[0].token for _ in range(4))
    assert output == [1, 1, 0, 0]


class OnlyEven:
    def __init__(self) -> None:
        self.accepted: list[int] = []

    def apply(self, row: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        row[1::2] = -np.inf

    failure = None

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_a_mask_is_obeyed_and_told(temperature: float) -> None:
    mask = OnlyEven()
    one = new_state(SamplingParams(temperature=temperature, seed=2), [1], [], mask=mask)
    tokens = [sample(logits(i), [one])[0].token for i in range(30)]
    assert all(token % 2 == 0 for token in tokens)
    assert mask.accepted == tokens


def test_logprobs_are_of_the_model_not_of_the_penalties() -> None:
    row = logits(8)
    one = state([4], temperature=0, logprobs=3, presence_penalty=1.0, logit_bias={17: 50.0})
    sampled = sample(row, [one])[0]
    reference = row[0].astype(np.float64) - np.log(np.exp(row[0].astype(np.float64)).sum())
    assert sampled.token == 17
    assert sampled.logprob == pytest.approx(reference[17], abs=1e-9)
    order = np.argsort(-reference)
    assert [token for token, _ in sampled.top] == order[:3].tolist()
    assert sampled.rank == order.tolist().index(17) + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"min_p": 2.0},
        {"n": 0},
        {"n": 65},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0},
        {"logprobs": 21},
        {"max_tokens": 0},
        {"max_tokens": 3, "min_tokens": 4},
        {"stop": ("",)},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: float("inf")}},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"n": 10**400},
        {"logprobs": 10**400},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong)).replace("min_tokens", "max_tokens")) as error:
        SamplingParams(**wrong)
    assert error.value.code == "invalid_request"


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 2.0}, {"n": True}, {"max_tokens": "5"}, {"max_tokens": 2.5}, {"top_k": 1.5}, {"min_tokens": None},
        {"seed": "a"}, {"seed": 1.5}, {"logprobs": True}, {"prompt_logprobs": 1.5}, {"temperature": "hot"},
        {"temperature": None}, {"top_p": True}, {"stop": 3}, {"stop": (3,)},
        {"stop_token_ids": ("a",)}, {"logit_bias": {"5": 1.0}}, {"logit_bias": {5: "x"}}, {"logit_bias": [1]},
        {"structured_outputs": "{}"},
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused_by_name(wrong: dict[str, Any]) -> None:
    """They would fail a step, and with it every request that shares the step."""
    with pytest.raises(RequestError, match=next(iter(wrong))) as error:
        SamplingParams(**wrong)
    assert error.value.code == "invalid_request"


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        max_tokens=np.int64(3), temperature=np.float32(0.5), seed=np.int32(1), logit_bias={np.int64(1): np.float32(2)}
    )
    assert sample(logits(2), [new_state(params, [], [])]) == sample(
        logits(2), [state(max_tokens=3, temperature=0.5, seed=1, logit_bias={1: 2.0})]
    )


def test_a_number_too_large_for_a_float_is_a_number() -> None:
    assert SamplingParams(top_k=10**400, max_tokens=10**400, seed=10**400).top_k == 10**400


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.0, "logprobs": 2}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_up_their_own_row(params: dict[str, Any], bad: float) -> None:
    rows = logits(3, rows=2)
    rows[0, 7] = bad
    states = [state(seed=1, **params), state(seed=1, **params)]
    good = sample(rows, states)[1]
    assert states[0].failure == NOT_NUMBERS
    assert states[1].failure is None
    assert good == sample(rows[1:], [state(seed=1, **params)])[0]


@pytest.mark.parametrize(("stop", "strings"), [("END", ("END",)), (["a", "b"], ("a", "b")), (None, ()), ((), ())])
def test_stop_is_one_string_or_several(stop: str | list[str] | None, strings: tuple[str, ...]) -> None:
    """As in vLLM and in OpenAI's protocol; one string is not its letters."""
    assert SamplingParams(stop=stop).stop_strings == strings
