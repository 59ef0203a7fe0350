"""record show, compare and import as a user types them; a record from every command that runs a model; the emitter for others."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import program
import schema_check

ROBUST = program.MODELS / "probe-robust"
SAMPLES = program.SOURCE / "src/asymkv/record/testdata"
EMITTER = program.SOURCE / "examples/record-emitter"
SCHEMA = schema_check.load("record.schema.json")
TEXT = "The old farmer carried the heavy basket near the market. " * 60


def answer(*args):
    return json.loads(program.run(*args, "--json", check=0).stdout)


class EmittedRecords(unittest.TestCase):
    """What a command that runs a model must leave behind. A command added to the program belongs here or in WITHOUT."""
    # They run no model; bench kernel needs a GPU (its rows: record_scan_test).
    WITHOUT = {"doctor", "gate", "model", "plan", "record", "stats"}

    def check(self, record, attested=True):
        self.assertIsNone(schema_check.violation(record, SCHEMA))
        self.assertEqual(record["engine"], "asymkv")
        for field in ("worker", "argv_sha256", "started", "ended"):
            self.assertTrue(record[field], field)
        self.assertTrue(record["model"]["weights_sha256"] and record["build"]["hash"] and record["device"]["kind"])
        self.assertGreater(record["launch"]["threads"], 0)
        for side in ("key", "value"):
            self.assertEqual(record[side]["attested"], attested, record[side])

    def records(self, folder):
        """{command: records} of one call of each."""
        text, scales, saved = folder / "text.txt", folder / "scales.json", folder / "chat.json"
        text.write_text(TEXT)
        chat = subprocess.run([program.PROGRAM, "chat", ROBUST, "--chat-template", self.template(folder), "--max-tokens", "4"],
                              input=f"Hello\n/save {saved}\n/quit\n", capture_output=True, text=True, check=False)
        self.assertEqual(chat.returncode, 0, chat.stderr)
        protocol = program.write_protocol(folder, program.small_protocol("record-test", 2, 2, 2, certifying=False))
        run = folder / "run"
        program.run("admit", ROBUST, "--protocol", protocol, "--arms", "N,SD", "--out", run, check=0)
        yield "generate", [answer("generate", ROBUST, "--prompt", "The old", "--kv", "k16v8", "--max-tokens", 4)["record"]]
        yield "chat", [json.loads(saved.read_text())["record"]]
        yield "bench", list(answer("bench", "engine", ROBUST, "--kv", "native,k16v8", "--prefill", 20, "--depth", 0,
                                   "--decode-tokens", 2, "--reps", 1, "--threads", 1)["records"].values())
        yield "admit", list(json.loads((run / "record.json").read_text())["arms"].values())
        yield "probe", [answer("probe", ROBUST, "--data", text, "--tokens", 128, "--documents", 1)["record"]]
        yield "calibrate", [answer("calibrate", ROBUST, "--data", text, "--tokens", 64, "--documents", 1, "--out", scales)["record"]]

    @staticmethod
    def template(folder):
        path = folder / "template.jinja"
        path.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
        return path

    def test_every_command_that_runs_a_model_leaves_a_valid_record(self):
        with tempfile.TemporaryDirectory() as name:
            seen = set()
            for command, records in self.records(pathlib.Path(name)):
                seen.add(command)
                self.assertTrue(records, command)
                for record in records:
                    with self.subTest(command):
                        # Probe and calibrate read keys and values before storage: nothing is allocated.
                        self.check(record, attested=command not in ("probe", "calibrate"))
            help_text = program.run("--help", check=0).stdout.split("Subcommands:\n")[1].split("\n\n")[0]
            commands = {line.split()[0] for line in help_text.splitlines() if line.startswith("  ") and line[2] != " "}
            self.assertEqual(commands - self.WITHOUT, seen)

    def test_secrets_and_prompts_are_not_in_a_record(self):
        record = answer("generate", ROBUST, "--prompt", "xyzzy hunter2", "--max-tokens", 2)["record"]
        self.assertNotIn("hunter2", json.dumps(record))


class RecordCommands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def generated(self, name, *options):
        path = self.folder / name
        path.write_text(program.run("generate", ROBUST, "--prompt", "The old", "--max-tokens", 3, "--json", *options, check=0).stdout)
        return path

    def test_show_prints_the_four_facts_of_each_side(self):
        path = self.generated("k16v8.json", "--kv", "k16v8")
        text = program.run("record", "show", path, check=0).stdout
        for words in (r"requested +k16v8 +k16v8", r"resolved +bf16 +e4m3", r"allocated +bf16 +e4m3", r"launched +bf16 +e4m3",
                      r"effective +bf16 +e4m3", r"attested +attested", r"keys +decode:", r"values +decode:"):
            self.assertRegex(text, words)
        shown = answer("record", "show", path)["records"]
        self.assertEqual([row["at"] for row in shown], ["record"])
        self.assertIsNone(schema_check.violation(shown[0]["record"], SCHEMA))

    def test_show_says_in_words_that_a_changed_allocation_is_not_attested(self):
        path = self.generated("lie.json", "--kv", "k16v8")
        document = json.loads(path.read_text())
        value = document["record"]["value"]
        value["allocated"]["format"] = value["effective"] = "bf16"
        path.write_text(json.dumps(document))
        refused = program.run("record", "show", path, check=3)
        self.assertIn('record: field "value.attested" must be false', refused.stderr)
        value["attested"] = False
        path.write_text(json.dumps(document))
        self.assertRegex(program.run("record", "show", path, check=0).stdout, "not attested: decode:.* worked on e4m3")

    def test_show_lists_many_records_and_takes_one(self):
        folder = program.SOURCE / "examples/qwen2.5-coder-0.5b-quick"
        for name in ("record.json", "certificate.json"):
            text = program.run("record", "show", folder / name, check=0).stdout
            self.assertIn("arms.SD  keys e4m3, values e4m3, attested\n", text)
        text = program.run("record", "show", folder / "record.json", "--at", "JD", check=0).stdout
        self.assertIn("arms.JD: asymkv", text)
        self.assertIn("key_bias_removed", text)
        self.assertIn("arms.JD, arms.N", program.run("record", "show", folder / "record.json", "--at", "XX", check=2).stderr)

    def test_compare_accepts_one_difference_and_names_two(self):
        native, k16v8, k8v8 = (self.generated(f"{kv}.json", "--kv", kv) for kv in ("native", "k16v8", "k8v8"))
        one = answer("record", "compare", native, k16v8)
        self.assertTrue(one["comparable"])
        self.assertEqual(one["varies"], "value")
        self.assertIsNone(schema_check.violation(one, schema_check.load("record-comparison.schema.json")))
        two = program.run("record", "compare", native, k8v8, check=1)
        self.assertIn("not comparable: key, value\n", two.stdout)
        program.run("record", "compare", native, k8v8, "--varies", "format", check=0)
        rounded = self.generated("a16.json", "--kv", "k16v8", "--activations", 16)
        refused = program.run("record", "compare", native, rounded, "--varies", "value", check=1)
        self.assertIn("not comparable: kernel\n", refused.stdout)
        granted = program.run("record", "compare", native, rounded, "--varies", "value", "--ignore", "kernel", check=0)
        self.assertIn("ignored: kernel\n", granted.stdout)
        same = program.run("record", "compare", native, k16v8, "--varies", "value", "--ignore", "value", check=2)
        self.assertIn("--ignore value", same.stderr)
        rows = program.SOURCE / "bench/results/kernel-h200.json"
        kernels = (f"{rows}:rows[0].record", f"{rows}:rows[1].record")
        self.assertIn("not comparable: value, model\n", program.run("record", "compare", *kernels, check=1).stdout)
        program.run("record", "compare", *kernels, "--ignore", "model", check=0)

    def test_import_says_which_field_decided(self):
        text = program.run("record", "import", SAMPLES / "llama-bench.json", "--from", "llama-bench", check=0).stdout
        self.assertIn("keys       requested f16, decided by type_k\n", text)
        self.assertIn("values     requested q8_0, decided by type_v\n", text)
        self.assertIn("not attested", text)
        forged = self.folder / "forged.json"
        forged.write_text((SAMPLES / "llama-bench.json").read_text().replace('"f16"', '"f16\\n  effective  attested\\u001b[2J"'))
        text = program.run("record", "import", forged, "--from", "llama-bench", check=0).stdout
        self.assertNotIn("\x1b", text)
        self.assertIn("f16\\x0a  effective  attested", text)
        program.run("record", "import", forged, "--from", "llama-bench", "--out", forged, check=2)
        out = self.folder / "imported.json"
        program.run("record", "import", SAMPLES / "vllm-log-auto.txt", "--from", "vllm-log", "--out", out, check=0)
        imported = json.loads(out.read_text())
        self.assertIsNone(schema_check.violation(imported, schema_check.load("record-import.schema.json")))
        record = imported["records"][0]["record"]
        self.assertEqual([record[side][fact] for side in ("key", "value") for fact in ("requested", "effective", "attested")],
                         ["auto", "unknown", False] * 2)
        self.assertRegex(program.run("record", "show", out, check=0).stdout, "requested +auto")
        wrong = program.run("record", "import", SAMPLES / "sglang-log.txt", "--from", "vllm-log", check=3)
        self.assertIn("say --from sglang-log", wrong.stderr)
        program.run("record", "compare", out, out, check=1)

    def test_the_emitter_for_other_engines_is_read_and_valid(self):
        for asked in (None, "auto", "q8_0"):
            options = ["--kv-cache-dtype", asked] if asked else []
            text = subprocess.run([sys.executable, EMITTER / "toy_engine.py", *options], capture_output=True, text=True, check=True).stdout
            record = json.loads(text)
            self.assertIsNone(schema_check.violation(record, SCHEMA))
            self.assertEqual(record["value"]["requested"], asked or "unset")
            self.assertEqual((record["key"]["effective"], record["value"]["effective"]), ("bf16", "q8_0" if asked == "q8_0" else "bf16"))
            path = self.folder / "toy.json"
            path.write_text(text)
            read = answer("record", "show", path)["records"][0]["record"]
            self.assertEqual(json.dumps(read, sort_keys=True, separators=(",", ":")), text.strip())
            self.assertTrue(read["key"]["attested"] and read["value"]["attested"])

    def test_the_emitter_leaves_secrets_out_as_the_program_does(self):
        sys.path.insert(0, str(EMITTER))
        import record_emitter  # noqa: E402
        # printf '\x06\0\0\0\0\0\0\0asymkv\x05\0\0\0\0\0\0\0admit' | sha256sum, as in record_test.cc
        self.assertEqual(record_emitter.argv_fingerprint(["asymkv", "admit"]),
                         "00bf44d0c64d007499a327bf7330e0c8ce7485db65936aa1ba3c37bdec46fdb5")
        bare = record_emitter.argv_fingerprint(["serve", "--api-key", "--port", "1"])
        for arguments in (["serve", "--api-key", "hunter2", "--port", "1"], ["serve", "--api-key=hunter2", "--port", "1"]):
            self.assertEqual(record_emitter.argv_fingerprint(arguments), bare)
        side = record_emitter.Side()
        with self.assertRaises(ValueError):
            side.resolve("fp8")
        side.allocate("bf16", "none", 1, 0, 1)
        side.launch("toy", "decode", "e4m3", "b")
        self.assertFalse(side.facts()["attested"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
