"""Rotary tables (Su et al. 2021, arXiv:2104.09864) and what a static scaling does to their frequencies."""

from __future__ import annotations

import math

import torch

from vtk.llm_serving.models.config import ModelConfig


def rope_tables(config: ModelConfig, max_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every angle: two (max_positions, head_dim / 2) float32."""
    frequencies = _frequencies(config.rope_theta, config.head_dim)
    if config.rope_factors:
        frequencies = frequencies / torch.tensor(config.rope_factors, dtype=torch.float32)
    angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def llama3_factors(
    theta: float, head_dim: int, *, factor: float, low_freq_factor: float, high_freq_factor: float, original: int
) -> tuple[float, ...]:
    """Frequency divisors of Llama 3.1: 1 for short wavelengths, `factor` for long ones, a ramp between.

    Source: the `llama3` rope type of Llama 3.1's published configuration and code; `original` is
    original_max_position_embeddings.
    """

    def divisor(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)))
        return 1 / ((1 - kept) / factor + kept)

    return tuple(divisor(frequency) for frequency in _frequencies(theta, head_dim).tolist())


def _frequencies(theta: float, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponents)
