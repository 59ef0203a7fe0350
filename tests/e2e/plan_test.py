"""plan: figures that were published, real allocations, sweeps and plots, and what it refuses."""
import json
import pathlib
import tempfile
import unittest

import program

CONFIGS = program.SOURCE / "src/asymkv/planner/testdata/configs"
QWEN3_8B = CONFIGS / "qwen3-8b.json"
ROWS = program.SOURCE / "bench/results/kernel-h200.json"
SMALL_GGUF = pathlib.Path.home() / ".cache/asymkv/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
ARMS = ["N", "AF", "AD", "RF", "RD", "SF", "SD", "PF", "PD", "ID", "JD"]


def plan(*args, check=0):
    return json.loads(program.run("plan", *args, "--json", check=check).stdout)


class Figures(unittest.TestCase):
    def test_pages_of_a_published_model(self):
        cases = {("native", "fixed"): (18188, 291008), ("k16v8", "fixed"): (24251, 388016), ("k8v8", "dynamic"): (35274, 564384)}
        for (kv, scale), (pages, slots) in cases.items():
            answer = plan(QWEN3_8B, "--budget", "40GiB", "--reserve", "36MiB", "--kv", kv, "--scale", scale)
            self.assertEqual((answer["pages"], answer["slots"]), (pages, slots), kv)
            pool = answer["pool"]
            parts = sum(pool["planes"].values()) + pool["fixed_scales_bytes"] + pool["window_bytes"] + pool["state_bytes"]
            self.assertEqual(parts, answer["pool_bytes"])
            self.assertEqual(parts + pool["unused_bytes"] + answer["reserve_bytes"], answer["budget_bytes"])

    def test_one_sequence_term_by_term(self):
        answer = plan(CONFIGS / "gemma-3-27b.json", "--budget", "40GiB", "--tokens", 131071)
        sequence = answer["sequence"]
        self.assertEqual(sequence["partial_last_page"], 81920)
        self.assertEqual(sequence["window"], 436207616)
        self.assertEqual(answer["sequence_bytes"], 131072 * 81920 + 436207616)
        self.assertEqual(answer["native_sequence_bytes"], answer["sequence_bytes"])
        unified = plan(CONFIGS / "gemma-3-27b.json", "--budget", "40GiB", "--tokens", 131072, "--windows", "unified")
        self.assertEqual(unified["sequence_bytes"] >> 30, 62)

    def test_what_generate_allocates_is_what_was_planned(self):
        model = program.MODELS / "probe-robust"
        for kv in ("native", "k16v8", "k8v16", "k8v8", "ki8v8"):
            done = program.run("generate", model, "--prompt", "a", "--max-tokens", 1, "--kv", kv, "--json", check=0)
            record = json.loads(done.stdout)["record"]
            answer = plan(model, "--budget", "1GiB", "--kv", kv)
            layers = answer["groups"][0]["layers"]
            for side, letter in (("key", "k"), ("value", "v")):
                allocated = record[side]["allocated"]
                self.assertEqual(allocated["page_bytes"] * layers, answer["bytes_per_page"][f"{letter}_payload"], (kv, side))
                self.assertEqual(allocated["scale_bytes"] * layers, answer["bytes_per_page"][f"{letter}_scales"], (kv, side))
                self.assertEqual(allocated["format"], answer["kv"][side])

    def test_device_memory_less_everything_else(self):
        answer = plan(QWEN3_8B, "--device-memory", "80GiB", "--weights", "16GiB", "--activation-memory", "1GiB",
                      "--workspace", "128MiB", "--graphs", "512MiB", "--other", "100MB")
        device = answer["device"]
        self.assertEqual(device["staging"], 256 << 20)
        others = sum(device[term] for term in device if term != "memory_bytes")
        self.assertEqual(answer["budget_bytes"], (80 << 30) - others)

    def test_draft_offload_and_two_pools(self):
        answer = plan(QWEN3_8B, "--budget", "40GiB", "--draft", CONFIGS / "qwen3-0.6b.json", "--offload", "100GiB",
                      "--prefill-budget", "10GiB", "--tokens", 4096)
        self.assertEqual(answer["bytes_per_token"], 147456 + 114688)
        page = 16 * answer["bytes_per_token"]
        self.assertEqual(answer["pages"], (40 << 30) // page)
        self.assertEqual(answer["prefill_pool"]["pages"], (10 << 30) // page)
        self.assertEqual(answer["offload"]["pages"], (100 << 30) // page)
        self.assertEqual(answer["transfer_bytes_per_sequence"], answer["sequence_bytes"])

    def test_times_are_measured_rows_or_nothing(self):
        args = (QWEN3_8B, "--budget", "40GiB", "--kv", "k16v8", "--rows", ROWS)
        rows = plan(*args, "--device-name", "NVIDIA H200", "--device", "cuda")["time"]
        self.assertEqual(len(rows), 13)
        self.assertTrue(all(row["key"] == "bf16" and row["value"] == "e4m3" and row["us"] > 0 for row in rows))
        self.assertEqual(plan(*args, "--device-name", "NVIDIA H100", "--device", "cuda")["time"], "unmeasured")
        self.assertEqual(plan(*args, "--device-name", "NVIDIA H200")["time"], "unmeasured")  # another layout

    def test_export_for_aiconfigurator(self):
        done = program.run("plan", QWEN3_8B, "--device-memory", "80GiB", "--weights", "16GiB", "--kv", "k8v8",
                           "--export", "aiconfigurator", check=0)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["kv_size_per_token_bytes"], 36 * 8 * (128 + 4 + 128 + 4))
        self.assertEqual(answer["memory_breakdown"]["weights_bytes"], 16 << 30)
        self.assertEqual(answer["total_kv_size_tokens"] * answer["kv_size_per_token_bytes"], answer["total_kv_size_bytes"])
        self.assertEqual(answer["time"], "unmeasured")


class Verification(unittest.TestCase):
    def verified(self, model, *args):
        check = plan(model, "--kv", "all", "--verify", *args)["verify"]
        self.assertTrue(check["ok"])
        self.assertEqual(check["difference_bytes"], 0)
        self.assertEqual([row["format"] for row in check["formats"]], ARMS)
        for row in check["formats"]:
            self.assertTrue(row["lines"])
            for line in row["lines"]:
                self.assertEqual(line["planned"], line["found"], (row["format"], line["term"]))
            self.assertTrue(row["growth"]["ok"])

    def test_embedded_models_in_all_arms(self):
        for name in ("probe-fragile", "probe-robust"):
            self.verified(program.MODELS / name)
            self.verified(program.MODELS / name, "--page-size", 256, "--pages", 3)

    def test_windows_and_drafts(self):
        self.verified(CONFIGS / "gemma-3-270m.json", "--pages", 8)
        self.verified(CONFIGS / "qwen3-0.6b.json", "--pages", 2, "--draft", CONFIGS / "qwen2.5-0.5b.json", "--tp", 2)

    @unittest.skipUnless(SMALL_GGUF.is_file(), "the 0.5B model is not here")
    def test_a_real_model_in_all_arms(self):
        self.verified(SMALL_GGUF, "--pages", 16)


class Sweeps(unittest.TestCase):
    def test_counts_are_those_of_single_plans(self):
        args = (CONFIGS / "gemma-3-27b.json", "--budget", "40GiB", "--reserve", "36MiB")
        sweep = plan(*args, "--sweep", "--contexts", "100,8192,131072")["sweep"]
        self.assertEqual([arm["arm"] for arm in sweep["arms"]], ARMS)
        for row in sweep["rows"]:
            for arm, kv, scale in (("N", "native", "fixed"), ("AF", "k16v8", "fixed"), ("SD", "k8v8", "dynamic")):
                single = plan(*args, "--kv", kv, "--scale", scale, "--tokens", row["tokens"])
                self.assertEqual(row["sequences"][arm], single["pool"]["concurrent_sequences"], (row["tokens"], arm))
            self.assertLess(row["sequences"]["N"], row["sequences"]["SF"])
        self.assertIn("PF PD JD are served only if", sweep["notes"][0])  # the file says nothing about a bias

    def test_what_a_sweep_cannot_promise_is_noted(self):
        no_bias = program.SOURCE / "tests/golden/parity/tiny-qwen3"
        sweep = plan(no_bias, "--budget", "1GiB", "--sweep", "--contexts", "64,1048576")["sweep"]
        self.assertEqual([arm["arm"] for arm in sweep["arms"]], [arm for arm in ARMS if arm not in ("PF", "PD", "JD")])
        self.assertIn("PF PD JD are left out", sweep["notes"][0])
        self.assertIn("longer than the model's positions", sweep["notes"][1])
        text = program.run("plan", no_bias, "--budget", "1GiB", "--sweep", "--contexts", "64,1048576", check=0).stderr
        self.assertIn("PF PD JD are left out", text)
        self.assertEqual(plan(program.MODELS / "probe-robust", "--budget", "1GiB", "--sweep")["sweep"]["notes"], [])

    def test_plots_are_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, magic in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
                path = pathlib.Path(folder) / name
                program.run("plan", QWEN3_8B, "--budget", "40GiB", "--plot", path, check=0)
                self.assertTrue(path.read_bytes().startswith(magic), name)
                self.assertGreater(path.stat().st_size, 5000)
            done = program.run("plan", QWEN3_8B, "--budget", "1MiB", "--plot", path, check=2)
            self.assertIn("not one sequence fits", done.stderr)


class Refusals(unittest.TestCase):
    def refused(self, code, text, *args):
        done = program.run("plan", *args)
        self.assertEqual(done.returncode, code, (args, done.stderr))
        for part in text:
            self.assertIn(part, done.stderr, args)

    def test_latent_layers_are_refused_with_the_bytes_of_their_own_type(self):
        answer = plan(CONFIGS / "deepseek-v3.json", "--budget", "40GiB", "--tokens", 163840, check=4)
        self.assertEqual(answer["verdict"], "refuse")
        self.assertEqual(answer["native_bytes_per_token"], 70272)
        self.assertEqual(answer["native_sequence_bytes"], 70272 * 163840)
        self.assertIn("kv_lora_rank", answer["reason"])
        self.refused(4, ["--draft", "deepseek-v3.json", "kv_lora_rank"], QWEN3_8B, "--budget", "40GiB", "--draft",
                     CONFIGS / "deepseek-v3.json")
        self.refused(4, ["deepseek-v3.json", "kv_lora_rank", "70272"], CONFIGS / "deepseek-v3.json", "--budget", "40GiB")

    def test_heads_that_do_not_divide(self):
        self.refused(4, ["10 KV heads", "4 ranks"], CONFIGS / "phi-4.json", "--budget", "40GiB", "--tp", 4)

    def test_classes_that_are_only_accounted_for(self):
        answer = plan(CONFIGS / "gemma-4-26b-a4b.json", "--budget", "40GiB")
        self.assertEqual(answer["verdict"], "account_only")
        self.assertEqual((answer["bytes_per_token"], answer["fixed_bytes_per_sequence"]), (20480, 209715200))
        answer = plan(QWEN3_8B, "--budget", "40GiB", "--draft", CONFIGS / "qwen3.5-9b.json")
        self.assertEqual(answer["verdict"], "account_only")
        self.assertIn("the draft", answer["reason"])

    def test_bias_removal_without_a_bias(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json"
            whole = {"intermediate_size": 12288, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
                     "hidden_act": "silu", "eos_token_id": 151645, "tie_word_embeddings": False}
            config.write_text(json.dumps({**json.loads(QWEN3_8B.read_text()), **whole}))
            answer = plan(config, "--budget", "40GiB", "--kv", "k8v8-prebias")
        self.assertEqual(answer["verdict"], "account_only")
        self.assertIn("no key bias", answer["reason"])
        # A file without what the runtime reads says nothing about a bias.
        self.assertIn("not known", plan(QWEN3_8B, "--budget", "40GiB", "--kv", "k8v8-prebias")["reason"])

    def test_errors_name_option_and_value(self):
        self.refused(2, ["--budget"], QWEN3_8B)
        self.refused(2, ["--budget", "40 GiB"], QWEN3_8B, "--budget", "40 GiB")
        self.refused(2, ["--reserve", "-1"], QWEN3_8B, "--budget", "1GiB", "--reserve=-1")
        self.refused(2, ["--budget", "99999999TiB"], QWEN3_8B, "--budget", "99999999TiB")
        self.refused(2, ["--page-size"], QWEN3_8B, "--budget", "1GiB", "--page-size", 257)
        self.refused(2, ["--plot", "a.pdf"], QWEN3_8B, "--budget", "1GiB", "--plot", "a.pdf")
        self.refused(2, ["--weights"], QWEN3_8B, "--device-memory", "80GiB")
        self.refused(2, ["--tokens", "all its digits"], QWEN3_8B, "--budget", "1GiB", "--tokens", "1K")
        self.refused(2, ["--contexts", "all its digits"], QWEN3_8B, "--budget", "1GiB", "--sweep", "--contexts", "1024,8k")
        self.refused(5, ["prefill budget of 5 bytes"], CONFIGS / "gemma-3-27b.json", "--budget", "40GiB", "--prefill-budget", 5)

    def test_a_budget_of_no_page_says_what_one_takes(self):
        done = program.run("plan", QWEN3_8B, "--budget", "40", check=0)
        self.assertIn("no page fits: one takes 2359296 bytes; a size without a unit is in bytes", done.stderr)

    def test_a_configuration_is_known_by_what_it_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "config.json.orig"
            config.write_text(QWEN3_8B.read_text())
            self.assertEqual(plan(config, "--budget", "40GiB")["pages"], plan(QWEN3_8B, "--budget", "40GiB")["pages"])
            config.write_text("\n { \"model_type\": 7, \"model_type\": 8 }")
            self.refused(3, ["config.json.orig", "the key \"model_type\" twice"], config, "--budget", "40GiB")

    def test_an_option_that_nothing_reads_is_refused(self):
        budget = (QWEN3_8B, "--budget", "40GiB")
        for option, companion in (("--weights", "--device-memory"), ("--activation-memory", "--device-memory"),
                                  ("--workspace", "--device-memory"), ("--staging-tokens", "--device-memory"),
                                  ("--shared-prefix", "--tokens"), ("--contexts", "--sweep"), ("--pages", "--verify")):
            self.refused(2, [option, companion], *budget, option, 1024)
        self.refused(2, ["--export", "--tokens"], *budget, "--export", "aiconfigurator", "--tokens", 8)
        self.refused(4, ["window", "--tokens"], CONFIGS / "mistral-7b-v0.1.json", "--budget", "40GiB", "--export", "aiconfigurator")

    def test_a_pool_beyond_the_machine_is_not_tried(self):
        self.refused(5, ["available", "fewer pages"], CONFIGS / "llama-3.1-70b.json", "--verify", "--pages", 1 << 20)
        self.refused(2, ["--contexts", "0"], QWEN3_8B, "--budget", "1GiB", "--sweep", "--contexts", "0")
        self.refused(2, ["--kv all"], QWEN3_8B, "--budget", "1GiB", "--kv", "all")
        self.refused(2, ["bogus"], QWEN3_8B, "--budget", "1GiB", "--kv", "bogus")
        self.refused(5, ["reserve"], QWEN3_8B, "--budget", "1MiB", "--reserve", "1GiB")
        self.refused(3, ["nothing.json"], "nothing.json", "--budget", "1GiB")


if __name__ == "__main__":
    unittest.main()
