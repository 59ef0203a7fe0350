"""Holds docs/cli.md and the examples of all documents against the built program.

Runs inside a build tree (ctest sets ASYMKV_BINARY_DIR); every cheap example is executed as written.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import checks

ROOT = checks.HERE.parent.parent
PROGRAM = pathlib.Path(os.environ.get("ASYMKV_BINARY_DIR", ROOT / "build" / "release")) / "apps" / "asymkv" / "asymkv"
NO_COMMANDS = {"KV formats"}  # sections of docs/cli.md that describe no command
EXPENSIVE = {"bench", "admit", "chat"}  # and what needs a file of the reader: not run


def asymkv(*arguments, cwd=ROOT):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def listed_subcommands(*command):
    text = asymkv(*command, "--help").stdout
    lines = text.split("Subcommands:\n")[1].split("\n\n")[0].splitlines() if "Subcommands:\n" in text else []
    return sorted(match.group(1) for line in lines if (match := re.match(r"  ([a-z]\S*)", line)))


def sections():
    """{command words: text} of docs/cli.md."""
    parts = re.split(r"^## (.+)$", (ROOT / "docs" / "cli.md").read_text(), flags=re.M)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2]) if title not in NO_COMMANDS}


def options_of(help_text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text.split("Example")[0])) - {"--help", "--json"}


def field_names(text):
    """Top-level names of a JSON answer as the documents write it: "a, b {c, d}, e []"."""
    depth, flat = 0, ""
    for character in text:
        depth -= character in "}]"
        if depth == 0 and character not in "{}[]":
            flat += character
        depth += character in "{["
    return sorted(name.strip() for name in flat.split(",") if name.strip())


class CommandLine(unittest.TestCase):
    def test_every_command_has_a_section_and_every_section_a_command(self):
        self.assertEqual(sorted({title.split()[0] for title in sections()}), listed_subcommands())

    def test_every_help_has_an_example(self):
        for title in sections():
            names = [[*title.split(), sub] for sub in listed_subcommands(*title.split())] or [title.split()]
            for words in names:
                self.assertIn("Example", asymkv(*words, "--help").stdout, words)

    def test_options_of_documents_and_program_agree(self):
        for title, text in sections().items():
            subs = listed_subcommands(*title.split())
            helps = "\n".join(asymkv(*title.split(), *([sub] if sub else []), "--help").stdout for sub in subs or [""])
            known = set().union(*(options_of(asymkv(*title.split(), *([sub] if sub else []), "--help").stdout)
                                  for sub in subs or [""]))
            documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.split("```sh")[0])) - {"--json"}
            self.assertFalse(documented - options_of(helps) - known, f"{title}: documented, but not in --help")
            self.assertFalse(known - documented, f"{title}: in --help, but not documented")

    def test_json_fields_of_the_statistics(self):
        rows = re.findall(r"^\| `stats (\w+)` \|[^|]*\| `([^`]+)` \|$", sections()["stats"], flags=re.M)
        self.assertEqual(sorted(name for name, _ in rows), listed_subcommands("stats"))
        examples = {"paired": "--n 1319 --lost 6 --gained 3 --divisor 24", "binomial": "--k 18 --n 20",
                    "tango": "--table 4,9,3,16", "mcnemar": "--lost 80 --gained 59", "sign": "--positive 9 --n 10",
                    "holm": "0.01 0.04", "looks": "--n 500", "cases": "--loss-pct 1", "speed": "--pairs PAIRS",
                    "bootstrap": "--pairs PAIRS --resamples 1000"}
        for name, fields in rows:
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as pairs:
                pairs.write("2.0 2.01\n2.1 2.1\n")
                pairs.flush()
                words = [pairs.name if word == "PAIRS" else word for word in examples[name].split()]
                answer = json.loads(asymkv("stats", name, *words, "--json").stdout)
            self.assertEqual(sorted(answer), field_names(fields), name)

    def test_json_fields_of_model_show_doctor_and_plan(self):
        for title, words in {"model show": ["models/probe-fragile"], "doctor": [],
                             "plan": ["models/probe-fragile", "--budget", "1GiB"]}.items():
            answer = json.loads(asymkv(*title.split(), *words, "--json").stdout)
            fields = re.search(r"JSON: `([^`]+)`", sections()[title]).group(1)
            self.assertEqual(sorted(answer), field_names(fields.replace("\n", " ")), title)


class Examples(unittest.TestCase):
    def test_cheap_examples_run_as_written(self):
        ran = 0
        for name in checks.documents(checks.Tree(ROOT)):
            for number, command in checks.shell_lines(checks.Tree(ROOT), name):
                words = shlex.split(command)
                if os.path.basename(words[0]) != "asymkv" or words[1] in EXPENSIVE or "MODEL" in words:
                    continue
                result = asymkv(*words[1:])
                self.assertEqual(result.returncode, 0, f"{name}:{number}: {command}\n{result.stderr}")
                ran += 1
        self.assertGreater(ran, 0)

    def test_shown_outputs_are_what_the_program_prints(self):
        text = (ROOT / "docs" / "capacity.md").read_text()
        blocks = re.findall(r"```sh\nasymkv ([^\n]+)\n```\n```text\n(.*?)```", text, flags=re.S)
        self.assertTrue(blocks)
        for command, shown in blocks:
            self.assertEqual(asymkv(*shlex.split(command)).stderr, shown, command)

    def test_help_examples_that_need_no_file_run(self):
        for title in sections():
            for sub in listed_subcommands(*title.split()) or [None]:
                words = [*title.split(), *([sub] if sub else [])]
                example = asymkv(*words, "--help").stdout.split("Example")[-1]
                for line in re.findall(r"asymkv (.+)", example):
                    if line.endswith("\\"):
                        continue
                    arguments = shlex.split(line)
                    if arguments[0] in EXPENSIVE | {"calibrate", "gate"} or {"--pairs", "--policy"} & set(arguments):
                        continue
                    result = asymkv(*arguments)
                    self.assertEqual(result.returncode, 0, f"{line}\n{result.stderr}")


if __name__ == "__main__":
    if not PROGRAM.is_file():
        raise SystemExit(f"docs_test.py: {PROGRAM} is not built; run scripts/build.sh release first")
    unittest.main(verbosity=2)
