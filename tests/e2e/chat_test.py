#!/usr/bin/env python3
"""asymkv chat, piped and at a pseudo-terminal, on an embedded model with a template of one line."""
import json
import os
import pathlib
import pty
import re
import select
import subprocess
import tempfile
import time
import unittest

from program import MODELS, PROGRAM, run

MODEL = MODELS / "probe-robust"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"


class Terminal:
    """The program with a pseudo-terminal as standard input, output and error."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, *map(str, args)], {**os.environ, "ASYMKV_NO_PROGRESS": "1"})
        self.seen = ""

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern, seconds=120):
        """Output up to the end of the first match, which later calls do not see again."""
        end = time.monotonic() + seconds
        while (match := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {pattern!r} within {seconds} s, only:\n{self.seen[-2000:]}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"the program ended before {pattern!r}:\n{self.seen[-2000:]}")
            self.seen += data.decode(errors="replace")
        before, self.seen = self.seen[:match.end()], self.seen[match.end():]
        return before

    def exit_code(self):
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class ChatTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.template = pathlib.Path(self.folder.name) / "template.jinja"
        self.template.write_text(TEMPLATE)

    def arguments(self, *more):
        return ["chat", MODEL, "--chat-template", self.template, *more]

    def piped(self, text, *more):
        return subprocess.run([PROGRAM, *map(str, self.arguments(*more))], input=text, capture_output=True, text=True)

    def test_piped_input_has_no_decoration(self):
        saved = pathlib.Path(self.folder.name) / "saved.json"
        result = self.piped(f"The old farmer\nfirst\\\nsecond\n\"\"\"block\n\n  line\n\"\"\"\n/save {saved}\n",
                            "--max-tokens", 6, "--system", "Be brief.")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("> ", result.stdout)
        self.assertNotIn("/help", result.stdout)
        file = json.loads(saved.read_text())
        self.assertEqual([m["role"] for m in file["messages"]],
                         ["system", "user", "assistant", "user", "assistant", "user", "assistant"])
        self.assertEqual([m["content"] for m in file["messages"] if m["role"] == "user"],
                         ["The old farmer", "first\nsecond", "block\n\n  line"])
        self.assertEqual(result.stdout,
                         "".join(m["content"] + "\n" for m in file["messages"] if m["role"] == "assistant"))
        self.assertEqual(file["record"]["key"]["allocated"]["format"], "bf16")

    def test_reused_prefix_gives_what_a_fresh_prefill_gives(self):
        saved = pathlib.Path(self.folder.name) / "saved.json"
        result = self.piped(f"The old farmer went to\nAnd then\n/save {saved}\n", "--max-tokens", 24)
        self.assertEqual(result.returncode, 0, result.stderr)
        contents = [m["content"] for m in json.loads(saved.read_text())["messages"]]
        prompt = "".join(content + "\n" for content in contents[:3])
        fresh = json.loads(run("generate", MODEL, "--prompt", prompt, "--max-tokens", 24, "--json", check=0).stdout)
        self.assertEqual(fresh["text"], contents[3])

    def test_a_terminal_conversation(self):
        terminal = Terminal(*self.arguments("--max-tokens", 8, "--kv", "k16v8", "--context", 256))
        terminal.wait_for(r"keys bf16, values e4m3.*\r\n> ")
        terminal.send("The old farmer\n")
        first = terminal.wait_for(r"\[(\d+) tokens, (\d+) of them from the cache.*\]\r\n> ")
        self.assertIn(", 0 of them", first)
        terminal.send("went\\\n")
        terminal.wait_for(r"\. ")
        terminal.send("home\n")
        second = terminal.wait_for(r"\[(\d+) tokens, (\d+) of them from the cache.*\]\r\n> ")
        tokens, reused = map(int, re.search(r"\[(\d+) tokens, (\d+) of them", second).groups())
        self.assertGreater(reused, 15)
        self.assertLess(reused, tokens)
        terminal.send("/kv\n")
        facts = terminal.wait_for(r"of \d+ bytes\r\n> ")
        self.assertRegex(facts, r"key +requested k16v8, resolved bf16, allocated bf16")
        self.assertRegex(facts, r"value +requested k16v8, resolved e4m3\S*, allocated e4m3")
        self.assertRegex(facts, r"launched: \S+ \S+:\S+ on e4m3\S*, \d+ times")
        self.assertRegex(facts, r"\d+ bytes a token, scales included")
        terminal.send("/frobnicate\n")
        terminal.wait_for(r"/frobnicate is no command")
        terminal.send("x" * 300 + "\n")
        terminal.wait_for(r"the context holds 256: shorten the message.*\r\n> ")
        terminal.send("/reset\n")
        terminal.wait_for(r"> ")
        terminal.send("The old farmer\n")
        self.assertIn(", 0 of them", terminal.wait_for(r"from the cache.*\]\r\n> "))
        terminal.send("/quit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_stops_the_answer_then_leaves(self):
        # The oracle is slow enough to be interrupted; at this temperature an end token is unlikely for a while.
        terminal = Terminal(*self.arguments("--max-tokens", 4000, "--device", "ref", "--temperature", 1.5))
        terminal.wait_for(r"> ")
        terminal.send("The old farmer\n")
        terminal.wait_for(r"farmer\r\n.")
        terminal.send("\x03")
        terminal.wait_for(r"\[stopped\]\r\n")
        terminal.wait_for(r"> ")
        terminal.send("/kv\n")
        terminal.wait_for(r"bytes\r\n> ")
        terminal.send("half a line\x03")
        terminal.wait_for(r"Ctrl-C again leaves")
        terminal.wait_for(r"> ")
        terminal.send("\x03")
        self.assertEqual(terminal.exit_code(), 0)

    def test_end_of_input_leaves(self):
        terminal = Terminal(*self.arguments())
        terminal.wait_for(r"> ")
        terminal.send("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_refusals(self):
        self.assertEqual(self.piped("x" * 300 + "\n", "--context", 64).returncode, 2)
        self.assertIn("no chat template", run("chat", MODEL, check=4).stderr)
        self.template.write_text("{{ raise_exception('not today') }}")
        self.assertIn("not today", self.piped("hello\n").stderr)
        self.template.write_text("{% include 'x' %}")
        result = self.piped("hello\n")
        self.assertEqual(result.returncode, 4)
        self.assertIn("line 1, column 4: the statement \"include\"", result.stderr)


class MathByChat(unittest.TestCase):
    """GSM8K questions asked through a chat template: a protocol whose math panel has "prompt": "chat"."""
    TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}[answer]"

    def admit(self, folder, model, check):
        protocol = json.loads(run("gate", "protocol", "quick", "--json", check=0).stdout)
        protocol = protocol.get("protocol", protocol)
        protocol["panels"].update(retrieval=[], loss=[])
        protocol["panels"]["math"].update(prompt="chat", few_shot=0, count=2, cases_per_unit=2, generation={"token_limit": 8, "stops": []})
        (folder / "chat.json").write_text(json.dumps(protocol))
        (folder / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "1+1=2\\n#### 2"}\n'
                                           '{"question": "Is <|eos|> 2 + 1?", "answer": "#### 3"}\n')
        return run("admit", model, "--protocol", folder / "chat.json", "--math-questions", folder / "test.jsonl", "--arms", "N,SD",
                   "--out", folder / "run", check=check)

    def test_a_template_writes_the_cases(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.assertIn("has no chat template to ask the math questions by", self.admit(folder, MODEL, 4).stderr)
            model = folder / "model"
            model.mkdir()
            for file in MODEL.iterdir():
                (model / file.name).symlink_to(file)
            (model / "chat_template.jinja").write_text(self.TEMPLATE)
            self.admit(folder, model, 0)
            cases = [json.loads(line) for line in (folder / "run/cases.jsonl").read_text().splitlines()]
            run("gate", "verify", folder / "run", check=0)
        self.assertEqual([case["question"] for case in cases], ["1 + 1?\n[answer]", "Is <|eos|> 2 + 1?\n[answer]"])
        self.assertEqual([case["user_bytes"] for case in cases], [6, 17])
        self.assertEqual(cases[0]["context"], cases[1]["context"])
        self.assertIn("[user] Solve this problem step by step.", cases[0]["context"])


if __name__ == "__main__":
    unittest.main()
