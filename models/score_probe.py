#!/usr/bin/env python3
"""Scores the fragility probe: how often it calls a model robust that 8-bit keys and values degrade, and the reverse.

Usage: models/make_graded_bias.py FOLDER && models/score_probe.py FOLDER --out scores.json
       models/score_probe.py FOLDER --real qwen.gguf --loss-text wiki.test.tokens --out scores.json
       models/score_probe.py FOLDER --device cuda --certificates examples/*/certificate.json --out scores.json

Every model is probed, then admitted under a screening protocol with arms N and SD: 60 retrieval cases at 1,024 tokens,
120 word problems and 8 documents for the embedded family; 20 retrieval cases and eight documents of --loss-text for
each --real checkpoint, whose retrieval is left out where native itself misses the floor. A model that was admitted
with arm SD before is not asked again: --certificates reads probe and panels from there. The truth is read from the
admission:

degraded  a panel of SD is "degraded": the opposite bound shows a loss beyond its limit (5 % of retrieval cases, 2 % of
          answers, 1 % of prediction loss)
keeps     in every panel the share lost, or the change of the loss, is within that limit
between   neither: counted in no rate

False-safe rate: of the degraded models, the share called robust. False-alarm rate: of those that keep everything, the
share called fragile. Bounds are two-sided Clopper-Pearson 95 %, by `asymkv stats binomial`. Standard library only; the
program is $ASYMKV_PROGRAM or build/release/apps/asymkv/asymkv.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("ASYMKV_PROGRAM", str(SOURCE / "build/release/apps/asymkv/asymkv"))
FRAGILE_LAYER_NOISE = 1.0  # as `asymkv probe` judges one layer
ALPHA_DIVISOR = 4  # retrieval, preservation, aggregate, loss of the one arm


def ask(*args):
    """The JSON answer of one command."""
    command = [PROGRAM, *map(str, args), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def protocol_of(name, documents_file):
    """`name` without its long retrieval panel and its second native run; `documents_file`: also without math."""
    answer = ask("gate", "protocol", name)
    protocol = answer.get("protocol", answer)
    protocol.update({"name": f"score-{name}", "class": "screening", "divisor": ALPHA_DIVISOR, "noise_floor": False})
    panels = protocol["panels"]
    panels["retrieval"] = panels["retrieval"][:1]
    if documents_file:
        panels.pop("math")
    else:
        panels["retrieval"][0].update(count=60, depths=20)
        panels["math"].update(count=120, cases_per_unit=30)
        panels["loss"][0].update(documents=8)
    return protocol


def panels_of(verdict):
    """[(verdict, share lost or change of the loss in %, limit in %)] of one arm against native."""
    gross = [*verdict["retrieval"].values()]
    if "math" in verdict["preservation"]:
        gross.append(verdict["preservation"]["math"])
    found = [(panel["verdict"], panel["gross_loss_pct"], panel["limit_pct"]) for panel in gross]
    return found + [(p["verdict"], p["ratio_minus_1_pct"], p["limit_pct"]) for p in verdict["loss"].values()]


def truth_of(panels):
    informative = [panel for panel in panels if panel[0] != "uninformative"]
    if any(verdict == "degraded" for verdict, _, _ in informative):
        return "degraded"
    return "keeps" if all(change <= limit for _, change, limit in informative) else "between"


def score(model, protocol, files, device):
    probe = ask("probe", model, "--device", device)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "protocol.json"
        path.write_text(json.dumps(protocol))
        answer = ask("admit", model, "--protocol", path, "--arms", "N,SD", "--out", pathlib.Path(scratch) / "run",
                     "--device", device, *files)
    return row_of(model.stem if model.is_file() else model.name, probe, answer["arms"]["SD"]["vs"]["N"])


def row_of(name, probe, against_native):
    change = lambda group: next(iter(against_native[group].values()), {})
    math = against_native["preservation"].get("math", {})
    return {"model": name, "probe": probe["verdict"], "mean_logit_noise": probe["mean_logit_noise"],
            "truth": truth_of(panels_of(against_native)), "loss_change_pct": change("loss").get("ratio_minus_1_pct"),
            **{f"{panel}_{field}": counts.get(field) for panel, counts in (("retrieval", change("retrieval")), ("math", math))
               for field in ("n", "control_correct", "lost", "gained")}}


def of_certificate(path):
    certificate = json.loads(path.read_text())
    probe = certificate["probe"]
    # Certificates from before this rule are read by it.
    if max(layer["logit_noise"] for layer in probe["layers"]) >= FRAGILE_LAYER_NOISE:
        probe["verdict"] = "fragile"
    return row_of(certificate["identity"]["model"], probe, certificate["arms"]["SD"]["vs"]["N"])


def scored(jobs, arguments):
    """The rows, each as soon as it is known."""
    for model, protocol, files in jobs:
        yield score(model, protocol, files, arguments.device)
    for path in arguments.certificates:
        yield of_certificate(path)


def rate(rows, truth, verdict):
    """How many rows of this truth have this verdict, and the bounds of that share in %."""
    of_truth = [row for row in rows if row["truth"] == truth]
    if not of_truth:
        return {"k": 0, "n": 0, "rate_pct": None, "lower_pct": None, "upper_pct": None}
    hits = sum(row["probe"] == verdict for row in of_truth)
    bounds = ask("stats", "binomial", "--k", hits, "--n", len(of_truth), "--level", 0.95)
    return {"k": hits, "n": len(of_truth), "rate_pct": 100 * hits / len(of_truth), "lower_pct": 100 * bounds["lower"],
            "upper_pct": 100 * bounds["upper"]}


def print_row(row):
    def counts(panel):
        if row[f"{panel}_n"] is None:
            return "-"
        return f"-{row[f'{panel}_lost']} +{row[f'{panel}_gained']} of {row[f'{panel}_n']}"

    loss = "-" if row["loss_change_pct"] is None else f"{row['loss_change_pct']:+.2f} %"
    print(f"| {row['model']} | {row['mean_logit_noise']:.3f} | {row['probe']} | {counts('retrieval')} | {counts('math')} | {loss} | "
          f"{row['truth']} |", flush=True)


def print_rate(name, found):
    if found["n"]:
        print(f"{name}: {found['k']} of {found['n']}, {found['rate_pct']:.1f} % (95 %: {found['lower_pct']:.1f} to "
              f"{found['upper_pct']:.1f})")
    else:
        print(f"{name}: no model to count")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a folder of models, as make_graded_bias.py writes it")
    parser.add_argument("--real", type=pathlib.Path, nargs="*", default=[], help="other checkpoints; need --loss-text")
    parser.add_argument("--loss-text", type=pathlib.Path, help="text of their loss panel")
    parser.add_argument("--certificates", type=pathlib.Path, nargs="*", default=[], help="of finished admissions")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where models are run")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.real and not arguments.loss_text:
        parser.error("--real needs --loss-text")
    jobs = [(model, protocol_of("builtin", False), []) for model in sorted(arguments.folder.iterdir())]
    jobs += [(model, protocol_of("quick", True), ["--loss-text", arguments.loss_text]) for model in arguments.real]
    print("| model | noise | probe | retrieval | math | loss | truth |\n|---|---|---|---|---|---|---|")
    rows = []
    for row in scored(jobs, arguments):
        print_row(row)
        rows.append(row)
    rates = {"false_safe": rate(rows, "degraded", "robust"), "false_alarm": rate(rows, "keeps", "fragile"),
             "undecided_of_degraded": rate(rows, "degraded", "undecided"), "undecided_of_keeps": rate(rows, "keeps", "undecided")}
    print()
    for name, found in rates.items():
        print_rate(name.replace("_", " "), found)
    arguments.out.write_text(json.dumps({"rates": rates, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
