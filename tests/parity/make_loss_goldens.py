"""Expected per-document losses of arms N, AD, SD, JD with every attention read through stored bytes.

    python tests/parity/make_loss_goldens.py probe-robust|probe-fragile
    python tests/parity/make_loss_goldens.py smollm2-135m --gguf FILE --text wiki.test.tokens

Writes tests/golden/parity/losses-NAME.json. Two arms that differ only in one side's storage can have nearly equal mean
losses, so the losses of the single tokens are kept too: their distance to another arm is a hundred times the rounding
noise. Documents of the embedded models are chosen by a rule that looks at this forward alone: rounding noise (the same
forward in FP64 and from slightly disturbed embeddings) must move no mean by more than half of 2e-4. On the robust model
the means of AD and N must differ by more than 2e-4 too.

Some forwards are chaotic: one code that rounds the other way in the first layer changes hidden states, those change more
codes, and in the end the change is as large as that of the quantisation itself. So it is with every 8-bit arm of a deep
model (SmolLM2, 30 layers) and with S on the fragile model, whose loss triples. There the limits follow the measured
noise (4 times it), and the strict check is check_dump.py, whose forward reads the engine's own stored bytes.
"""

import argparse
import json
import pathlib
import random
import sys

import torch

import quantiser
import reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEAN_LIMIT = 2e-4  # nats, on a document's mean
NOISE_LIMIT = MEAN_LIMIT / 2
NUM_DOCUMENTS = 4
NUM_DISTURBED = 3
QUIET_ARMS = {"probe-robust": ["N", "AD", "JD", "SD"], "probe-fragile": ["N", "AD", "JD"]}


def probe_documents(count, length, seed):
    sys.path.insert(0, str(ROOT / "models" / "train"))
    import data
    import documents

    r = random.Random(seed)
    pool = documents.SentencePool(r, 4000)
    return [data.document_row(r, pool, length)[0][:length].tolist() for _ in range(count)]


def noise_of(models, tokens, arm, losses):
    """Largest change of the mean, and rms change of single tokens, over forwards that differ only in rounding."""
    changes = [models["f64"].losses(tokens, arm) - losses]
    embedding = models["f32"].weights["model.embed_tokens.weight"]
    for seed in range(NUM_DISTURBED):
        generator = torch.Generator().manual_seed(seed)
        sign = torch.randint(0, 2, embedding.shape, generator=generator) * 2 - 1
        models["f32"].weights["model.embed_tokens.weight"] = embedding * (1 + 2.0 ** -22 * sign)
        models["f32"].weights.setdefault("lm_head.weight", embedding)
        changes.append(models["f32"].losses(tokens, arm) - losses)
    models["f32"].weights["model.embed_tokens.weight"] = embedding
    return (max(abs(change.mean().item()) for change in changes),
            max(change.pow(2).mean().sqrt().item() for change in changes))


def rms(x):
    return x.pow(2).mean().sqrt().item()


def document_golden(models, tokens, arms, native, quiet_arms=()):
    """None if the noise of one of quiet_arms is above NOISE_LIMIT, or hides its distance from another arm."""
    losses = {name: models["f32"].losses(tokens, quantiser.parse_arm(name, native)) for name in arms}
    golden = {"tokens": tokens, "arms": {}}
    for name in reversed(arms):
        mean_noise, token_noise = noise_of(models, tokens, quantiser.parse_arm(name, native), losses[name])
        nearest = min(rms(losses[name] - losses[other]) for other in arms if other != name)
        if name in quiet_arms and (mean_noise > NOISE_LIMIT or token_noise > nearest / 8):
            print(f"refused: {name} has noise {mean_noise:.1e}, on tokens {token_noise:.1e} of {nearest:.1e}", flush=True)
            return None
        golden["arms"][name] = {
            "mean": losses[name].mean().item(), "mean_limit": max(MEAN_LIMIT, 4 * mean_noise), "mean_noise": mean_noise,
            "token_rms_noise": token_noise, "token_rms_to_nearest_arm": nearest,
            "token_rms_limit": max(nearest / 4, 2 * token_noise),
            "tokens": [round(value, 5) for value in losses[name].tolist()]}
    print({a: f"{v['mean']:.5f} noise {v['mean_noise']:.1e}, on tokens {v['token_rms_noise']:.1e} of "
              f"{v['token_rms_to_nearest_arm']:.1e}" for a, v in golden["arms"].items()}, flush=True)
    return golden


def probe_goldens(models, arms, native, quiet_arms, needs_mean_gap):
    chosen = []
    for tokens in probe_documents(80, 512, seed=20260):
        if needs_mean_gap:
            means = [models["f32"].losses(tokens, quantiser.parse_arm(a, native)).mean().item() for a in ("N", "AD")]
            if abs(means[0] - means[1]) <= 1.5 * MEAN_LIMIT:
                continue
        golden = document_golden(models, tokens, arms, native, quiet_arms)
        if golden is not None:
            chosen.append(golden)
        if len(chosen) == NUM_DOCUMENTS:
            return chosen
    sys.exit(f"only {len(chosen)} acceptable documents")


def text_goldens(models, arms, native, gguf, text_path, num_documents=2, length=512):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ids = tokenizer(text_path.read_text(encoding="utf-8")[:40000], add_special_tokens=False)["input_ids"]
    goldens = []
    for i in range(num_documents):
        goldens.append(document_golden(models, ids[i * length:(i + 1) * length], arms, native))
    return goldens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["probe-robust", "probe-fragile", "smollm2-135m"])
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    path = arguments.gguf or ROOT / "models" / arguments.name
    models = {"f32": reference.load_model(path)}
    models["f64"] = reference.ReferenceModel(models["f32"].weights, models["f32"].geometry, torch.float64)
    native = models["f32"].geometry.native
    has_bias = "model.layers.0.self_attn.k_proj.bias" in models["f32"].weights
    arms = ["N", "AD"] + (["JD"] if has_bias else []) + ["SD"]
    if arguments.gguf:
        goldens = text_goldens(models, arms, native, arguments.gguf, arguments.text)
    else:
        goldens = probe_goldens(models, arms, native, QUIET_ARMS[arguments.name], arguments.name == "probe-robust")
    out = {"model": arguments.name, "native": native, "path": "reference",
           "made_by": "tests/parity/make_loss_goldens.py", "documents": goldens}
    target = ROOT / "tests" / "golden" / "parity" / f"losses-{arguments.name}.json"
    target.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
