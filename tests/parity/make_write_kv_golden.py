"""Golden stored bytes of one write, for write_kv_golden_test.cc: inputs and, for every arm, what must be stored.

    python tests/parity/make_write_kv_golden.py

Writes tests/golden/parity/write-kv-{bf16,f16}.json; arrays are hex of little-endian bytes in token order,
[tokens, kv_heads, dim]. A kernel may fuse a multiply and an add in the rotation or run it in double: inputs whose
rounding to 16 bits would depend on that are drawn again, so every correct kernel stores the same bytes.
"""

import json
import pathlib

import numpy as np
import torch

import quantiser

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARMS = ["N", "AF", "AD", "RF", "RD", "SF", "SD", "PF", "PD", "ID", "JD"]
POSITIONS = [0, 1, 2, 63, 511, 512, 1000, 4095]
HEADS, DIM, THETA = 2, 64, 1000000.0
FIXED_KEY, FIXED_VALUE = 0.5, 0.009765625
ALL_SIGNS_OF_ZERO = [0.0, -0.0]


def hex_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def large_slow_bias(generator):
    """A bias as real models have it: large on the slowest pairs and on two fast ones, small elsewhere."""
    bias = torch.randn(HEADS, DIM, generator=generator)
    for pair, magnitude in {31: 300.0, 30: 180.0, 29: 90.0, 28: 45.0, 3: 60.0, 5: 17.0}.items():
        for channel in (pair, pair + DIM // 2):
            bias[:, channel] += magnitude * (2 * torch.rand(HEADS, generator=generator) - 1)
    return bias


def rotations(x, cos, sin):
    """The rotation of x (FP32) in double, and in FP32 with either product of each sum fused."""
    half = x.shape[-1] // 2
    a, b = x[..., :half].double(), x[..., half:].double()
    c, s = cos[:, None].double(), sin[:, None].double()
    f32 = lambda value: value.to(torch.float32).double()
    yield torch.cat([a * c - b * s, b * c + a * s], -1)
    yield torch.cat([a * c - f32(b * s), b * c + f32(a * s)], -1)
    yield torch.cat([f32(a * c) - b * s, f32(b * c) + a * s], -1)


def unstable_elements(native, layer, removed):
    """[tokens, heads, dim / 2] pairs whose 16-bit rounding depends on how the rotation was computed."""
    unstable = torch.zeros(layer.k.shape[:2] + (DIM // 2,), dtype=torch.bool)
    for x in (layer.k + layer.bias, layer.k + (layer.bias - removed)):
        plain = quantiser.round_to(native, quantiser.rotate(x, layer.cos, layer.sin))
        for other in rotations(x, layer.cos, layer.sin):
            differs = quantiser.round_to(native, other.to(torch.float32)) != plain
            unstable |= differs[..., :DIM // 2] | differs[..., DIM // 2:]
    return unstable


def make_input(native, seed):
    generator = torch.Generator().manual_seed(seed)
    frequencies = quantiser.rope_frequencies(THETA, DIM)
    cos, sin = quantiser.rope_tables(frequencies, POSITIONS)
    shape = (len(POSITIONS), HEADS, DIM)
    k, v = 3 * torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    v[0, 0, :6] = torch.tensor(ALL_SIGNS_OF_ZERO + [1e-3, -1e-4, 4.37, 4.54])  # around the fixed scale's edge, 4.375
    v[1, 1] = 0.0                                                             # an all-zero row
    v[2, 0, 5] = 250.0                                                        # an outlier flushes its neighbours
    v[3, 1, :4] = torch.tensor([6.0e4, -3.0e-8, 448.0, -464.0])
    bias = large_slow_bias(generator)
    layer = quantiser.LayerInput(k, v, bias, cos, sin, frequencies)
    removed, classes = quantiser.split_key_bias(bias, frequencies)
    for _ in range(200):
        unstable = unstable_elements(native, layer, removed)
        if not unstable.any():
            return layer, removed, classes
        again = torch.cat([unstable, unstable], -1)
        layer.k[again] = 3 * torch.randn(int(again.sum()), generator=generator)
    raise SystemExit("no stable input found")


def expected_side(side, arm):
    """Fixed scales are no part of a cache: one FP32 a layer and side stands beside it."""
    out = {"dtype": side.dtype, "stored": hex_of(side.stored)}
    if side.scales is not None and arm.scale == "dynamic":
        out["scales"] = hex_of(side.scales)
    return out


def hostile_values(layer):
    """The same layer with non-finite values: stored as 0 and as the largest code; they take no part in a scale."""
    v = layer.v.clone()
    v[4, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    v[5, 1] = float("nan")
    return quantiser.LayerInput(layer.k, v, layer.bias, layer.cos, layer.sin, layer.frequencies)


def main():
    for native, seed in (("bf16", 1), ("f16", 2)):
        layer, removed, classes = make_input(native, seed)
        out = {"native": native, "heads": HEADS, "dim": DIM, "theta": THETA, "positions": POSITIONS,
               "fixed_key_scale": FIXED_KEY, "fixed_value_scale": FIXED_VALUE, "k": hex_of(layer.k),
               "v": hex_of(layer.v), "k_bias": hex_of(layer.bias), "k_removed": hex_of(removed),
               "pair_class": classes.tolist(), "v_hostile": hex_of(hostile_values(layer).v), "arms": {}}
        for name in ARMS:
            arm = quantiser.parse_arm(name, native)
            kv = quantiser.write_layer(arm, native, layer, FIXED_KEY, FIXED_VALUE)
            out["arms"][name] = {"key": expected_side(kv.key, arm), "value": expected_side(kv.value, arm),
                                 "prebias": arm.prebias, "scale": arm.scale}
            if arm.value == "e4m3" and arm.key == "e4m3" and not arm.prebias:
                hostile = quantiser.write_layer(arm, native, hostile_values(layer), FIXED_KEY, FIXED_VALUE)
                out["arms"][name]["value_hostile"] = expected_side(hostile.value, arm)
        fresh = quantiser.write_layer(quantiser.parse_arm("N", native), native, layer)
        out["fresh_k"], out["fresh_v"] = hex_of(fresh.fresh_k), hex_of(fresh.fresh_v)
        target = ROOT / "tests" / "golden" / "parity" / f"write-kv-{native}.json"
        target.write_text(json.dumps(out, indent=0) + "\n")
        print(target.name, target.stat().st_size, "bytes; classes", np.bincount(classes.ravel()).tolist())


if __name__ == "__main__":
    main()
