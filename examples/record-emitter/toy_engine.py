"""A toy engine that writes its record: a pool of bytes, a kernel for each side, and an option that asks for a type.

  toy_engine.py [--kv-cache-dtype auto|bf16|q8_0]
"""
import argparse
import hashlib
import pathlib

import record_emitter

LAYERS, KV_HEADS, HEAD_DIM, SLOTS, PAGES = 2, 2, 64, 16, 8
BUILD = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
ROW_BYTES = {"bf16": HEAD_DIM * 2, "q8_0": HEAD_DIM // 32 * 34}  # q8_0: 32 elements and their scale in 34 bytes


class Pool:
    """One side of the cache. It knows its layout: the record asks it, not the options."""

    def __init__(self, format):
        self.format = format
        self.page_bytes = SLOTS * KV_HEADS * ROW_BYTES[format]
        self.bytes = bytearray(LAYERS * PAGES * self.page_bytes)


def write_token(pool, side, slot):
    """The kernel: stores one token of every layer, and says what it worked on."""
    row = ROW_BYTES[pool.format]
    for layer in range(LAYERS):
        at = layer * PAGES * pool.page_bytes + slot * row
        pool.bytes[at:at + row] = bytes([slot % 256]) * row
        side.launch("toy", "write:toy/write", pool.format, BUILD)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--kv-cache-dtype")
    asked = options.parse_args().kv_cache_dtype

    recorder = record_emitter.Recorder("toy-engine", "0.1")
    recorder.note("model", id="toy-model", native_dtype="bf16")
    recorder.note("device", kind="cpu")
    recorder.note("build", hash=BUILD)
    recorder.note("layout", id="toy-1", page_size=SLOTS)
    recorder.note("scales", source="none")
    recorder.note("launch", mode="eager", batch=1)
    # This engine keeps 16-bit keys whatever is asked for: the record says so, the option does not.
    for side, format in ((recorder.key, "bf16"), (recorder.value, "q8_0" if asked == "q8_0" else "bf16")):
        side.requested = asked
        side.resolve(format)
        pool = Pool(format)
        side.allocate(pool.format, "block" if pool.format == "q8_0" else "none", pool.page_bytes, 0, len(pool.bytes))
        for slot in range(4):
            write_token(pool, side, slot)
    print(recorder.canonical())


if __name__ == "__main__":
    main()
