"""The examples for Slurm and Kubernetes, run here: every shard and the merge, by the lines that a cluster would run."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import program

EXAMPLES = program.SOURCE / "examples"
# Stands in for Slurm: runs the tasks at once, one after the other, and prints a job number.
SBATCH = """#!/bin/bash
set -euo pipefail
tasks=("")
while [[ $1 == -* ]]; do
  case $1 in --array=1-*) mapfile -t tasks < <(seq "${1#--array=1-}") ;; esac
  shift
done
for task in "${tasks[@]}"; do SLURM_ARRAY_TASK_ID=$task bash "$1" >&2; done
echo "7;cluster"
"""


class Schedulers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        protocol = program.small_protocol("shards", 6, 12, 2, certifying=False)
        for panel in [*protocol["panels"]["retrieval"], protocol["panels"]["math"], *protocol["panels"]["loss"]]:
            panel["cases_per_unit"] = 2
        protocol["panels"]["retrieval"][0]["length"] = 512
        protocol["panels"]["loss"][0].update(document_tokens=512, scored_tokens=256)
        protocol["bootstrap"]["resamples"] = 2000
        self.protocol = program.write_protocol(self.folder, protocol)
        (self.folder / "bin").mkdir()
        (self.folder / "bin/sbatch").write_text(SBATCH)
        (self.folder / "bin/sbatch").chmod(0o755)
        (self.folder / "bin/asymkv").symlink_to(program.PROGRAM)
        self.environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "ASYMKV_NO_PROGRESS": "1",
                            "MODEL": str(program.MODELS / "probe-robust")}

    def bash(self, *words, **environment):
        result = subprocess.run(["bash", *words], env={**self.environment, **environment}, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_slurm(self):
        out = self.folder / "slurm"
        self.bash(str(EXAMPLES / "slurm/submit.sh"), "2", OUT=str(out), PROTOCOL=str(self.protocol), ARGS="--arms N,SD")
        program.run("gate", "verify", out / "run", check=0)

    def test_kubernetes(self):
        data = self.folder / "data"
        scripts = {}
        for name in ("admit", "merge"):
            text = (EXAMPLES / "kubernetes" / f"{name}.yaml").read_text()
            scripts[name] = re.search(r"args:\n +- \|\n((?: {14}.*\n)+)", text).group(1).replace("/data/", f"{data}/")
        shard = scripts["admit"].replace("--protocol builtin", f"--protocol {self.protocol} --arms N,SD")
        self.assertNotEqual(shard, scripts["admit"])
        for index in range(2):
            self.bash("-euc", shard, JOB_COMPLETION_INDEX=str(index), SHARDS="2")
        self.bash("-euc", scripts["merge"])
        program.run("gate", "verify", data / "admission/run", check=0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
