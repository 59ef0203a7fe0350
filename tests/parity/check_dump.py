"""Checks a folder that the program dump_kv wrote (its header states the format) against torch.

    python tests/parity/check_dump.py DUMP_FOLDER [--model PATH]

1. Stored bytes and scales: equal, byte for byte, to the torch quantiser fed the engine's own 16-bit keys and values; for
   arms that take a vector out, fed its keys before bias and rotation, and the vector itself equals torch's.
2. Codes: a whole torch forward of the same tokens may differ in at most 1 in 500 codes of an 8-bit side, by one step; by
   more in at most 1 in 2,000 (values near zero; the fragile model, whose 16-bit keys have a step of 2).
3. Losses (dumps of the reference path): a torch forward that reads the engine's stored bytes agrees with the engine's
   losses within 2e-4 nats on the mean, and token by token much better than one that reads 16-bit values does.
   Reading the same bytes on both sides keeps rounding noise from growing from layer to layer.
Exit status 0 if all hold, 1 if not.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import torch

import quantiser
import reference

MEAN_LIMIT = 2e-4  # nats
CODES_PER_DIFFERENCE = 500
CODES_PER_LARGE_DIFFERENCE = 2000  # by more than one step
WIDE_CODES_PER_DIFFERENCE = 20  # 16-bit sides: FP32 noise of a forward is close to half a step of f16


class Dump:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.meta = json.loads((self.folder / "meta.json").read_text())
        self.tokens = self.meta["token_ids"]
        self.arm = quantiser.parse_arm(self.meta["arm"], self.meta["native_dtype"])
        self.shape = (len(self.tokens), self.meta["num_kv_heads"], self.meta["head_dim"])

    def read(self, name, dtype, shape):
        values = np.fromfile(self.folder / name, dtype=dtype)
        if values.size != int(np.prod(shape)):
            raise ValueError(f"{name} holds {values.size} elements, expected {shape}")
        return torch.from_numpy(values.reshape(shape))

    def floats(self, name, layer, shape=None):
        return self.read(f"{name}.{layer}.bin", np.float32, shape or self.shape)

    def removed(self, layer):
        return self.floats("kremoved", layer, self.shape[1:])

    def side(self, letter, layer):
        """What the engine stored of one side of one layer."""
        dtype = self.arm.key if letter == "k" else self.arm.value
        row_bytes = self.shape[2] * quantiser.ELEM_BYTES[dtype]
        stored = self.read(f"{letter}_stored.{layer}.bin", np.uint8, self.shape[:2] + (row_bytes,))
        scales = self.floats(f"{letter}_scales", layer, self.shape[:2]) if quantiser.is_8bit(dtype) else None
        return quantiser.StoredSide(dtype, stored, scales)

    def fixed_scales(self, layer):
        return self.meta["fixed_scales"][layer] if self.meta["fixed_scales"] else (1.0, 1.0)


class Report:
    def __init__(self):
        self.failures = []

    def check(self, ok, message):
        print(("ok    " if ok else "FAIL  ") + message)
        if not ok:
            self.failures.append(message)


def expected_key16(dump, layer, model):
    """The 16-bit keys that the engine had to encode, from its own intermediate values."""
    if not dump.arm.prebias:
        return dump.floats("k16", layer)
    cos, sin = quantiser.rope_tables(model.frequencies, range(len(dump.tokens)))
    bias = model.weights[f"model.layers.{layer}.self_attn.k_proj.bias"].view(dump.shape[1:]).to(torch.float32)
    rest = dump.floats("kraw", layer) + (bias - dump.removed(layer))
    return quantiser.round_to(dump.meta["native_dtype"], quantiser.rotate(rest, cos, sin))


def check_bytes(dump, model, report):
    wrong = {"keys": 0, "key scales": 0, "values": 0, "value scales": 0, "removed vectors": 0}
    for layer in range(dump.meta["num_layers"]):
        fixed = dump.fixed_scales(layer)
        rows = {"k": expected_key16(dump, layer, model), "v": dump.floats("v16", layer)}
        for letter, name, scale in (("k", "key", fixed[0]), ("v", "value", fixed[1])):
            engine = dump.side(letter, layer)
            torch_side = quantiser.store_side(engine.dtype, rows[letter], dump.arm.scale, scale)
            wrong[name + "s"] += int((engine.stored != torch_side.stored).sum())
            if engine.scales is not None:
                wrong[name + " scales"] += int((engine.scales != torch_side.scales).sum())
        if dump.arm.prebias:
            bias = model.weights[f"model.layers.{layer}.self_attn.k_proj.bias"].view(dump.shape[1:])
            removed, _ = quantiser.split_key_bias(bias.to(torch.float32), model.frequencies)
            wrong["removed vectors"] += int((removed != dump.removed(layer)).sum())
            if not removed.any():
                wrong["removed vectors"] += 1  # the arm would test nothing
    for name, count in wrong.items():
        report.check(count == 0, f"stored {name}: {count} differ from the torch quantiser")


def ordered_codes(dtype, stored):
    """Stored elements as integers in which neighbouring values differ by one; both zeros are 0."""
    if dtype == "i8":
        return stored.to(torch.int64)
    bits = 8 * quantiser.ELEM_BYTES[dtype]
    words = torch.from_numpy(stored.contiguous().numpy().view({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])
                             .astype(np.int64))
    magnitude = words & ((1 << (bits - 1)) - 1)
    return torch.where(words >> (bits - 1) == 1, -magnitude, magnitude)


class CodeCounter:
    def __init__(self):
        self.codes, self.different, self.far, self.largest = 0, 0, 0, 0

    def add(self, engine, other):
        distance = (ordered_codes(engine.dtype, engine.stored) - ordered_codes(other.dtype, other.stored)).abs()
        self.codes += distance.numel()
        self.different += int((distance > 0).sum())
        self.far += int((distance > 1).sum())
        self.largest = max(self.largest, int(distance.max()))


def compare_forward(dump, model, stored_reads):
    """(losses of a torch forward that reads the engine's bytes or, on the worker path, fresh values; code counters)."""
    counters = {"k": CodeCounter(), "v": CodeCounter()}

    def on_layer(layer, kv, _):
        key, value = dump.side("k", layer), dump.side("v", layer)
        counters["k"].add(key, kv.key)
        counters["v"].add(value, kv.value)
        return quantiser.LayerKv(key, value, kv.fresh_k, kv.fresh_v, kv.k16, kv.removed)

    scales = [dump.fixed_scales(layer) for layer in range(dump.meta["num_layers"])]
    losses = model.losses(dump.tokens, dump.arm, fixed_scales=scales, stored_reads=stored_reads, on_layer=on_layer)
    return losses, counters


def check_codes(dump, counters, report):
    for letter, dtype in (("k", dump.arm.key), ("v", dump.arm.value)):
        c = counters[letter]
        narrow = quantiser.is_8bit(dtype)
        allowed = c.codes // (CODES_PER_DIFFERENCE if narrow else WIDE_CODES_PER_DIFFERENCE)
        report.check(c.different <= allowed and (not narrow or c.far <= c.codes // CODES_PER_LARGE_DIFFERENCE),
                     f"{'keys' if letter == 'k' else 'values'} ({dtype}): {c.different} of {c.codes} codes differ from a "
                     f"torch forward (at most {allowed}), {c.far} by more than a step, by up to {c.largest}")


def rms(x):
    return float(x.pow(2).mean().sqrt())


def check_losses(dump, model, losses, report):
    engine = dump.read("nll.bin", np.float32, (len(dump.tokens) - 1,)).to(torch.float64)
    silent, _ = compare_forward(dump, model, stored_reads=False)
    difference, noise, gap = float((engine - losses).mean()), rms(engine - losses), rms(silent - losses)
    report.check(abs(difference) <= MEAN_LIMIT, f"mean loss {float(engine.mean()):.5f}, {difference:+.1e} nats from torch "
                 f"(at most {MEAN_LIMIT})")
    report.check(dump.arm.key == dump.arm.value == dump.meta["native_dtype"] or noise <= gap / 4,
                 f"loss of a token: rms {noise:.1e} from torch; a path that reads 16-bit values is {gap:.1e} away")


def check(folder, model=None, model_path=None):
    """Report of one dump folder."""
    dump, report = Dump(folder), Report()
    model = model or reference.load_model(model_path or dump.meta["model"])
    print(f"{dump.folder}: {dump.meta['model']} {dump.meta['arm']} {dump.meta['path']} {len(dump.tokens)} tokens")
    check_bytes(dump, model, report)
    stored_reads = dump.meta["path"] == "reference"
    losses, counters = compare_forward(dump, model, stored_reads)
    check_codes(dump, counters, report)
    if stored_reads:
        check_losses(dump, model, losses, report)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--model", help="default: the path that the dump names")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = reference.load_model(arguments.model or Dump(arguments.folders[0]).meta["model"])
    failures = [message for folder in arguments.folders for message in check(folder, model).failures]
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
