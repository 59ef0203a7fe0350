#!/usr/bin/env python3
"""Does a whole run on one Hopper GPU in stages of under eight minutes each, and writes a receipt of each stage.

    scripts/gpu_run.py OUT                                   # all that needs no model: build to reference
    scripts/gpu_run.py OUT parity --model FILE.gguf          # greedy tokens of a real model, on the GPU and on the CPU
    scripts/gpu_run.py OUT panel native reference_panel --model FILE.gguf --math-questions test.jsonl \\
      --loss-text wiki.test.tokens --loss-text wiki.valid.tokens
                    # the full panels of a real model, native alone beside them, and three arms on the reference path

Each stage leaves OUT/STAGE.json: the machine, and one row a command with its exit status, wall time and what it found.
A stage whose receipt says "ok" is not done again, so a call that was stopped is simply repeated. `panel`, `native` and
`reference_panel` stop by themselves after --limit seconds (exit status 3) and go on in the next call with the cases that
are left. Needs Python's standard library, nvcc, cmake and the packages of scripts/install_deps.sh.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARMS = "N,AF,AD,RF,RD,SF,SD,PF,PD,ID,JD"
REFERENCE_ARMS = "N,AD,JD"
EMBEDDED = ("probe-fragile", "probe-robust")
QWEN3_8B = "src/asymkv/planner/testdata/configs/qwen3-8b.json"
# Geometry, formats, workloads, bytes of pages: of the engine's stage.
ENGINE_RUNS = (("qwen3-8b", "native,k16v8,k8v8", "8192/128/32,1024/1024/64", ""),
               ("qwen3-8b", "native,k16v8,k8v8", "1024/1024/64", "8GiB"),
               ("qwen2.5-7b", "native,k16v8,k8v8-prebias,ki8v8-prebias", "8192/128/32", ""),
               ("qwen3-8b-awq", "native,k16v8", "8192/128/32", ""))
TESTS = {"decode_gpu_test": "kernels/cuda", "write_gpu_test": "kernels/cuda", "cuda_attention_gpu_test": "kernels/cuda",
         "prefill_gpu_test": "kernels/cuda", "cuda_engine_gpu_test": "engine", "capacity_test": "planner"}
SANITIZED = {"write_gpu_test": 1, "cuda_attention_gpu_test": 1, "decode_gpu_test": 8}  # and in how many parts
UNFINISHED = 3


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def machine():
    names = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    release = re.search(r"V([0-9.]+)", output_of("nvcc", "--version"))
    device, driver, memory = (names.splitlines() or [", , "])[0].split(", ")
    return {"device": device, "driver": driver, "memory": memory, "toolkit": release.group(1) if release else "",
            "compiler": output_of("c++", "--version").split("\n")[0], "cpus": os.cpu_count(),
            "commit": output_of("git", "-C", str(ROOT), "rev-parse", "HEAD"),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


class Stages:
    """What each stage runs. A stage returns its rows; a row with "ok": False fails it."""

    def __init__(self, args):
        self.args = args
        self.out = args.out
        self.build = args.build
        self.program = self.build / "apps/asymkv/asymkv"

    def run(self, command, limit, name, **variables):
        """One command, its output in OUT/logs/NAME.log."""
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        with log.open("w") as file:
            env = dict(os.environ, ASYMKV_SOURCE_DIR=str(ROOT), **variables)
            process = subprocess.Popen([str(word) for word in command], stdout=file, stderr=subprocess.STDOUT, env=env,
                                       cwd=ROOT)
            try:
                code = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait()
                code = None
        text = " ".join(str(word).replace(f"{ROOT}/", "").replace(f"{self.out}/", "") for word in command)
        print(f"  {'stopped' if code is None else f'rc {code}'} {time.monotonic() - begin:.1f} s: {text}", flush=True)
        return {"name": name, "command": text, "rc": code, "ok": code == 0,
                "wall_s": round(time.monotonic() - begin, 1)}, log.read_text(errors="replace")

    def answer(self, command, limit, name):
        """A command of the program that answers with JSON: its row with the answer."""
        file = self.out / "logs" / f"{name}.json"
        words = " ".join(f"'{word}'" for word in (self.program, *command, "--json"))
        row, _ = self.run(["bash", "-c", f"exec {words} > '{file}'"], limit, name)
        row["command"] = "asymkv " + " ".join(str(word).replace(f"{ROOT}/", "") for word in command)
        row["answer"] = json.loads(file.read_text()) if row["ok"] else None
        return row

    def test_binary(self, name):
        return self.build / "src/asymkv" / TESTS[name] / name

    def do_build(self):
        targets = ["asymkv", *TESTS]
        return [self.run(["scripts/build.sh", "cuda", *targets], 470, "build")[0]]

    def do_tests(self):
        rows = []
        for name in TESTS:
            row, text = self.run([self.test_binary(name)], 240, name)
            counts = re.findall(r"\[  (PASSED|FAILED|SKIPPED) +\] (\d+) test", text)
            skipped = re.search(r"ASYMKV_TEST_SKIPPED_ENTIRELY: (.*)", text)
            rows.append(row | {"tests": {state.lower(): int(count) for state, count in counts},
                               "skipped": skipped.group(1) if skipped else None})
        return rows

    def do_sanitizer(self):
        """Side by side: most of their time is the processor's."""
        def sanitize(tool, name, part):
            row, text = self.run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", self.test_binary(name)],
                                 460, f"{tool}-{name}-{part}", GTEST_TOTAL_SHARDS=str(SANITIZED[name]),
                                 GTEST_SHARD_INDEX=str(part))
            summary = (re.findall(r"SUMMARY: (.*)", text) or [""])[-1]
            return row | {"summary": summary, "ok": row["ok"] and summary.startswith(("0 errors", "0 hazards"))}

        jobs = [(tool, name, part) for tool in ("racecheck", "memcheck") for name, parts in SANITIZED.items()
                for part in range(parts)]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            started = [pool.submit(sanitize, *job) for job in jobs]
            return [row.result() for row in started]

    def do_memory(self):
        verify = ("--device", "cuda", "--verify")
        pools = ("--budget", "40GiB", "--reserve", "36MiB")
        asked = [(QWEN3_8B, "--kv", "all", "--pages", "17000", *verify)]
        for kv, scale, pages in (("native", "dynamic", 18188), ("k16v8", "fixed", 24251), ("k8v8", "dynamic", 35274)):
            asked.append((QWEN3_8B, "--kv", kv, "--scale", scale, "--pages", str(pages), *pools, *verify))
        asked.append((QWEN3_8B, "--device-memory", "139GiB", "--weights", "16GiB", *verify))
        asked += [(f"models/{name}", "--kv", "all", *verify) for name in EMBEDDED]
        return [self.answer(("plan", *words), 120, f"memory-{i}") for i, words in enumerate(asked)]

    def do_kernels(self):
        words = ("bench", "kernel", "--shapes", self.args.shapes) if self.args.shapes else ("bench", "kernel")
        return [self.answer(words, 400, "kernels")]

    def do_engine(self):
        rows = []
        for i, (geometry, formats, workloads, pool) in enumerate(ENGINE_RUNS):
            words = ["bench", "engine", f"bench/geometries/{geometry}", "--random-weights", "1", "--device", "cuda",
                     "--activations", "16", "--kv", formats, "--workload", workloads]
            rows.append(self.answer(words + (["--pool", pool] if pool else []), 240, f"engine-{i}"))
        return rows

    def do_parity(self):
        row, text = self.run([self.test_binary("cuda_engine_gpu_test"), "--gtest_filter=*GreedyTokensAreTheCpus"], 400,
                             "parity", ASYMKV_PARITY_MODEL=str(self.args.model))
        found = [line for line in text.splitlines() if " prompt" in line]  # none: the test was skipped
        return [row | {"ok": row["ok"] and bool(found), "model": pathlib.Path(self.args.model).name, "found": found}]

    def admission(self, model, protocol, name, *more):
        """One whole admission, its files verified; the folder stays in OUT."""
        folder = self.out / name
        shutil.rmtree(folder, ignore_errors=True)
        row = self.answer(("admit", model, "--protocol", protocol, "--device", "cuda", "--out", folder, *more), 400,
                          f"admit-{name}")
        verify, _ = self.run([self.program, "gate", "verify", folder], 60, f"verify-{name}")
        policy = (row.pop("answer") or {}).get("policy", {})
        return row | {"ok": row["ok"] and verify["ok"], "verified": verify["ok"], "tier": policy.get("tier"),
                      "arm": policy.get("arm"), "certified": policy.get("certified"), "reason": policy.get("reason")}

    def do_admit(self):
        return [self.admission(f"models/{name}", "builtin", f"builtin-{name}", "--arms", ARMS) for name in EMBEDDED]

    def do_reference(self):
        return [self.admission(f"models/{name}", "reference7-embedded", f"reference-{name}") for name in EMBEDDED]

    def panel(self, name, arms, *more):
        """The protocol of a real model, from where the last call stopped."""
        folder = self.out / name
        command = [self.program, "admit", self.args.model, "--protocol", self.args.protocol, "--device", "cuda",
                   "--activations", "16", "--arms", arms, "--math-questions", self.args.math_questions, "--out", folder, *more]
        for text in self.args.loss_text:
            command += ["--loss-text", text]
        if (folder / "run.json").exists():
            command.append("--resume")
        row, text = self.run(command, self.args.limit, name)
        calls = self.out / "logs" / f"{name}.calls"
        with calls.open("a") as file:
            file.write(f"{row['wall_s']}\n")
        if row["rc"] is None:
            return None
        row["wall_s_of_calls"] = [float(line) for line in calls.read_text().split()]
        row["tail"] = text.splitlines()[-40:]
        verify, _ = self.run([self.program, "gate", "verify", folder], 60, f"verify-{name}")
        return [row | {"ok": row["ok"] and verify["ok"], "verified": verify["ok"]}]

    def do_panel(self):
        return self.panel("panel", self.args.arms)

    def do_native(self):
        return self.panel("native", "N")

    def do_reference_panel(self):
        """Every read from stored bytes, prefill included: about one run per arm."""
        return self.panel("reference_panel", REFERENCE_ARMS, "--path", "reference", "--prefill", "per-arm")


DEFAULT_STAGES = ("build", "tests", "sanitizer", "memory", "kernels", "engine", "admit", "reference")
PANELS = ("panel", "native", "reference_panel")
ALL_STAGES = (*DEFAULT_STAGES, "parity", *PANELS)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="folder of receipts, logs and runs")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(ALL_STAGES)}")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda", help="build folder")
    parser.add_argument("--shapes", default="", help="only these shapes of bench kernel, as its own --shapes")
    parser.add_argument("--model", help="model of parity and the panels")
    parser.add_argument("--protocol", default=ROOT / "examples/qwen2.5-coder-0.5b-h200/protocol.json",
                        help="protocol of the panels")
    parser.add_argument("--arms", default=ARMS, help=f"arms of panel ({ARMS})")
    parser.add_argument("--math-questions", help="GSM8K test questions")
    parser.add_argument("--loss-text", action="append", default=[], help="text of the loss panels, may be repeated")
    parser.add_argument("--limit", type=float, default=450, help="seconds of one call of a panel (450)")
    args = parser.parse_args()
    args.stages = args.stages or list(DEFAULT_STAGES)
    for stage in args.stages:
        if stage not in ALL_STAGES:
            parser.error(f"there is no stage {stage}; stages are {', '.join(ALL_STAGES)}")
        if stage in PANELS and not (args.model and args.math_questions and args.loss_text):
            parser.error(f"{stage} needs --model, --math-questions and --loss-text")
        if stage == "parity" and not args.model:
            parser.error("parity needs --model")
    if args.model:
        args.model = str(pathlib.Path(args.model).resolve())
    args.out = args.out.resolve()
    args.build = args.build.resolve()
    return args


def done_before(receipt):
    return receipt.exists() and json.loads(receipt.read_text())["ok"]


def main():
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    stages = Stages(args)
    status = 0
    for stage in args.stages:
        receipt = args.out / f"{stage}.json"
        if done_before(receipt):
            print(f"{stage}: done before")
            continue
        print(f"{stage}:", flush=True)
        begin = time.monotonic()
        rows = getattr(stages, f"do_{stage}")()
        if rows is None:
            print(f"{stage}: not finished; the same call goes on with it")
            return UNFINISHED
        ok = all(row["ok"] for row in rows)
        facts = {"stage": stage, "ok": ok, "wall_s": round(time.monotonic() - begin, 1), "record": machine()}
        receipt.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")
        print(f"{stage}: {'ok' if ok else 'FAILED'}, {facts['wall_s']} s")
        status = status if ok else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
