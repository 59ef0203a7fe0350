"""kill -9 at random moments of an admission, and inside writes; --resume ends in the same certificate, no case lost or
repeated, and a torn last line is repaired and reported. ASYMKV_KILLS: how many moments (20)."""
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

import program

ARMS = "N,AF,SD,JD"
KILLS = int(os.environ.get("ASYMKV_KILLS", "20"))
CASES = (6, 12, 2)  # retrieval, math, documents


def evidence(folder):
    """Bytes of everything a finished run rests on (not the record and the report, which name times)."""
    names = ["protocol.json", "cases.jsonl", "certificate.json", "policy.json", "progress.jsonl", "run.json"]
    files = [folder / name for name in names] + sorted((folder / "outcomes").iterdir())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class KillResume(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)
        protocol = program.small_protocol("kill", *CASES, certifying=False)
        for panel in [*protocol["panels"]["retrieval"], protocol["panels"]["math"], *protocol["panels"]["loss"]]:
            panel["cases_per_unit"] = 1
        # Many short launches: what is killed and resumed does not depend on the length of a text.
        protocol["panels"]["retrieval"][0]["length"] = 512
        protocol["panels"]["loss"][0].update(document_tokens=512, scored_tokens=256)
        protocol["bootstrap"]["resamples"] = 2000
        self.protocol = program.write_protocol(self.folder, protocol)
        self.addCleanup(self.scratch.cleanup)

    def command(self, out, resume):
        args = [program.PROGRAM, "admit", str(program.MODELS / "probe-fragile"), "--protocol", str(self.protocol),
                "--arms", ARMS, "--out", str(out), "--json"]
        return args + (["--resume"] if resume else [])

    def start(self, out):
        resume = (out / "run.json").exists()
        if out.exists() and not resume:  # killed before the run was begun
            for path in out.iterdir():
                path.unlink()
        return subprocess.Popen(self.command(out, resume), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "ASYMKV_NO_PROGRESS": "1"})

    def test_same_certificate(self):
        whole = self.folder / "whole"
        begin = time.monotonic()
        subprocess.run(self.command(whole, False), check=True, capture_output=True)
        duration = time.monotonic() - begin
        expected = evidence(whole)
        rng = random.Random(20261129)
        out = self.folder / "killed"
        kills = 0
        while True:
            process = self.start(out)
            try:
                # Most kills fall inside the panels, whatever the machine's speed.
                limit = rng.uniform(0.2, 1.0) * duration if kills < KILLS else None
                process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                self.tear(out, rng)
                process.communicate()
                continue
            _, stderr = process.communicate()
            self.assertEqual(process.returncode, 0, stderr)
            if kills >= KILLS:
                break
            # Finished before its kill: compare, then begin anew until every kill has been spent.
            self.assertEqual(evidence(out), expected)
            self.remove(out)
        self.assertEqual(evidence(out), expected)
        program.run("gate", "verify", out, check=0)  # the record has the launches of all processes
        for path in sorted((out / "outcomes").iterdir()):
            ids = collections.Counter(json.loads(line)["case_id"] for line in path.read_text().splitlines())
            self.assertEqual(set(ids.values()), {1}, path.name)
            self.assertEqual(len(ids), sum(CASES))

    def tear(self, out, rng):
        """Half of the time, leaves what a kill inside a write leaves: a last line without its end."""
        files = [*out.glob("outcomes/*.jsonl"), *out.glob("progress.jsonl")]
        files = sorted(path for path in files if path.stat().st_size > 0)
        if not files or rng.random() < 0.5:
            return
        path = rng.choice(files)
        # Only bytes after the last committed unit may be missing; a torn append adds a part of a line.
        with open(path, "ab") as file:
            file.write(b'{"arm":"N","case_id":"math/00')

    @staticmethod
    def remove(out):
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        out.rmdir()

    def test_interrupt_is_resumable(self):
        out = self.folder / "interrupted"
        process = self.start(out)
        while not (out / "progress.jsonl").exists() or not (out / "progress.jsonl").stat().st_size:
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
        self.assertEqual(process.returncode, 6, stderr)
        self.assertIn("finished work is on disk: run the same command with --resume", stderr)
        result = program.run("admit", program.MODELS / "probe-fragile", "--protocol", self.protocol, "--arms", ARMS, "--out", out)
        self.assertEqual(result.returncode, 2)
        self.assertIn("resume", result.stderr)
        subprocess.run(self.command(out, True), check=True, capture_output=True)

    def test_a_finished_run_resumes_to_itself(self):
        out = self.folder / "finished"
        subprocess.run(self.command(out, False), check=True, capture_output=True)
        before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for arm, facts in json.loads((out / "record.json").read_text())["arms"].items():
            self.assertTrue(facts["key"]["attested"] and facts["value"]["attested"], arm)
        for name in ("certificate.json", "policy.json", "report.html"):  # killed before they were written
            (out / name).unlink()
        subprocess.run(self.command(out, True), check=True, capture_output=True)
        self.assertEqual({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}, before)
        program.run("gate", "verify", out, check=0)
        (out / "record.json").unlink()
        result = subprocess.run(self.command(out, True), capture_output=True, text=True)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("record.json is missing", result.stderr)

    def test_torn_line_is_reported(self):
        out = self.folder / "torn"
        process = self.start(out)
        while not (out / "progress.jsonl").exists() or not (out / "progress.jsonl").stat().st_size:
            time.sleep(0.02)
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with open(out / "outcomes" / "N.jsonl", "ab") as file:
            file.write(b'{"arm":"N","case_id":"retr')
        result = subprocess.run(self.command(out, True), check=True, capture_output=True, text=True)
        self.assertIn("repaired:", result.stderr)
        self.assertIn("N.jsonl", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
