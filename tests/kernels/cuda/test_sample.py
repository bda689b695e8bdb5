"""Sampling in the interpreter: the reference's token for the same seed, step and row, and the reference's own laws."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from vtk.kernels.sample import cuda
from vtk.kernels.sample.reference import gumbel_noise, philox, sample

DECIDED = 1e-4  # a reference score that leads by more is the same token in float32


@dataclass
class Rows:
    """The arguments of one call."""

    logits: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    steps: torch.Tensor

    def arguments(self) -> list[torch.Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def rows(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
) -> Rows:
    count = len(logits)

    def full(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype)

    return Rows(
        logits, full(temperature, torch.float32), full(top_k, torch.int32), full(top_p, torch.float32),
        full(min_p, torch.float32), torch.arange(count) + seed, torch.arange(count) * 3,
    )  # fmt: skip


def scores(given: Rows) -> torch.Tensor:
    """What the reference takes the largest of, without its filters."""
    shifted = given.logits.double() - given.logits.double().amax(1, keepdim=True)
    noise = gumbel_noise(given.seeds, given.steps, given.logits.shape[1], torch.float64)
    return shifted / given.temperature[:, None] + noise


def check(given: Rows, module: Any = cuda) -> None:
    tokens, logprobs = module.sample(*given.arguments())
    expected, expected_logprobs = sample(given.logits.double(), *given.arguments()[1:])
    ours = scores(given).gather(1, tokens[:, None])[:, 0]
    theirs = scores(given).gather(1, expected[:, None])[:, 0]
    same = tokens == expected
    # float32 may only choose otherwise between scores as good as equal.
    assert ((theirs - ours).abs() < DECIDED)[~same & (given.temperature > 0)].all(), (tokens, expected)
    assert same[given.temperature == 0].all()
    torch.testing.assert_close(logprobs[same], expected_logprobs[same], rtol=1e-5, atol=1e-5)


def apart(count: int, vocab_size: int) -> torch.Tensor:
    """Logits in random order whose steps of 1/16 every type holds and no filter cuts by accident of rounding."""
    return torch.stack([torch.randperm(vocab_size) for _ in range(count)]).float() / 16


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "filters",
    [{}, {"temperature": 0.0}, {"temperature": 0.3}, {"min_p": 0.4}, {"top_k": 1}, {"top_k": 7, "temperature": 4.0}],
    ids=str,
)
def test_it_draws_the_tokens_of_the_reference(dtype: torch.dtype, filters: dict[str, Any]) -> None:
    check(rows(apart(2, 150).to(dtype), seed=1 << 40, **filters))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "filters", [{"top_p": 0.6}, {"top_p": 0.5, "top_k": 20, "min_p": 0.3, "temperature": 2.0}], ids=str
)
def test_the_likeliest_that_reach_a_share(filters: dict[str, Any]) -> None:
    check(rows(apart(2, 40), **filters))


@pytest.mark.usefixtures("interpreted")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab_size=st.integers(1, 200),
    size=st.floats(0.01, 30),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    seed=st.integers(0, 1 << 62),
)
def test_any_logits(vocab_size: int, size: float, temperature: float, seed: int) -> None:
    torch.manual_seed(seed % (1 << 30))
    logits = torch.randn(1, vocab_size) * size
    logits[0, torch.rand(vocab_size) < 0.3] = -torch.inf  # what a grammar forbids
    logits[0, seed % vocab_size] = 1.0
    check(rows(logits, temperature, seed=seed))


@pytest.mark.usefixtures("interpreted")
def test_rows_wider_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "BLOCK", 32)
    check(rows(apart(1, 75), temperature=8.0))
    check(rows(apart(1, 75), top_k=3))
    check(rows(apart(1, 75), temperature=0.0))


@pytest.mark.usefixtures("interpreted")
def test_rows_beside_each_other_in_wider_memory(buffer: Callable[..., Any]) -> None:
    """Rows of different parameters, each with its own token; what lies between them is not read."""
    logits = buffer(3, 30, gap=2)
    logits.tensor.copy_(apart(3, 30))
    mixed = replace(
        rows(logits.tensor), temperature=torch.tensor([0.0, 1.0, 5.0]), top_k=torch.tensor([0, 3, 0], dtype=torch.int32)
    )
    check(mixed)
    tokens, _ = cuda.sample(*mixed.arguments())
    alone, _ = cuda.sample(*[argument[1:2] for argument in mixed.arguments()])
    assert alone[0] == tokens[1]


@pytest.mark.usefixtures("interpreted")
def test_greedy_takes_the_first_of_equals() -> None:
    tokens, logprobs = cuda.sample(*rows(torch.tensor([[0.0, 3.0, 3.0, 1.0]]), temperature=0.0).arguments())
    assert tokens.tolist() == [1]
    torch.testing.assert_close(logprobs, torch.tensor([0.0, 3.0, 3.0, 1.0]).log_softmax(0)[1:2])


def test_the_random_words_are_philox() -> None:
    """Known answers of Random123 for Philox4x32-10: zeros, and the digits of pi."""
    zero = torch.tensor([0])
    assert philox(zero, zero, zero).item() == 0x6627E8D5
    ones = torch.tensor([0xFFFFFFFF])
    assert 0 <= philox(torch.tensor([-1]), ones, ones).item() <= 0xFFFFFFFF


@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 2.0, "top_k": 4, "top_p": 0.8}],
    ids=str,
)
def test_the_reference_draws_from_its_distribution(filters: dict[str, Any]) -> None:
    """20,000 draws against the probabilities worked out by hand from the filters' definitions (chi-squared at 1e-4)."""
    logits, count = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0]), 20_000
    given = rows(logits.expand(count, -1), **filters)
    given.steps = torch.arange(count)
    given.seeds = torch.full((count,), 11)
    tokens, _ = sample(*given.arguments())
    weights = (logits.double() / filters.get("temperature", 1.0)).softmax(0).numpy()
    kept = weights.copy()
    kept[filters.get("top_k") or 6 :] = 0
    kept[(np.cumsum(kept) - kept) >= filters.get("top_p", 1.0) * kept.sum()] = 0
    kept[weights < filters.get("min_p", 0.0) * weights.max()] = 0
    kept /= kept.sum()
    seen = np.bincount(tokens.numpy(), minlength=6)
    assert (seen[kept == 0] == 0).all()
    wanted = kept[kept > 0] * count
    assert ((seen[kept > 0] - wanted) ** 2 / wanted).sum() < 25.8


def test_a_token_does_not_depend_on_the_batch() -> None:
    given = rows(torch.randn(9, 50))
    tokens, logprobs = sample(*given.arguments())
    for row in range(9):
        alone = sample(*[argument[row : row + 1] for argument in given.arguments()])
        assert (alone[0].item(), alone[1].item()) == (tokens[row].item(), pytest.approx(logprobs[row].item(), abs=1e-6))


MUTATIONS = [
    ("total * tl.exp(largest - higher)", "total"),
    ("bits ^ ((bits >> 31) & 0x7FFFFFFF)", "bits"),
    ("kept = (_order(value) >= least) & (tl.exp", "kept = (tl.exp"),
    ("low = tl.where(reached, middle, low)", "low = tl.where(reached, middle + 1, low)"),
    ("kept = (_order(value) >= least) & (start", "kept = (_order(value) < least) & (start"),
    ("wanted = top_p * ", "wanted = top_p + 0 * "),
    ("-tl.log(1.0 - uniform)", "-tl.log(uniform)"),
    ("+ step.to(tl.uint32)", ""),
    ("(tl.exp(scaled) >= min_p) & ", ""),
    ("temperature = tl.where(is_greedy, 1.0, temperature)", "temperature = tl.where(is_greedy, 1.0, 1.0)"),
    ("start + tl.argmax(score, 0)", "tl.argmax(score, 0)"),
    ("- largest - tl.log(total))", "- largest)"),
]


def law(module: Any) -> None:
    torch.manual_seed(3)
    module.BLOCK = 16
    check(rows(torch.arange(20.0)[None] / 4, temperature=0.5), module)
    module.BLOCK = 32
    for filters in ({"top_p": 0.4}, {"top_k": 2, "temperature": 8.0}, {"min_p": 0.8, "temperature": 2.0}):
        check(rows(apart(6, 20) * 2 - 2.5, **filters), module)


@pytest.mark.usefixtures("interpreted")
def test_the_law_that_catches_mutations_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "BLOCK", cuda.BLOCK)
    law(cuda)


@pytest.mark.parametrize(("old", "new"), MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[[str, str, str], Any], old: str, new: str) -> None:
    mutant = mutated(cuda.__name__, old, new)
    with pytest.raises((AssertionError, InterpreterError)):
        law(mutant)
