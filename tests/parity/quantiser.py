"""Stored bytes of keys and values, written in torch from their definition and not from the engine's code.

Definition (docs/formats.md):
  bf16, f16, f32   the element, rounded to nearest even
  e4m3             OCP E4M3 "fn" of x / scale, nearest even, saturating at +-448; a NaN is stored as 0
  i8               offset binary: clamp(round half even(x / scale), -127, 127) + 128; a NaN is stored as 128
  scale            fixed: one FP32 a layer and side; dynamic: max |finite x| of the row / 448 (or / 127), at least FLT_MIN
Keys and values are rounded to the model's native type before an 8-bit side encodes them.
"""

import dataclasses
import math

import numpy as np
import torch

E4M3_MAX = 448.0
I8_MAX = 127.0
FLT_MIN = float(torch.finfo(torch.float32).tiny)

TORCH_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ELEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "e4m3": 1, "i8": 1}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One pair of formats. Key and value are dtype names; scale ("fixed" or "dynamic") is for their 8-bit sides."""

    key: str
    value: str
    prebias: bool = False
    scale: str = "dynamic"


def parse_arm(name, native):
    """Arm of a short name: N, AF, AD, RF, RD, SF, SD, PF, PD, ID, JD; native is "bf16", "f16" or "f32"."""
    letter, scale = name[0], {"": "dynamic", "F": "fixed", "D": "dynamic"}[name[1:]]
    keys = {"N": native, "A": native, "R": "e4m3", "S": "e4m3", "P": "e4m3", "I": "i8", "J": "i8"}
    value = native if letter in "NR" else "e4m3"
    if letter == "N" and name != "N" or letter in "IJ" and scale == "fixed":
        raise ValueError(f"no arm {name}")
    return Arm(keys[letter], value, letter in "PJ", scale)


def is_8bit(dtype):
    return ELEM_BYTES[dtype] == 1


def round_to(dtype, x):
    """x (FP32) rounded to a wide dtype and widened back."""
    return x.to(TORCH_DTYPES[dtype]).to(torch.float32)


def dynamic_scale(dtype, rows):
    """[..., dim] -> [...]: FP32 scale of each row."""
    finite = torch.where(torch.isfinite(rows), rows.abs(), torch.zeros_like(rows))
    largest = I8_MAX if dtype == "i8" else E4M3_MAX
    return (finite.amax(-1) / torch.tensor(largest, dtype=torch.float32)).clamp(min=FLT_MIN)


def encode(dtype, rows, scale=None):
    """FP32 [..., dim] -> uint8 [..., dim * bytes]. scale: FP32 [...] (8-bit dtypes only)."""
    if not is_8bit(dtype):
        return rows.to(TORCH_DTYPES[dtype]).contiguous().view(torch.uint8)
    scaled = rows / scale[..., None]
    if dtype == "e4m3":
        scaled = torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled).clamp(-E4M3_MAX, E4M3_MAX)
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    scaled = torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled)
    return (scaled.clamp(-I8_MAX, I8_MAX).round() + 128).to(torch.uint8)


def decode(dtype, stored, scale=None):
    """uint8 [..., dim * bytes] -> FP32 [..., dim]."""
    if not is_8bit(dtype):
        return stored.contiguous().view(TORCH_DTYPES[dtype]).to(torch.float32)
    if dtype == "e4m3":
        values = stored.contiguous().view(torch.float8_e4m3fn).to(torch.float32)
    else:
        values = stored.to(torch.float32) - 128
    return values * scale[..., None]


def row_scales(dtype, rows, policy, fixed):
    """FP32 scale of each row [...] under a policy; None for a wide dtype. fixed: the layer's FP32 of that side."""
    if not is_8bit(dtype):
        return None
    if policy == "dynamic":
        return dynamic_scale(dtype, rows)
    return torch.full(rows.shape[:-1], fixed, dtype=torch.float32)


# ------------------------------------------------------------------------------------------------ rotation and bias


def rope_frequencies(theta, head_dim):
    """Radians per position of each pair in double: theta^(-2p / head_dim)."""
    return np.array([theta ** (-2.0 * p / head_dim) for p in range(head_dim // 2)], dtype=np.float64)


def rope_tables(frequencies, positions):
    """cos and sin, FP32 [positions, pairs]; the angles are formed in double."""
    angles = np.asarray(positions, dtype=np.float64)[:, None] * frequencies
    return (torch.from_numpy(np.cos(angles)).to(torch.float32), torch.from_numpy(np.sin(angles)).to(torch.float32))


def rotate(x, cos, sin):
    """x [tokens, heads, dim], cos and sin [tokens, dim / 2]; pair p is channels p and p + dim / 2."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


KEPT, SLOW, FAST = 0, 1, 2


def split_key_bias(bias, frequencies, window_keys=512, degree=4, max_slow_error=0.01, large_magnitude=16.0,
                   max_fast_pairs=8):
    """bias [kv_heads, dim] -> (removed [kv_heads, dim] FP32, classes [kv_heads, pairs]).

    Pairs leave slowest first while the summed Taylor remainder over half a window stays within max_slow_error; of the
    others at most max_fast_pairs, the largest, leave if their magnitude is at least large_magnitude.
    """
    heads, dim = bias.shape
    pairs = dim // 2
    removed, classes = bias.clone().to(torch.float32), np.full((heads, pairs), KEPT)
    for head in range(heads):
        row = bias[head].to(torch.float64).numpy()
        magnitude = np.hypot(row[:pairs], row[pairs:])
        reach = frequencies * window_keys / 2.0
        error = math.sqrt(2.0) * magnitude * reach ** (degree + 1) / math.factorial(degree + 1) / math.sqrt(dim)
        rest, total = [], 0.0
        for pair in sorted(range(pairs), key=lambda p: frequencies[p]):
            if not rest and total + error[pair] <= max_slow_error:
                total += error[pair]
                classes[head, pair] = SLOW
            else:
                rest.append(pair)
        for pair in sorted(rest, key=lambda p: -magnitude[p])[:max_fast_pairs]:
            if magnitude[pair] >= large_magnitude:
                classes[head, pair] = FAST
        for pair in np.flatnonzero(classes[head] == KEPT):
            removed[head, pair] = removed[head, pair + pairs] = 0.0
    return removed, classes


# -------------------------------------------------------------------------------------------------------- one layer


@dataclasses.dataclass
class StoredSide:
    """What one side of one layer holds: bytes [tokens, heads, row bytes], scales [tokens, heads] or None."""

    dtype: str
    stored: torch.Tensor
    scales: torch.Tensor | None

    def read(self):
        return decode(self.dtype, self.stored, self.scales)


def store_side(dtype, rows16, policy="dynamic", fixed=1.0):
    """Stores rows that are already rounded to the 16-bit type: FP32 [tokens, heads, dim]."""
    scales = row_scales(dtype, rows16, policy, fixed)
    return StoredSide(dtype, encode(dtype, rows16, scales), scales)


@dataclasses.dataclass
class LayerKv:
    """fresh_k, fresh_v: rounded keys and values before storage; k16: the keys that were encoded (fresh_k, or without
    the removed vector); removed: [heads, dim] or None."""

    key: StoredSide
    value: StoredSide
    fresh_k: torch.Tensor
    fresh_v: torch.Tensor
    k16: torch.Tensor
    removed: torch.Tensor | None


@dataclasses.dataclass
class LayerInput:
    """k [tokens, heads, dim] before bias and rotation, v complete, bias [heads, dim] or None, cos and sin tables."""

    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    frequencies: np.ndarray


def write_layer(arm, native, layer, fixed_key=1.0, fixed_value=1.0):
    """The whole definition of one write: LayerInput (FP32) -> LayerKv."""
    key_wide = native if is_8bit(arm.key) else arm.key
    value_wide = native if is_8bit(arm.value) else arm.value
    with_bias = layer.k if layer.bias is None else layer.k + layer.bias
    fresh_k = round_to(key_wide, rotate(with_bias, layer.cos, layer.sin).to(torch.float32))
    fresh_v = round_to(value_wide, layer.v.to(torch.float32))
    k16, removed = fresh_k, None
    if arm.prebias:
        if layer.bias is None:
            raise ValueError("bias removal needs a key bias")
        removed, _ = split_key_bias(layer.bias.to(torch.float32), layer.frequencies)
        rest = layer.k + (layer.bias.to(torch.float32) - removed).to(layer.k.dtype)
        k16 = round_to(native, rotate(rest, layer.cos, layer.sin).to(torch.float32))
    return LayerKv(store_side(arm.key, k16, arm.scale, fixed_key),
                   store_side(arm.value, fresh_v, arm.scale, fixed_value), fresh_k, fresh_v, k16, removed)
