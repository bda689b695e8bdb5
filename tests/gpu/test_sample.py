"""Sampling on the device: the reference's token for the same seed, step and row."""

from typing import Any

import pytest
import torch

from vtk.kernels.sample import cuda
from vtk.kernels.sample.reference import gumbel_noise, sample

pytestmark = pytest.mark.gpu

DECIDED = 1e-4  # a reference score that leads by more is the same token in float32


def apart(rows: int, vocab_size: int) -> torch.Tensor:
    """Logits in random order whose steps of 1/16 every type holds and no filter cuts by accident of rounding."""
    return torch.stack([torch.randperm(vocab_size) for _ in range(rows)]).float() / 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (3.0, 7, 1.0, 0.0), (2.0, 0, 0.6, 0.0), (2.0, 20, 0.5, 0.3)],
)
def test_it_draws_the_tokens_of_the_reference(
    gpu: Any, dtype: torch.dtype, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rows, vocab_size = gpu.pick((33, 2500), (2, 40))
    # 8 bits of a bfloat16 hold the steps up to 16 only: logits that it makes equal would be cut together or not at all.
    logits = apart(rows, vocab_size if dtype == torch.float32 else min(vocab_size, 250)).to(dtype)
    full = [torch.full((rows,), value) for value in (temperature, top_p, min_p)]
    seeds, steps = torch.randint(1 << 60, (rows,)), torch.randint(1 << 20, (rows,))
    rest = [full[0], torch.full((rows,), top_k, dtype=torch.int32), full[1], full[2], seeds, steps]
    tokens, logprobs = (part.cpu() for part in cuda.sample(*(part.to(gpu.device) for part in (logits, *rest))))
    expected, expected_logprobs = sample(logits.double(), *rest)
    same = tokens == expected
    if temperature == 0:
        assert same.all()
    else:
        noise = gumbel_noise(seeds, steps, logits.shape[1], torch.float64)
        scores = logits.double() / temperature + noise
        ours, theirs = (scores.gather(1, chosen[:, None])[:, 0] for chosen in (tokens, expected))
        assert ((theirs - ours).abs() < DECIDED)[~same].all()
    torch.testing.assert_close(logprobs[same], expected_logprobs[same], rtol=1e-5, atol=1e-5)
