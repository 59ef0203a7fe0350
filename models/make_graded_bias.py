#!/usr/bin/env python3
"""Makes models with graded key bias out of the embedded pair, to score the fragility probe with.

Usage: models/make_graded_bias.py FOLDER            writes FOLDER/NAME for every model of the family

Three series, none of which is trained:

twin-S      probe-fragile with the large part of its key bias times S.
added-S     probe-robust plus S times the large part of the twin's key bias.
stretched-M probe-robust with the keys of one slow RoPE pair of every head times 2^M and its queries times 2^-M.

The large part is what lies on the eight slowest RoPE pairs. They turn by less than 0.05 rad in 8,192 tokens, so a bias
there adds nearly the same number to every logit of a row and softmax cancels it: the function in exact arithmetic stays,
and what grows with S is the key that has to be stored. In the third series it stays exactly (powers of two) and one pair's
keys grow without any bias. Equal calls write equal bytes. Standard library only.
"""

import argparse
import array
import json
import pathlib
import shutil
import struct

HERE = pathlib.Path(__file__).resolve().parent
NUM_SLOW_PAIRS = 8  # of every head: the ones that train/make_pair.py loads with bias
TWIN = [0, 1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1, 1.25]
ADDED = [1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 3 / 8]
STRETCHED = [4, 8, 12, 14]


def to_floats(words):
    """BF16 bit patterns -> floats."""
    return array.array("f", array.array("I", [word << 16 for word in words]).tobytes())


def to_words(floats):
    """Floats -> BF16 bit patterns, to nearest, ties to even."""
    bits = array.array("I", array.array("f", floats).tobytes())
    return array.array("H", [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits])


class Checkpoint:
    """An embedded model in memory; its tensors are BF16."""

    def __init__(self, folder):
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self.data = bytearray((folder / "model.safetensors").read_bytes())
        header_bytes = struct.unpack_from("<Q", self.data)[0]
        self.begin = 8 + header_bytes
        self.header = json.loads(self.data[8:self.begin])

    def layers(self):
        return range(self.config["num_hidden_layers"])

    def place(self, name):
        first, last = self.header[name]["data_offsets"]
        return slice(self.begin + first, self.begin + last)

    def read(self, name):
        return to_floats(array.array("H", bytes(self.data[self.place(name)])))

    def write(self, name, floats):
        self.data[self.place(name)] = to_words(floats).tobytes()

    def slow(self, channel):
        """Whether a row of k_proj or q_proj belongs to one of the slowest pairs (pair i: channels i and i + half)."""
        half = self.config["head_dim"] // 2
        return channel % half >= half - NUM_SLOW_PAIRS

    def save(self, folder):
        folder.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self.folder / name, folder / name)
        (folder / "model.safetensors").write_bytes(self.data)


def key_bias(layer):
    return f"model.layers.{layer}.self_attn.k_proj.bias"


def twin(scale):
    model = Checkpoint(HERE / "probe-fragile")
    for layer in model.layers():
        bias = model.read(key_bias(layer))
        model.write(key_bias(layer), [x * scale if model.slow(i) else x for i, x in enumerate(bias)])
    return model


def added(scale):
    model, fragile = Checkpoint(HERE / "probe-robust"), Checkpoint(HERE / "probe-fragile")
    for layer in model.layers():
        more = fragile.read(key_bias(layer))
        bias = model.read(key_bias(layer))
        model.write(key_bias(layer), [x + scale * more[i] if model.slow(i) else x for i, x in enumerate(bias)])
    return model


def stretched(power):
    """Only the fastest of the slow pairs: the pair has both channels, so its rotation is not touched."""
    model = Checkpoint(HERE / "probe-robust")
    half = model.config["head_dim"] // 2
    width = model.config["hidden_size"]
    for layer in model.layers():
        for projection, factor in (("k", 2.0**power), ("q", 2.0**-power)):
            for kind, row in (("weight", width), ("bias", 1)):
                name = f"model.layers.{layer}.self_attn.{projection}_proj.{kind}"
                values = model.read(name)
                chosen = lambda i: (i // row) % half == half - NUM_SLOW_PAIRS
                model.write(name, [x * factor if chosen(i) else x for i, x in enumerate(values)])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    for series, grades, make in (("twin", TWIN, twin), ("added", ADDED, added), ("stretched", STRETCHED, stretched)):
        for grade in grades:
            make(grade).save(folder / f"{series}-{grade:g}")


if __name__ == "__main__":
    main()
