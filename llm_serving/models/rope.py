"""Rotary tables (Su et al. 2021, arXiv:2104.09864) and what a static scaling does to their frequencies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vtk.llm_serving.models.config import ModelConfig

Floats = npt.NDArray[np.float32]


def rope_tables(config: ModelConfig, max_positions: int) -> tuple[Floats, Floats]:
    """cos and sin of every angle: two (max_positions, head_dim / 2) float32.

    Angles are float32 products, as models are trained with; what they are made of and into is rounded once.
    """
    frequencies = _frequencies(config.rope_theta, config.head_dim)
    if config.rope_factors:
        frequencies = np.divide(frequencies, np.array(config.rope_factors, np.float32))
    angles = (np.arange(max_positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


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


def _frequencies(theta: float, head_dim: int) -> Floats:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers: Floats = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    frequencies: Floats = np.float32(1) / powers
    return frequencies
