"""check_dump.py on dumps made in torch: right ones pass, and each of eight planted defects fails.

    python -m unittest discover -s tests/parity -p '*_test.py'
"""

import json
import pathlib
import random
import sys
import tempfile
import unittest

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_dump
import quantiser
import reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "golden" / "parity" / "tiny-qwen2"


def write(folder, name, tensor):
    tensor.contiguous().numpy().tofile(folder / name)


def write_dump(folder, model, arm_name, stored_reads=True, silent=False):
    """A dump as the engine would write it. silent: stores 8 bits but reads 16-bit values."""
    g = model.geometry
    r = random.Random(3)
    tokens = [256] + [r.randrange(97, 123) for _ in range(95)]
    arm = quantiser.parse_arm(arm_name, g.native)
    fixed = [(0.25, 0.02)] * g.num_layers if arm.scale == "fixed" and arm_name != "N" else []

    def on_layer(layer, kv, given):
        write(folder, f"kraw.{layer}.bin", given.k)
        write(folder, f"k16.{layer}.bin", kv.fresh_k)
        write(folder, f"v16.{layer}.bin", kv.fresh_v)
        for letter, side in (("k", kv.key), ("v", kv.value)):
            write(folder, f"{letter}_stored.{layer}.bin", side.stored)
            ones = torch.ones(side.stored.shape[:2])
            write(folder, f"{letter}_scales.{layer}.bin", ones if side.scales is None else side.scales)
        if kv.removed is not None:
            write(folder, f"kremoved.{layer}.bin", kv.removed)

    losses = model.losses(tokens, arm, fixed_scales=fixed or None, stored_reads=stored_reads and not silent,
                          on_layer=on_layer)
    write(folder, "nll.bin", losses.to(torch.float32))
    meta = {"model": str(TINY), "arm": arm_name, "path": "reference" if stored_reads else "worker",
            "native_dtype": g.native, "num_layers": g.num_layers, "num_kv_heads": g.num_kv_heads,
            "head_dim": g.head_dim, "fixed_scales": fixed, "token_ids": tokens}
    (folder / "meta.json").write_text(json.dumps(meta))


class CheckDump(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.model = reference.load_model(TINY)
        for i in range(2):  # a bias with something to take out
            bias = cls.model.weights[f"model.layers.{i}.self_attn.k_proj.bias"].view(2, -1)
            bias[:, 7] += 90.0
            bias[:, 14] -= 70.0

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def failures(self, **options):
        return check_dump.check(self.folder, self.model, **options).failures

    def damage(self, name, dtype, change):
        values = np.fromfile(self.folder / name, dtype=dtype)
        change(values)
        values.tofile(self.folder / name)

    def expect_failure(self, *words):
        failures = self.failures()
        self.assertTrue(any(all(word in message for word in words) for message in failures), failures)

    def test_right_dumps_of_every_arm_pass(self):
        for arm in ("N", "AF", "AD", "RF", "RD", "SF", "SD", "PF", "PD", "ID", "JD"):
            for stored_reads in (True, False):
                with self.subTest(arm=arm, stored_reads=stored_reads):
                    write_dump(self.folder, self.model, arm, stored_reads)
                    self.assertEqual(self.failures(), [])

    def test_path_that_reads_16_bit_values_fails(self):
        for arm in ("AD", "SD", "JD"):
            with self.subTest(arm=arm):
                write_dump(self.folder, self.model, arm, silent=True)
                self.expect_failure("loss")

    def test_one_changed_byte_fails(self):
        write_dump(self.folder, self.model, "SD")
        self.damage("v_stored.1.bin", np.uint8, lambda x: x.__setitem__(1000, x[1000] ^ 1))
        self.expect_failure("stored values", "1 differ")

    def test_one_changed_scale_fails(self):
        write_dump(self.folder, self.model, "JD")
        self.damage("k_scales.0.bin", np.float32, lambda x: x.__setitem__(3, x[3] * 1.0000002))
        self.expect_failure("key scales", "1 differ")

    def test_swapped_scales_fail(self):
        write_dump(self.folder, self.model, "SD")
        keys = (self.folder / "k_scales.0.bin").read_bytes()
        (self.folder / "k_scales.0.bin").write_bytes((self.folder / "v_scales.0.bin").read_bytes())
        (self.folder / "v_scales.0.bin").write_bytes(keys)
        self.expect_failure("key scales")

    def test_bias_left_in_fails(self):
        write_dump(self.folder, self.model, "JD")
        arm = quantiser.parse_arm("JD", "bf16")
        k16 = torch.from_numpy(np.fromfile(self.folder / "k16.0.bin", np.float32).reshape(96, 2, 16))
        write(self.folder, "k_stored.0.bin", quantiser.store_side(arm.key, k16).stored)
        self.expect_failure("stored keys")

    def test_rounding_towards_zero_fails(self):
        write_dump(self.folder, self.model, "AD")
        v16 = torch.from_numpy(np.fromfile(self.folder / "v16.0.bin", np.float32).reshape(96, 2, 16))
        scales = quantiser.dynamic_scale("e4m3", v16)
        nearest = quantiser.encode("e4m3", v16, scales)
        too_far = quantiser.decode("e4m3", nearest, scales).abs() > v16.abs()
        write(self.folder, "v_stored.0.bin", torch.where(too_far, nearest - 1, nearest))
        self.expect_failure("stored values")

    def test_shifted_tokens_fail(self):
        write_dump(self.folder, self.model, "SD")
        self.damage("k_stored.0.bin", np.uint8, lambda x: x.__setitem__(slice(None), np.roll(x, 32)))
        self.expect_failure("codes differ")

    def test_short_file_is_named(self):
        write_dump(self.folder, self.model, "N")
        path = self.folder / "v_stored.0.bin"
        path.write_bytes(path.read_bytes()[:-2])
        with self.assertRaisesRegex(ValueError, "v_stored.0.bin"):
            self.failures()


if __name__ == "__main__":
    unittest.main()
