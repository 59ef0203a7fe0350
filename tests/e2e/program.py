"""The program under test and protocols small enough for a test."""
import copy
import json
import os
import pathlib
import subprocess

SOURCE = pathlib.Path(os.environ.get("ASYMKV_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PROGRAM = os.environ.get("ASYMKV_PROGRAM", str(SOURCE / "build/release/apps/asymkv/asymkv"))
MODELS = SOURCE / "models"


def run(*args, check=None, env=None):
    """Runs the program quietly, with `env` added to the environment; with `check`, the exit code must be that."""
    result = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True,
                            env={**os.environ, "ASYMKV_NO_PROGRESS": "1", **(env or {})})
    if check is not None and result.returncode != check:
        raise AssertionError(f"{args}: exit code {result.returncode}, expected {check}\n{result.stdout}\n{result.stderr}")
    return result


def builtin_protocol():
    answer = json.loads(run("gate", "protocol", "builtin", "--json", check=0).stdout)
    return answer.get("protocol", answer)


def small_protocol(name, retrieval, math, documents, *, certifying, retrieval_limit=0.05, preservation_limit=0.02):
    """The built-in protocol with other counts: only the 1,024-token retrieval panel, math and loss."""
    protocol = copy.deepcopy(builtin_protocol())
    protocol["name"] = name
    protocol["class"] = "certifying" if certifying else "screening"
    protocol["margins"]["preservation_limit"] = preservation_limit
    panels = protocol["panels"]
    panels["retrieval"] = panels["retrieval"][:1]
    panels["retrieval"][0].update(count=retrieval, limit=retrieval_limit, cases_per_unit=min(retrieval, 12), depths=min(retrieval, 12))
    panels["math"].update(count=math, cases_per_unit=min(math, 24))
    panels["loss"][0].update(documents=documents, cases_per_unit=2)
    return protocol


def write_protocol(folder, protocol):
    path = pathlib.Path(folder) / f"{protocol['name']}.json"
    path.write_text(json.dumps(protocol))
    return path
