"""Greedy tokens and logits of transformers in FP32 (eager attention, CPU), the golden side of model_parity_test.

    python tests/parity/make_goldens.py tiny-qwen2 | tiny-llama | ... (any tiny folder)
    python tests/parity/make_goldens.py smollm2-135m --gguf FILE
    python tests/parity/make_goldens.py qwen2.5-coder-0.5b --gguf FILE
    python tests/parity/make_goldens.py gemma-3-270m --gguf FILE

Writes tests/golden/parity/greedy-NAME.json: 20 prompts as token ids; 64 greedy tokens each; at every step the margin
between the two best logits (another token is excused only where that is below 0.01); logits of the last prompt
position: all of a small vocabulary, else the 32 best and 64 fixed ids, and the largest absolute one. GGUF files are
dequantised by transformers and the gguf package, not by the engine.
"""

import argparse
import json
import pathlib
import random

import torch

import make_tiny_awq
import reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "parity"
NUM_NEW = 64

PROMPTS = [
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <vector>\n\n// Sorts the values in place, stable, in O(n log n).\ntemplate <typename T>\nvoid merge_sort(",
    "SELECT customers.name, SUM(orders.total) FROM customers JOIN orders ON ",
    "import numpy as np\n\nclass RingBuffer:\n    def __init__(self, capacity):\n",
    "{\"name\": \"asymmetric\", \"keys\": [1, 2, 3], \"values\": {\"a\": null, \"b\":",
    "The lighthouse keeper had not spoken to anyone for three weeks when the letter",
    "In 1969, the first people walked on the Moon. The spacecraft that carried them was called",
    "A short list of things to pack for a winter hike:\n1. Wool socks\n2.",
    "Photosynthesis is the process by which plants",
    "Dear Dr. Alvarez,\n\nThank you for your letter of 14 March. I am writing to",
    "Once upon a time, in a village by the sea, there lived a",
    "2 4 8 16 32 64",
    "17 * 23 = ",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Tom has 12 apples. He gives 5 to Ann and buys 8 more. How many apples does he have? Let us think step by step.",
    "\u4eba\u5de5\u667a\u80fd\u662f\u8ba1\u7b97\u673a\u79d1\u5b66\u7684\u4e00\u4e2a\u5206\u652f\uff0c",
    "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3001",
    "\ub300\ud55c\ubbfc\uad6d\uc758 \uc218\ub3c4\ub294",
    "Le petit prince habitait une plan\u00e8te \u00e0 peine plus grande que lui, et il avait besoin d'un",
    "\U0001f642 caf\u00e9 na\u00efve \u2014 \u201cquoted\u201d \u2026 \t tab and  two spaces\n\n\nend",
]


def byte_prompts(num_prompts):
    """The same texts as bytes, cut to 96, after BOS 256; for the tiny models."""
    return [[256] + list(text.encode()[:96]) for text in PROMPTS[:num_prompts]]


@torch.no_grad()
def greedy(model, prompts):
    """(tokens, margins, logits of the last prompt position) of every prompt. All run in one batch, padded on the left
    and masked, over an FP32 cache: a row's padding takes no part in its sums."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[prompt[0]] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    step = model(ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    first, tokens, margins = step.logits[:, -1].clone(), [], []
    for _ in range(NUM_NEW):
        best = step.logits[:, -1].topk(2)
        tokens.append(best.indices[:, 0])
        margins.append(best.values[:, 0] - best.values[:, 1])
        if len(tokens) < NUM_NEW:
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
            positions = mask.sum(-1, keepdim=True) - 1
            step = model(tokens[-1][:, None], attention_mask=mask, position_ids=positions, use_cache=True,
                         past_key_values=step.past_key_values)
    return torch.stack(tokens, 1), torch.stack(margins, 1), first


def logits_golden(logits):
    vocab = logits.numel()
    if vocab <= 256:
        ids = list(range(vocab))
    else:
        sampled = random.Random(vocab).sample(range(vocab), 64)
        ids = sorted(set(logits.topk(32).indices.tolist()) | set(sampled))
    return {"ids": ids, "values": [round(float(logits[i]), 5) for i in ids], "max_abs": float(logits.abs().max())}


def load(arguments):
    if arguments.gguf:
        model = reference.load_transformers_gguf(arguments.gguf)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.gguf.parent, gguf_file=arguments.gguf.name)
        return model, [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROMPTS]
    if arguments.name == make_tiny_awq.NAME:  # transformers reads it with packages for GPUs only
        return make_tiny_awq.load(GOLDEN / arguments.name), byte_prompts(len(PROMPTS))
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(GOLDEN / arguments.name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    return model, byte_prompts(len(PROMPTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--gguf", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, prompts = load(arguments)
    out = {"model": arguments.name, "made_by": "tests/parity/make_goldens.py", "torch": torch.__version__,
           "transformers": __import__("transformers").__version__, "prompts": []}
    for prompt, tokens, margins, first in zip(prompts, *greedy(model, prompts)):
        out["prompts"].append({"prompt": prompt, "tokens": tokens.tolist(),
                               "margins": [round(margin, 4) for margin in margins.tolist()],
                               "logits": logits_golden(first)})
    print("smallest margins", [min(entry["margins"]) for entry in out["prompts"]])
    target = GOLDEN / f"greedy-{arguments.name}.json"
    target.write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
