"""Exact match of native, A, R, S, P and J on one embedded model, every attention read through stored keys and values.

    python models/train/evaluate.py models/probe-fragile            one GPU: 400 / 100 / 200 cases, about a minute
    python models/train/evaluate.py models/probe-fragile --cases 8 --lengths 1024 --problems 0       on a CPU

Retrieval: all five digits are the best token (teacher forcing: the same as greedy decoding). Word problems: the number
after #### of the greedy continuation. Scales are dynamic. The stored bytes are those of tests/parity/quantiser.py.
"""

import argparse
import pathlib
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F

import data
import model as architecture

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import quantiser

ARMS = {"native": "N", "A": "AD", "R": "RD", "S": "SD", "P": "PD", "J": "JD"}
NATIVE = "bf16"
TOKENS_PER_FORWARD = 65536


class Evaluator:
    def __init__(self, folder, device):
        self.config, params = architecture.load(folder)
        self.params = {name: value.to(device) for name, value in params.items()}
        self.device = device
        self.frequencies = quantiser.rope_frequencies(self.config["rope_theta"], self.config["head_dim"])
        cos, sin = architecture.rope_tables(self.config, self.config["max_position_embeddings"], device)
        self.cos, self.sin = cos, sin
        self.removed = {}
        for i in range(self.config["num_hidden_layers"]):
            bias = params[f"model.layers.{i}.self_attn.k_proj.bias"].view(-1, self.config["head_dim"])
            self.removed[i] = quantiser.split_key_bias(bias, self.frequencies)[0].to(device)

    def linear(self, x, name):
        y = F.linear(x, self.params[name + ".weight"])
        return y + self.params[name + ".bias"] if name + ".bias" in self.params else y

    def rotate(self, x):
        length = x.shape[-3]
        return architecture.rotate(x, self.cos[:length, None], self.sin[:length, None])

    def stored(self, dtype, rows):
        """What a reader gets back of rows rounded to the native type and then stored."""
        rows = quantiser.round_to(NATIVE, rows)
        return quantiser.store_side(dtype, rows).read()

    def read_kv(self, arm, i, x, prefix):
        dim = self.config["head_dim"]
        k = self.linear(x, prefix + "k_proj").unflatten(-1, (-1, dim))
        v = self.linear(x, prefix + "v_proj").unflatten(-1, (-1, dim))
        if not arm.prebias:
            return self.stored(arm.key, self.rotate(k)), self.stored(arm.value, v)
        removed = self.removed[i].expand_as(k)
        return self.stored(arm.key, self.rotate(k - removed)) + self.rotate(removed), self.stored(arm.value, v)

    @torch.no_grad()
    def hidden(self, tokens, arm):
        """tokens [rows, length] -> hidden states [rows, length, hidden] before the last norm."""
        x = F.embedding(tokens, self.params["model.embed_tokens.weight"])
        for i in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            h = architecture.rms_norm(x, self.params[prefix + "input_layernorm.weight"])
            q = self.rotate(self.linear(h, prefix + "self_attn.q_proj").unflatten(-1, (-1, self.config["head_dim"])))
            k, v = self.read_kv(arm, i, h, prefix + "self_attn.")
            heads_first = lambda t: t.transpose(1, 2).repeat_interleave(q.shape[2] // t.shape[2], 1)
            out = F.scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), is_causal=True)
            x = x + self.linear(out.transpose(1, 2).flatten(2), prefix + "self_attn.o_proj")
            h = architecture.rms_norm(x, self.params[prefix + "post_attention_layernorm.weight"])
            gate = F.silu(self.linear(h, prefix + "mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(h, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")
        return x

    def best_tokens(self, hidden):
        hidden = architecture.rms_norm(hidden, self.params["model.norm.weight"])
        return F.linear(hidden, self.params["model.embed_tokens.weight"]).argmax(-1)

    def retrieval(self, arm, cases):
        tokens, right = torch.from_numpy(cases.tokens), []
        for rows in tokens.split(max(1, TOKENS_PER_FORWARD // tokens.shape[1])):
            rows = rows.to(self.device)
            best = self.best_tokens(self.hidden(rows[:, :-1], arm)[:, -5:])
            right += (best == rows[:, -5:]).all(-1).tolist()
        return np.mean(right)

    @torch.no_grad()
    def word_problems(self, arm, problems, most=100):
        """Share of right answers. All prompts grow together; what stands behind a row's end is not seen by it."""
        prompts = [[data.BOS] + list(prompt.encode()) for prompt, _, _ in problems]
        ends = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        tokens = torch.full((len(prompts), int(ends.max()) + most), data.PAD, device=self.device)
        for row, prompt in zip(tokens, prompts):
            row[:len(prompt)] = torch.tensor(prompt)
        rows, begins = torch.arange(len(prompts), device=self.device), ends.clone()
        for _ in range(most):
            hidden = self.hidden(tokens[:, :int(ends.max())], arm)
            tokens[rows, ends] = self.best_tokens(hidden[rows, ends - 1])
            ends += 1
        right = []
        for row, begin, (_, _, answer) in zip(tokens.tolist(), begins.tolist(), problems):
            text = row[begin:begin + most]
            text = text[:text.index(data.EOS)] if data.EOS in text else text
            found = re.search(r"#### (-?\d+)", bytes(token for token in text if token < 256).decode("latin1"))
            right.append(found is not None and int(found.group(1)) == answer)
        return np.mean(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cases", type=int, nargs="+", default=[400, 100], help="retrieval cases at each length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=90001)
    arguments = parser.parse_args()
    evaluator = Evaluator(arguments.folder, "cuda" if torch.cuda.is_available() else "cpu")
    sets = {length: data.retrieval_set(arguments.seed + length, count, length, 4 if length <= 1024 else 8)
            for length, count in zip(arguments.lengths, arguments.cases)}
    problems = data.problem_set(arguments.seed, arguments.problems)
    print("arm     " + "".join(f"{length:>9}" for length in sets) + "     math")
    for name, short in ARMS.items():
        arm = quantiser.parse_arm(short, NATIVE)
        scores = [evaluator.retrieval(arm, cases) for cases in sets.values()]
        if problems:
            scores.append(evaluator.word_problems(arm, problems))
        print(f"{name:8}" + "".join(f"{100 * score:8.1f}%" for score in scores), flush=True)


if __name__ == "__main__":
    main()
