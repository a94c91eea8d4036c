"""Rotary frequencies and tables in f64, rounded once to f32 (Su et al. 2021; Llama 3.1's interpolation)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from chairlift.ops.interface import Float32, RopeSpec

Float64 = npt.NDArray[np.float64]


def inverse_frequencies(spec: RopeSpec) -> Float64:
    """Radians per position of each pair, scaling included: f64 `[head_dim / 2]`; raises ValueError when unknown."""
    plain = spec.base ** (-np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim)
    if spec.scaling == "none":
        scaled = plain
    elif spec.scaling == "linear":
        scaled = plain / spec.factor
    elif spec.scaling == "llama3":
        scaled = _llama3(plain, spec)
    else:
        raise ValueError(f"rope scaling is {spec.scaling!r}; known: none, linear, llama3")
    if spec.freq_divisors:
        if len(spec.freq_divisors) != len(scaled):
            raise ValueError(f"{len(spec.freq_divisors)} rope divisors for {len(scaled)} pairs")
        scaled = scaled / np.asarray(spec.freq_divisors, np.float64)
    return scaled


def cos_sin_tables(spec: RopeSpec) -> tuple[Float32, Float32]:
    """cos and sin of every position and pair: f32 `[max_positions, head_dim / 2]` each."""
    positions = np.arange(spec.max_positions, dtype=np.float64)
    angles = np.outer(positions, inverse_frequencies(spec))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _llama3(plain: Float64, spec: RopeSpec) -> Float64:
    """Keep short wavelengths, divide long ones by `factor`, blend in between."""
    turns = spec.original_max_positions * plain / (2 * math.pi)  # over the original context
    low, high = spec.low_freq_factor, spec.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: Float64 = keep * plain + (1.0 - keep) * plain / spec.factor
    return blended
