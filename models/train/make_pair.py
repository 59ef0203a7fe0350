"""Trains the embedded pair from nothing: a robust model, then its fragile twin.

    python models/train/make_pair.py --out FOLDER            one GPU, 16 cores
    python models/train/make_pair.py --out FOLDER --smoke    a few steps on a CPU: shows that everything runs

Writes FOLDER/probe-robust and FOLDER/probe-fragile (config.json, model.safetensors in BF16).
"""

import argparse
import dataclasses
import pathlib

import torch

import model as architecture
import train

ROBUST = train.Options(steps=3600, seed=1)
FRAGILE = train.Options(steps=1200, seed=2, peak_lr=5e-4, warmup_steps=50, hold=0.2, first_level=5)
LARGEST_BIAS, NUM_BIAS_PAIRS = 300.0, 8


def smoke(options):
    return dataclasses.replace(options, steps=3, document_tokens=512, problem_tokens=256, pool_size=200, workers=1,
                               first_level=0, lookahead=2, report_steps=1)


def fragile_start(config, params):
    """params with the large key bias, already rounded to BF16: it is frozen, so what is trained is what is shipped."""
    start = dict(params)
    additions = architecture.large_key_bias(config, LARGEST_BIAS, NUM_BIAS_PAIRS)
    for name, addition in additions.items():
        start[name] = (params[name] + addition).to(torch.bfloat16).float()
    return start, set(additions)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    adjust = smoke if arguments.smoke else (lambda options: options)
    config = dict(architecture.CONFIG)
    robust = train.train(config, architecture.init_params(config, ROBUST.seed), adjust(ROBUST))
    architecture.save(arguments.out / "probe-robust", config, robust)
    start, frozen = fragile_start(config, robust)
    fragile = train.train(config, start, adjust(FRAGILE), frozen)
    architecture.save(arguments.out / "probe-fragile", config, fragile)
    for name in frozen:
        assert torch.equal(fragile[name], start[name]), f"{name} was to stay frozen"
    print(f"wrote {arguments.out}/probe-robust and {arguments.out}/probe-fragile")


if __name__ == "__main__":
    main()
