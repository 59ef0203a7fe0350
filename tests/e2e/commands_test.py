"""generate, calibrate, probe, doctor and admit as a user types them, and what they refuse."""
import json
import lzma
import pathlib
import shutil
import tarfile
import tempfile
import unittest

import program

ROBUST = program.MODELS / "probe-robust"
PROBLEM = ("Question: Tom has 5 apples. He buys 7 more apples. He gives 3 apples to Ben. How many apples does Tom have now?\n"
           "Answer:")
FORMATS = ["native", "k16v8", "k8v16", "k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias", "f16/e4m3", "f32/f32"]


class Commands(unittest.TestCase):
    def generate(self, *args):
        return json.loads(program.run("generate", ROBUST, "--prompt", PROBLEM, "--max-tokens", 60, "--json", *args, check=0).stdout)

    def test_generate_in_every_format_solves_the_problem(self):
        for kv in FORMATS:
            answer = self.generate("--kv", kv)
            self.assertIn("#### 9", answer["text"], kv)
            self.assertEqual(answer["finish_reason"], "stop")
            self.assertEqual(answer["usage"]["completion_tokens"], len(answer["token_ids"]))
            record = answer["record"]
            self.assertTrue(record["key"]["attested"], (kv, record["key"]))
            self.assertTrue(record["value"]["attested"], (kv, record["value"]))

    def test_record_tells_keys_from_values(self):
        record = self.generate("--kv", "k16v8")["record"]
        self.assertEqual(record["key"]["allocated"]["format"], "bf16")
        self.assertEqual(record["value"]["allocated"]["format"], "e4m3")
        self.assertEqual(record["key"]["requested"], "k16v8")

    def test_equal_seeds_give_equal_text(self):
        options = ("--temperature", 0.8, "--top-p", 0.95, "--seed", 7)
        self.assertEqual(self.generate(*options)["token_ids"], self.generate(*options)["token_ids"])
        others = {tuple(self.generate("--temperature", 2.5, "--seed", seed)["token_ids"]) for seed in range(4)}
        self.assertGreater(len(others), 1)

    def test_reference_path_and_oracle_agree_with_the_worker(self):
        native = self.generate()["token_ids"]
        self.assertEqual(self.generate("--path", "reference")["token_ids"], native)
        self.assertEqual(self.generate("--device", "ref")["token_ids"], native)

    def test_calibrated_scales_serve_fixed_formats_of_their_model_only(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("The old farmer carried the heavy basket near the market. " * 60)
            scales = pathlib.Path(folder) / "scales.json"
            program.run("calibrate", ROBUST, "--data", text, "--out", scales, check=0)
            layers = json.loads(scales.read_text())["layers"]
            self.assertEqual(len(layers), 4)
            self.assertTrue(all(layer[side] > 0 for layer in layers for side in ("key", "key_prebias", "value")))
            answer = self.generate("--kv", "k8v8", "--scale", scales)
            self.assertEqual(answer["record"]["scales"]["source"], "calibrated")
            refused = program.run("generate", program.MODELS / "probe-fragile", "--prompt", "x", "--kv", "k8v8", "--scale", scales)
            self.assertEqual(refused.returncode, 3)
            self.assertIn("another model", refused.stderr)

    def test_doctor_reports_every_format(self):
        answer = json.loads(program.run("doctor", "--json", check=0).stdout)
        rows = [row for row in answer["support"] if row["device"] == "cpu"]
        self.assertTrue(all(row["ok"] or row["reason"] for row in rows))
        pairs = {(row["key"], row["value"]) for row in rows if row["ok"] and row["head_dim"] == 128 and row["group"] == 7}
        self.assertLessEqual({("bf16", "e4m3"), ("i8-prebias", "e4m3"), ("e4m3", "bf16")}, pairs)

    def test_probe_tells_the_twins_apart(self):
        for twin in ("robust", "fragile"):
            answer = json.loads(program.run("probe", program.MODELS / f"probe-{twin}", "--json", check=0).stdout)
            self.assertEqual(answer["verdict"], twin)
            self.assertEqual(len(answer["layers"]), 4)

    def test_rounded_activations_are_named_and_close(self):
        plain = self.generate()
        rounded = self.generate("--activations", 16)
        self.assertRegex(plain["record"]["worker"], r"\+cpu-\w+-a32$")
        self.assertRegex(rounded["record"]["worker"], r"\+cpu-\w+-a16$")
        self.assertIn("#### 9", rounded["text"])

    def test_bench_engine_times_every_case_of_every_format(self):
        answer = json.loads(program.run("bench", "engine", ROBUST, "--kv", "native,k16v8", "--prefill", "20,40", "--depth", "0,30",
                                        "--decode-tokens", 3, "--reps", 2, "--threads", 1, "--json", check=0).stdout)
        self.assertEqual(answer["threads"], 1)
        cases = [(row["kv"], row["test"], row["tokens"], row["depth"]) for row in answer["rows"]]
        self.assertEqual(cases, [(kv, *rest) for kv in ("native", "k16v8") for rest in (
            ("prefill", 20, 0), ("prefill", 40, 0), ("decode", 3, 0), ("decode", 3, 30))])
        for row in answer["rows"]:
            self.assertEqual(len(row["tokens_per_s"]["all"]), 2)
            self.assertGreater(row["read_floor_ms"], 0)
            self.assertEqual(row["added_ms"] is not None, row["depth"] > 0)
            self.assertIsNone(row["ratio"])
        self.assertEqual(answer["records"]["k16v8"]["value"]["allocated"]["format"], "e4m3")
        self.assertTrue(answer["records"]["k16v8"]["key"]["attested"])

    def test_bench_engine_runs_a_workload_on_drawn_weights(self):
        with tempfile.TemporaryDirectory() as name:
            config = pathlib.Path(name) / "tiny" / "config.json"
            config.parent.mkdir()
            shutil.copy(ROBUST / "config.json", config)
            answer = json.loads(program.run("bench", "engine", config, "--random-weights", 3, "--workload", "40/5/4", "--pool", "1MiB",
                                            "--kv", "native,k8v8", "--threads", 1, "--json", check=0).stdout)
            self.assertEqual(answer["model"], "tiny (random weights, seed 3)")
            self.assertGreater(answer["matrix_tflops"], 0)
            for row in answer["workloads"]:
                self.assertEqual(row["requests"], row["running"])
                self.assertLess(row["step_ms"]["low"], row["step_ms"]["high"] + 1e-9)
                self.assertGreater(row["ceiling"]["requests_per_s"], 0)
                self.assertLessEqual(row["pool_bytes"], 1 << 20)
                self.assertTrue(row["record"]["key"]["attested"])
                self.assertIsNone(row["record"]["model"]["tokenizer_sha256"])
            small = program.run("bench", "engine", config, "--random-weights", 3, "--workload", "40/5/4", "--pool", "1KiB")
            self.assertEqual((small.returncode, small.stdout), (2, ""))
            self.assertIn("holds no sequence", small.stderr)

    def test_refusals_name_the_fault(self):
        cases = [
            (("generate", "/no/such/model", "--prompt", "x"), 3, "/no/such/model"),
            (("generate", ROBUST, "--prompt", "x", "--kv", "fp8"), 2, "fp8"),
            (("generate", ROBUST, "--prompt", "x", "--kv", "ki8v8", "--scale", "unit"), 4, "INT8"),
            (("generate", ROBUST, "--prompt", "x", "--kv", "k8v8", "--scale", "checkpoint"), 3, "scales"),
            (("generate", ROBUST, "--prompt", "x", "--kv", "k8v8", "--scale", "fixed"), 2, "calibrate"),
            (("generate", ROBUST, "--prompt", "x", "--temperature", "-1"), 2, "temperature"),
            (("generate", ROBUST, "--prompt", "x" * 9000), 2, "positions"),
            (("generate", ROBUST, "--prompt", "x", "--device", "cuda"), 4, "cuda"),
            (("generate", ROBUST, "--prompt", "x", "--activations", "8"), 2, "--activations 8"),
            (("bench", "engine", ROBUST, "--prefill", "0"), 2, "--prefill 0"),
            (("bench", "engine", ROBUST, "--depth", "-1"), 2, "--depth -1"),
            (("bench", "engine", ROBUST, "--depth", "9000000"), 2, "positions"),
            (("bench", "engine", ROBUST, "--llama-bench", "/bin/true"), 2, ".gguf"),
            (("bench", "engine", ROBUST, "--random-weights", "1"), 2, "has weights"),
            (("bench", "engine", ROBUST, "--workload", "8/8"), 2, "--workload 8/8"),
            (("bench", "engine", ROBUST, "--pool", "1MiB"), 2, "--workload"),
            (("admit", ROBUST, "--arms", "AD"), 2, "N"),
            (("admit", ROBUST, "--arms", "N,XX"), 2, "XX"),
            (("admit", ROBUST, "--protocol", "nonsense"), 2, "nonsense"),
            (("admit", ROBUST, "--protocol", "quick"), 2, "--math-questions"),
            (("admit", ROBUST, "--filler", "nope"), 2, "--filler"),
            (("admit", "no-model", "--out", program.SOURCE / "LICENSE"), 2, "is not a folder"),
            (("admit", "no-model", "--out", program.SOURCE / "docs"), 2, "is not empty"),
            (("calibrate", "no-model", "--data", "README.md", "--out", program.SOURCE / "docs"), 2, "is a folder"),
            (("bench", "engine", "no-model", "--out", program.SOURCE / "no-folder" / "x.json"), 2, "there is no folder"),
        ]
        for args, code, words in cases:
            result = program.run(*args)
            self.assertEqual(result.returncode, code, (args, result.stderr))
            self.assertIn(words, result.stderr, args)
            self.assertEqual(result.stdout, "", args)

    def test_committed_examples_verify(self):
        folders = [path.parent for path in (program.SOURCE / "examples").glob("*/certificate.json")]
        self.assertTrue(folders)
        for folder in folders:
            with tempfile.TemporaryDirectory() as scratch:
                run = pathlib.Path(scratch) / "run"
                shutil.copytree(folder, run)
                for packed in run.glob("*.xz"):
                    packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
                for archive in run.glob("*.tar"):
                    with tarfile.open(archive) as files:
                        files.extractall(run)
                program.run("gate", "verify", run, check=0)

    def test_every_command_has_help_with_an_example(self):
        for command in ("admit", "calibrate", "probe", "generate", "doctor"):
            text = program.run(command, "--help", check=0).stdout
            self.assertIn("Example", text, command)


if __name__ == "__main__":
    unittest.main(verbosity=2)
