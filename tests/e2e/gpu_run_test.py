"""scripts/gpu_run.py without a GPU: a stand-in for the program and the device tests shows what each stage keeps of them."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import program

SCRIPT = program.SOURCE / "scripts/gpu_run.py"
# Answers every command. An admission fails while a file "broken" lies beside the program; the first call of a panel lasts
# until it is stopped.
STAND_IN = """#!/bin/bash
here=$(dirname "$0")
echo "$@" >> "$here/calls"
[ "$1" = admit ] && [ -f "$here/broken" ] && exit 4
while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
if [ -n "${out:-}" ]; then
  mkdir -p "$out"
  if [[ $out == */panel ]] && [ ! -f "$out/run.json" ]; then echo '{}' > "$out/run.json"; exec sleep 60; fi
fi
echo '{"policy": {"tier": "K16/V8", "arm": "AF", "certified": true, "reason": "passes"}}'
"""
TEST = '#!/bin/bash\necho "native: 20 of 20 prompts with equal tokens on $ASYMKV_PARITY_MODEL"\necho "[  PASSED  ] 5 tests."\n'
TESTS = ("kernels/cuda/decode_gpu_test", "kernels/cuda/write_gpu_test", "kernels/cuda/cuda_attention_gpu_test",
         "kernels/cuda/prefill_gpu_test", "engine/cuda_engine_gpu_test", "planner/capacity_test")


class GpuRun(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.build = pathlib.Path(scratch.name) / "build"
        self.out = pathlib.Path(scratch.name) / "out"
        self.apps = self.build / "apps/asymkv"
        self.write(self.apps / "asymkv", STAND_IN)
        for name in TESTS:
            self.write(self.build / "src/asymkv" / name, TEST)

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_stages(self, *args, code=0):
        done = subprocess.run([sys.executable, SCRIPT, self.out, *args, "--build", self.build], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def receipt(self, stage):
        return json.loads((self.out / f"{stage}.json").read_text())

    def test_a_stage_leaves_its_receipt_and_is_done_once(self):
        self.run_stages("tests", "admit")
        tests = self.receipt("tests")
        self.assertTrue(tests["ok"])
        self.assertEqual([row["name"] for row in tests["rows"]], [name.split("/")[-1] for name in TESTS])
        self.assertEqual({row["tests"]["passed"] for row in tests["rows"]}, {5})
        admit = self.receipt("admit")
        self.assertEqual([(row["tier"], row["arm"], row["verified"]) for row in admit["rows"]], [("K16/V8", "AF", True)] * 2)
        calls = (self.apps / "calls").read_text()
        self.assertIn("done before", self.run_stages("tests", "admit"))
        self.assertEqual((self.apps / "calls").read_text(), calls)

    def test_engine_and_parity_keep_what_was_measured(self):
        self.run_stages("engine", "parity", "--model", "some/m.gguf")
        engine = self.receipt("engine")["rows"]
        self.assertEqual({row["answer"]["policy"]["tier"] for row in engine}, {"K16/V8"})
        self.assertEqual([row["command"].split()[3] for row in engine], [
            f"bench/geometries/{name}" for name in ("qwen3-8b", "qwen3-8b", "qwen2.5-7b", "qwen3-8b-awq")])
        self.assertIn("--pool 8GiB", engine[1]["command"])
        parity = self.receipt("parity")["rows"][0]
        self.assertEqual(parity["model"], "m.gguf")
        model = pathlib.Path("some/m.gguf").resolve()
        self.assertEqual(parity["found"], [f"native: 20 of 20 prompts with equal tokens on {model}"])

    def test_a_failure_is_told_and_tried_again(self):
        (self.apps / "broken").touch()
        self.run_stages("admit", code=1)
        self.assertEqual([row["rc"] for row in self.receipt("admit")["rows"]], [4, 4])
        (self.apps / "broken").unlink()
        self.run_stages("admit")
        self.assertTrue(self.receipt("admit")["ok"])

    def test_a_panel_that_was_stopped_goes_on(self):
        args = ("panel", "--model", "m.gguf", "--math-questions", "q", "--loss-text", "t", "--limit", "1")
        self.assertIn("not finished", self.run_stages(*args, code=3))
        self.assertFalse((self.out / "panel.json").exists())
        self.run_stages(*args)
        row = self.receipt("panel")["rows"][0]
        self.assertEqual(len(row["wall_s_of_calls"]), 2)
        self.assertIn("--resume", row["command"])

    def test_unknown_stages_and_missing_options_are_refused(self):
        self.run_stages("bogus", code=2)
        self.run_stages("native", code=2)
        self.run_stages("parity", code=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
