#!/usr/bin/env python3
"""Writes tests/golden/gguf/*: bytes of every decoded ggml type with the values gguf-py gives them, a small GGUF file
written by gguf-py's GGUFWriter and a small safetensors file written by the safetensors package.

Needs: pip install numpy gguf safetensors. The files are deterministic; run it only to add a type.

TYPE.bin: uint32 stored bytes, uint32 elements, the stored blocks, the elements as float32; all little-endian.
"""

import pathlib
import struct

import gguf
import numpy as np
import safetensors.numpy

FOLDER = pathlib.Path(__file__).parent / "gguf"

# Byte offsets of the half-precision scales inside one block. Blocks are random bytes, which reaches every code, but
# the scales are kept finite: NaN payloads are not part of the contract.
HALF_OFFSETS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
# Added later, from a generator of their own: the files above keep their random bytes.
LATER_HALF_OFFSETS = {"Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q5_K": [0, 2], "IQ4_NL": [0], "IQ4_XS": [0],
                      "MXFP4": []}
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF]  # zeros, subnormals, largest


def random_halves(rng, count):
    """Finite halves from 2^-14 to 2^1, both signs."""
    return (rng.integers(0x0400, 0x4000, count) | (rng.integers(0, 2, count) << 15)).astype(np.uint16)


def quantised_blocks(rng, name, num_blocks):
    kind = getattr(gguf.GGMLQuantizationType, name)
    block_elems, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (num_blocks, block_bytes)).astype(np.uint8)
    for position, offset in enumerate((HALF_OFFSETS | LATER_HALF_OFFSETS)[name]):
        halves = random_halves(rng, num_blocks)
        halves[0] = SPECIAL_HALVES[(len(name) + position) % len(SPECIAL_HALVES)]
        blocks[:, offset:offset + 2] = halves[:, None].view(np.uint8)
    if name == "MXFP4":  # exponents 0 and 1 are subnormal scales; 12 times 2^126 is infinite
        blocks[:4, 0] = [0, 1, 2, 254]
        blocks[4:, 0] = rng.integers(100, 140, num_blocks - 4)
    values = gguf.quants.dequantize(blocks.reshape(-1), kind)
    return blocks.tobytes(), values.astype(np.float32).reshape(-1)


def write_type(name, stored, values):
    data = struct.pack("<II", len(stored), values.size) + stored + values.astype("<f4").tobytes()
    (FOLDER / f"{name.lower()}.bin").write_bytes(data)


def write_types(rng):
    for name in HALF_OFFSETS:
        stored, values = quantised_blocks(rng, name, 3 if name.endswith("K") else 6)
        write_type(name, stored, values)
    halves = np.concatenate([random_halves(rng, 26), np.array(SPECIAL_HALVES, np.uint16)])
    write_type("F16", halves.tobytes(), halves.view(np.float16).astype(np.float32))
    words = np.concatenate([random_halves(rng, 26), np.array([0, 0x8000, 1, 0x7F7F, 0xFF7F, 0x0080], np.uint16)])
    values = gguf.quants.dequantize(words.view(np.uint8), gguf.GGMLQuantizationType.BF16)
    write_type("BF16", words.tobytes(), values.reshape(-1))
    plain = rng.standard_normal(16).astype(np.float32)
    write_type("F32", plain.tobytes(), plain)


def write_later_types(rng):
    for name in LATER_HALF_OFFSETS:
        stored, values = quantised_blocks(rng, name, 3 if "K" in name or name == "IQ4_XS" else 6)
        write_type(name, stored, values)


def write_container(rng):
    writer = gguf.GGUFWriter(FOLDER / "container.gguf", "golden")
    writer.add_uint8("a.uint8", 200)
    writer.add_int8("a.int8", -100)
    writer.add_uint16("a.uint16", 60000)
    writer.add_int16("a.int16", -30000)
    writer.add_uint32("a.uint32", 4_000_000_000)
    writer.add_int32("a.int32", -2_000_000_000)
    writer.add_uint64("a.uint64", 2**62)
    writer.add_int64("a.int64", -(2**62))
    writer.add_float32("a.float32", 0.1)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "käse 饭")
    writer.add_array("a.strings", ["", "x", "Ġthe"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("matrix", matrix)
    stored, _ = quantised_blocks(rng, "Q8_0", 2)
    blocks = np.frombuffer(stored, np.uint8).reshape(2, -1)
    writer.add_tensor("quantised", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors():
    tensors = {"matrix": np.arange(6, dtype=np.float32).reshape(2, 3), "half": np.array([1.5, -2.0], np.float16),
               "scalar": np.array(3, np.int64), "empty": np.zeros((0, 4), np.float32)}
    safetensors.numpy.save_file(tensors, FOLDER / "container.safetensors", metadata={"format": "np"})


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(20260101)
    write_types(rng)
    write_container(rng)
    write_safetensors()
    write_later_types(np.random.default_rng(20261129))


if __name__ == "__main__":
    main()
