"""Command lines, files and streams that must not be guessed at: each is refused by name, and none is served in silence."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import program

ROBUST = program.MODELS / "probe-robust"


class Words(unittest.TestCase):
    def test_a_word_that_is_no_command_is_named_with_those_that_are(self):
        for args, text in ((["frobnicate"], "\"frobnicate\" is no command; known: admit,"),
                           (["record", "foo"], "\"foo\" is no command of record; known: show, compare, import"),
                           (["record"], "a command of record is missing; known: show, compare, import"),
                           ([], "a command is missing; known: admit,")):
            done = program.run(*args, check=2)
            self.assertIn(text, done.stderr, args)


class Numbers(unittest.TestCase):
    def refused(self, option, text, *args):
        done = program.run(*args)
        self.assertEqual(done.returncode, 2, (args, done.stdout))
        self.assertIn(option, done.stderr)
        self.assertIn(text, done.stderr)

    def test_an_empty_or_crooked_number_is_no_number(self):
        for text in ("", " ", "0x10", "1e3", "12 ", "--5", "+-5", "99999999999999999999"):
            self.refused("--lost", text, "stats", "paired", "--n", "1319", "--gained", "0", f"--lost={text}")
        for text in ("", "0,05", "1.5.2"):
            self.refused("--level", text, "stats", "binomial", "--k", "1", "--n", "10", f"--level={text}")

    def test_a_leading_zero_is_decimal(self):
        done = program.run("stats", "binomial", "--k", "010", "--n", "0200", check=0)
        self.assertIn("10 of 200", done.stderr)

    def test_unsigned_numbers_do_not_wrap(self):
        for seed in ("-1", "18446744073709551616", ""):
            self.refused("--seed", seed, "generate", ROBUST, "--prompt", "a", "--temperature", "1", f"--seed={seed}")

    def test_lists_have_no_holes(self):
        for ids in ("", "1,,3", ",1", "1,", "1,x", "1,4294967296"):
            self.refused("--prompt-ids", "", "generate", ROBUST, f"--prompt-ids={ids}")

    def test_a_prompt_is_needed(self):
        self.refused("--prompt", "", "generate", ROBUST)

    def test_threads_of_the_environment_are_read_as_strictly(self):
        for text in ("abc", "-1", "0", "1.9", "1000000", ""):
            done = program.run("generate", ROBUST, "--prompt", "a", "--max-tokens", "1", env={"ASYMKV_NUM_THREADS": text})
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("ASYMKV_NUM_THREADS", done.stderr)

    def test_an_unknown_command_is_named(self):
        self.refused("bogus", "generate", "bogus")


class Texts(unittest.TestCase):
    BAD = b"caf\xe9 au lait"  # Latin-1: not UTF-8 from byte 3 on

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = self.folder / "latin1.txt"
        self.file.write_bytes(self.BAD)

    def test_text_that_is_not_utf8_is_named_with_its_byte(self):
        bad = os.fsdecode(self.BAD)
        cases = {"--prompt": ["generate", ROBUST, "--prompt", bad],
                 "--system": ["chat", ROBUST, "--chat-template", ROBUST / "config.json", "--system", bad],
                 str(self.file): ["calibrate", ROBUST, "--data", self.file, "--out", self.folder / "scales.json"]}
        for origin, args in cases.items():
            done = program.run(*args)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(f"{origin} is not valid UTF-8 at byte 3", done.stderr)
        for args in (["probe", ROBUST, "--data", self.file], ["chat", ROBUST, "--chat-template", self.file]):
            self.assertIn(f"{self.file} is not valid UTF-8 at byte 3", program.run(*args).stderr)

    def test_a_message_that_is_not_utf8_is_refused(self):
        template = self.folder / "template.jinja"
        template.write_text("{{ messages[-1].content }}")
        done = subprocess.run([program.PROGRAM, "chat", str(ROBUST), "--chat-template", str(template)], input=self.BAD,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"the message is not valid UTF-8 at byte 3", done.stderr)

    def test_an_empty_text_is_no_path_and_no_name(self):
        commands = {"MODEL": [["generate", "", "--prompt", "a"], ["model", "show", ""], ["admit", ""], ["probe", ""],
                              ["chat", ""], ["bench", "engine", ""]],
                    "DIR": [["gate", "verify", ""], ["gate", "report", ""]], "NAME": [["gate", "protocol", ""]],
                    "--out": [["admit", ROBUST, "--out", ""], ["calibrate", ROBUST, "--data", self.file, "--out="],
                              ["bench", "engine", ROBUST, "--out", ""], ["bench", "kernel", "--out", ""]],
                    "--data": [["probe", ROBUST, "--data", ""]], "--scales": [["admit", ROBUST, "--scales", ""]],
                    "--loss-text": [["admit", ROBUST, "--loss-text", ""]], "--filler": [["admit", ROBUST, "--filler="]],
                    "--scale": [["generate", ROBUST, "--prompt", "a", "--scale", ""]],
                    "--chat-template": [["chat", ROBUST, "--chat-template", ""]],
                    "--pairs": [["stats", "bootstrap", "--pairs", ""]]}
        for name, lines in commands.items():
            for args in lines:
                done = subprocess.run([program.PROGRAM, *map(str, args)], capture_output=True, text=True, cwd=self.folder)
                self.assertEqual(done.returncode, 2, (args, done.stderr))
                self.assertIn(name, done.stderr, args)
                self.assertTrue("must not be empty" in done.stderr or "required TEXT missing" in done.stderr, done.stderr)
        program.run("generate", ROBUST, "--prompt", "", "--max-tokens", 1, check=0)
        self.assertEqual(sorted(self.folder.iterdir()), [self.file])

    def test_a_probe_too_short_for_the_built_in_text_says_the_least(self):
        done = program.run("probe", ROBUST, "--tokens", 511)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--tokens 511: the built-in text needs 512 or more", done.stderr)
        program.run("probe", ROBUST, "--tokens", 512, check=0)
        self.file.write_text("The old farmer carried the heavy basket near the market. " * 10)
        program.run("probe", ROBUST, "--tokens", 128, "--data", self.file, check=0)

    def test_a_model_that_does_not_load_leaves_no_folder(self):
        done = subprocess.run([program.PROGRAM, "admit", "nothing"], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), [self.file])


class Streams(unittest.TestCase):
    COMMANDS = (["doctor"], ["doctor", "--json"], ["--help"], ["stats", "binomial", "--k", "1", "--n", "10", "--json"],
                ["generate", str(ROBUST), "--prompt", "a", "--max-tokens", "2"])

    def test_an_answer_that_cannot_be_written_is_an_error(self):
        for args in self.COMMANDS:
            with open("/dev/full", "w") as full:
                done = subprocess.run([program.PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 5, (args, done.stderr))
            self.assertIn("write", done.stderr)
            closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', program.PROGRAM, *args], stderr=subprocess.PIPE)
            self.assertEqual(closed.returncode, 5, args)

    def test_nobody_needs_to_read_stderr(self):
        for args in ([*self.COMMANDS[-1]], ["gate", "verify", "nope"], ["generate", str(ROBUST), "--kv", "bogus", "--prompt", "a"]):
            expected = program.run(*args).returncode
            for redirection in ("2>&-", "2>/dev/full"):
                done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', program.PROGRAM, *args],
                                      stdout=subprocess.PIPE)
                self.assertEqual(done.returncode, expected, (args, redirection))


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_pipe_is_no_model(self):
        pipe = self.folder / "model.gguf"
        os.mkfifo(pipe)
        done = program.run("model", "show", pipe)
        self.assertEqual(done.returncode, 3)
        self.assertIn("not a regular file", done.stderr)

    def test_a_file_that_nests_deeply_is_refused(self):
        path = self.folder / "protocol.json"
        path.write_text("[" * 1000000 + "]" * 1000000)
        done = program.run("admit", ROBUST, "--protocol", path, "--out", self.folder / "run")
        self.assertEqual(done.returncode, 3, done.stderr[-300:])
        self.assertIn("nests deeper", done.stderr)

    def damaged_model(self, tensor, value):
        """The robust model with one element of a BF16 tensor replaced."""
        model = self.folder / "damaged"
        model.mkdir()
        for file in ROBUST.iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        path = model / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        info = json.loads(data[8:8 + size])[tensor]
        self.assertEqual(info["dtype"], "BF16")
        begin = 8 + size + info["data_offsets"][0]
        data[begin:begin + 2] = struct.pack("<H", value)
        path.write_bytes(data)
        return model

    def test_weights_that_are_not_finite_give_no_text_and_no_scales(self):
        model = self.damaged_model("model.layers.0.self_attn.k_proj.weight", 0x7FC0)
        done = program.run("generate", model, "--prompt", "hi", "--max-tokens", 3)
        self.assertEqual((done.returncode, done.stdout.strip()), (3, ""), done.stderr)
        self.assertIn("nan", done.stderr)
        text = self.folder / "text.txt"
        text.write_text("The old farmer carried the heavy basket near the market. " * 60)
        done = program.run("calibrate", model, "--data", text, "--out", self.folder / "scales.json")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("layer 0", done.stderr)
        self.assertFalse((self.folder / "scales.json").exists())


if __name__ == "__main__":
    unittest.main()
