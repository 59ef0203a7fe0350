"""The embedded pair under a protocol of fewer cases: the robust model reaches K8/V8, the fragile one K16/V8, with every
arm's verdict as its storage deserves."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import program

HARMLESS = {"robust": {"AF", "AD", "RF", "RD", "SF", "SD", "PF", "PD", "ID", "JD"}, "fragile": {"AF", "AD", "PF", "PD", "JD"}}
HARMFUL = {"robust": set(), "fragile": {"RF", "RD", "SF", "SD", "ID"}}
TIER = {"robust": "K8/V8", "fragile": "K16/V8"}
# Certified formats that save more than the chosen one.
OPTIONS = {"robust": set(), "fragile": {"PF", "PD", "JD"}}


class AdmitPair(unittest.TestCase):
    def admit(self, twin):
        with tempfile.TemporaryDirectory() as folder:
            protocol = program.small_protocol("pair", 36, 120, 6, certifying=True, retrieval_limit=0.25, preservation_limit=0.06)
            path = program.write_protocol(folder, protocol)
            run = pathlib.Path(folder) / "run"
            result = program.run("admit", program.MODELS / f"probe-{twin}", "--protocol", path, "--out", run, "--json", check=0)
            answer = json.loads(result.stdout)
            for name in ("protocol.json", "cases.jsonl", "certificate.json", "policy.json", "record.json", "report.html"):
                self.assertTrue((run / name).stat().st_size > 0, name)
            verify = json.loads(program.run("gate", "verify", run, "--json", check=0).stdout)
            self.assertTrue(verify["ok"], verify)
            self.check_chat(twin, run, answer["policy"])
            return answer, json.loads((run / "record.json").read_text())

    def check_chat(self, twin, run, policy):
        """A conversation under the run's policy stores what it chose, for as many tokens as the run was about."""
        template = run.parent / "template.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
        saved = run.parent / "saved.json"
        chat = [program.PROGRAM, "chat", program.MODELS / f"probe-{twin}", "--chat-template", template, "--max-tokens", "4",
                "--policy", run / "policy.json"]
        subprocess.run(chat, input=f"The old farmer\n/save {saved}\n", text=True, check=True, capture_output=True)
        record = json.loads(saved.read_text())["record"]
        for side in ("key", "value"):
            self.assertEqual(record[side]["allocated"]["format"].split("-")[0], policy[side])
        longer = str(policy["max_context_tokens"] + 1)
        refused = subprocess.run([*chat, "--context", longer], input="", text=True, capture_output=True)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("max_context_tokens", refused.stderr)

    def check(self, twin):
        answer, record = self.admit(twin)
        self.assertEqual(answer["policy"]["tier"], TIER[twin])
        self.assertTrue(answer["policy"]["certified"])
        self.assertEqual(answer["probe"]["verdict"], twin)
        for arm in HARMLESS[twin]:
            self.assertEqual(answer["arms"][arm]["vs"]["N"]["preservation"]["verdict"], "pass", arm)
        for arm in HARMFUL[twin]:
            self.assertEqual(answer["arms"][arm]["vs"]["N"]["preservation"]["verdict"], "degraded", arm)
        # Two native runs in another order agree case by case.
        noise = answer["noise_floor"]["preservation"]["math"]
        self.assertEqual((noise["lost"], noise["gained"]), (0, 0))
        for arm, facts in record["arms"].items():
            for side in ("key", "value"):
                self.assertTrue(facts[side]["attested"], (arm, side, facts[side]))
        options = {option["arm"] for option in answer["policy"]["capacity_options"]}
        self.assertEqual(options, OPTIONS[twin])

    def test_robust(self):
        self.check("robust")

    def test_fragile(self):
        self.check("fragile")

    def test_controls(self):
        """NR is served by the reference kernels and answers as N does; QD reads what SD stores with other queries."""
        with tempfile.TemporaryDirectory() as folder:
            path = program.write_protocol(folder, program.small_protocol("controls", 4, 6, 2, certifying=False))
            run = pathlib.Path(folder) / "run"
            result = program.run("admit", program.MODELS / "probe-robust", "--protocol", path, "--arms", "N,QD,SD,NR", "--out", run,
                                 "--measure-cost", "--json", check=0)
            self.assertTrue(json.loads(program.run("gate", "verify", run, "--json", check=0).stdout)["ok"])
            read = lambda name: json.loads((run / name).read_text())
            arms, record = read("certificate.json")["arms"], read("record.json")["arms"]
            outcomes = {arm: [json.loads(line) for line in (run / f"outcomes/{arm}.jsonl").read_text().splitlines()] for arm in record}
        self.assertEqual({arm: facts["format"]["query"] for arm, facts in arms.items()},
                         {"N": "native", "NR": "native", "SD": "native", "QD": "e4m3"})
        self.assertEqual({k: v for k, v in arms["QD"]["format"].items() if k != "query"},
                         {k: v for k, v in arms["SD"]["format"].items() if k != "query"})
        families = {arm: {launch["family"] for launch in facts["key"]["launched"]} for arm, facts in record.items()}
        self.assertEqual(families["NR"], {"ref"})
        for arm in ("N", "N2", "SD", "QD"):
            self.assertNotIn("ref", families[arm])
        rounded = {arm: {launch["instance"].endswith(" queries=e4m3") for launch in facts["key"]["launched"]
                         if launch["instance"].startswith("decode:")} for arm, facts in record.items()}
        self.assertEqual(rounded, {"N": {False}, "N2": {False}, "NR": {False}, "SD": {False}, "QD": {True}})
        for native, control in zip(outcomes["N"], outcomes["NR"]):
            self.assertEqual(native["correct"], control["correct"], native["case_id"])
            if native["scored_tokens"]:
                self.assertAlmostEqual(native["nll"], control["nll"], delta=0.002)
        losses = lambda arm: [line["nll"] for line in outcomes[arm] if line["scored_tokens"]]
        self.assertNotEqual(losses("N"), losses("NR"))
        self.assertNotEqual(losses("SD"), losses("QD"))
        cost = json.loads(result.stdout)["cost"]
        self.assertEqual(list(cost), ["loss-1024", "math", "retrieval-1024"])
        for panel, figures in cost.items():
            self.assertEqual(figures["arms"], 5, panel)
            self.assertIn(figures["native_batch"], (1, 2, 4))
            self.assertAlmostEqual(figures["ratio"], figures["seconds_per_case"] / figures["native_seconds_per_case"])
            self.assertGreater(figures["ratio"], 1, panel)


if __name__ == "__main__":
    unittest.main(verbosity=2)
