"""Step-boxed training of one embedded model: the number of steps, not the clock, ends it."""

import dataclasses
import math
import multiprocessing
import time

import torch

import data
import model as architecture


@dataclasses.dataclass
class Options:
    steps: int
    peak_lr: float = 1.5e-3
    warmup_steps: int = 200
    hold: float = 0.4  # share of the steps at the peak rate before the cosine decay to 2 %
    seed: int = 1
    first_level: int = 0  # curriculum level (index into data.LENGTHS) of step 0
    document_tokens: int = 65536  # a step
    problem_tokens: int = 16384
    pool_size: int = 20000
    workers: int = 12
    lookahead: int = 24  # batches asked for ahead of the step that uses them
    report_steps: int = 200


@dataclasses.dataclass
class TensorBatch:
    inputs: torch.Tensor
    targets: torch.Tensor
    classes: torch.Tensor
    shapes: list


def _make_batches(options, requests, replies):
    maker = data.BatchMaker(options.seed, options.document_tokens, options.problem_tokens, options.pool_size)
    while (request := requests.get()) is not None:
        step, level = request
        replies.put((step, maker.batch(step, level)))


class BatchFeed:
    """Batches in step order, made by worker processes ahead of time. Batch `step` depends on (seed, step, level)."""

    def __init__(self, options):
        self.options, self.level = options, options.first_level
        context = multiprocessing.get_context("fork")
        self.requests, self.replies = context.Queue(), context.Queue()
        self.workers = [context.Process(target=_make_batches, args=(options, self.requests, self.replies), daemon=True)
                        for _ in range(options.workers)]
        for worker in self.workers:
            worker.start()
        self.asked, self.waiting = 0, {}

    def get(self, step):
        while self.asked < min(step + self.options.lookahead, self.options.steps):
            self.requests.put((self.asked, self.level))
            self.asked += 1
        while step not in self.waiting:
            number, batch = self.replies.get()
            self.waiting[number] = batch
        return self.waiting.pop(step)

    def close(self):
        for worker in self.workers:
            worker.terminate()


class Curriculum:
    """Raises the document length once the first answer digit is right often enough. Statistics arrive in blocks of
    BLOCK steps, so that reading them does not stall the device."""

    BLOCK, MIN_STEPS = 20, 120

    def __init__(self, options):
        self.options, self.level, self.level_step = options, options.first_level, 0
        self.averages, self.pending = {}, []

    def add(self, step, length, statistics):
        """statistics: [2, classes] tensor of mean cross-entropy and accuracy by class. Returns the level."""
        self.level_step += 1
        self.pending.append((length, statistics))
        if len(self.pending) == self.BLOCK:
            values = torch.stack([entry for _, entry in self.pending]).cpu()
            if not torch.isfinite(values).all():
                raise RuntimeError(f"non-finite loss near step {step}")
            for (row_length, _), entry in zip(self.pending, values):
                old = self.averages.get(row_length)
                self.averages[row_length] = entry if old is None else 0.9 * old + 0.1 * entry
            self.pending = []
            self._maybe_raise(step)
        return self.level

    def _maybe_raise(self, step):
        length = data.LENGTHS[self.level]
        if self.level + 1 == len(data.LENGTHS) or self.level_step < self.MIN_STEPS or length not in self.averages:
            return
        early = step / self.options.steps < 0.15 + 0.1 * self.level
        if self.averages[length][1, data.FIRST_DIGIT] > (0.9 if early else 0.75):
            self.level, self.level_step = self.level + 1, 0
            print(f"step {step}: documents of {data.LENGTHS[self.level]} tokens", flush=True)

    def describe(self):
        return "; ".join(f"{length}: text {entry[0, data.TEXT]:.3f}, digits {entry[1, data.FIRST_DIGIT]:.3f} "
                         f"{entry[1, data.OTHER_DIGITS]:.3f}, solution {entry[1, data.SOLUTION]:.4f}"
                         for length, entry in sorted(self.averages.items()))


def learning_rate(options, step):
    share = step / options.steps
    rate = options.peak_lr * min(1.0, (step + 1) / options.warmup_steps)
    if share > options.hold:
        rate *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (share - options.hold) / (1 - options.hold)))
    return rate


class RopeCache:
    """cos and sin of the flattened tokens of one batch shape."""

    def __init__(self, config, device):
        self.config, self.device, self.tables = config, device, {}

    def get(self, shapes):
        key = tuple(shapes)
        if key not in self.tables:
            parts = [architecture.rope_tables(self.config, length, self.device) for _, length in shapes]
            self.tables[key] = tuple(torch.cat([part[i].repeat(rows, 1) for part, (rows, _) in zip(parts, shapes)])[:, None]
                                     for i in (0, 1))
        return self.tables[key]


def loss_and_statistics(model, batch, cos, sin):
    cross_entropy, correct = model.losses(batch, cos, sin)
    one_hot = torch.nn.functional.one_hot(batch.classes, len(data.CLASS_WEIGHTS)).float()
    counts = one_hot.sum(0).clamp(min=1)
    weights = torch.tensor(data.CLASS_WEIGHTS, device=cross_entropy.device) / counts
    statistics = torch.stack([cross_entropy.detach(), correct.float()]) @ one_hot / counts
    return (cross_entropy * weights[batch.classes]).sum(), statistics


def make_optimizer(params, options, on_gpu):
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.peak_lr, betas=(0.9, 0.95), eps=1e-9, fused=on_gpu)


def train(config, params, options, frozen=()):
    """Trains a copy of params (FP32) and returns it on the CPU. `frozen`: names that keep their values."""
    torch.manual_seed(options.seed)
    feed = BatchFeed(options)  # forks before the device is touched
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    params = {name: value.detach().clone().to(device).requires_grad_(name not in frozen)
              for name, value in params.items()}
    trained = [value for value in params.values() if value.requires_grad]
    model = architecture.Model(config, params, torch.bfloat16 if on_gpu else torch.float32, compile_pieces=on_gpu)
    optimizer, curriculum, rope = make_optimizer(trained, options, on_gpu), Curriculum(options), RopeCache(config, device)
    begin = time.time()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step)
        batch = feed.get(step)
        tensors = [torch.from_numpy(array).to(device, non_blocking=True)
                   for array in (batch.inputs, batch.targets, batch.classes)]
        loss, statistics = loss_and_statistics(model, TensorBatch(*tensors, batch.shapes), *rope.get(batch.shapes))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        feed.level = curriculum.add(step, batch.length, statistics)
        if (step + 1) % options.report_steps == 0:
            print(f"step {step + 1} of {options.steps}, {time.time() - begin:.0f} s: {curriculum.describe()}", flush=True)
    feed.close()
    return {name: value.detach().cpu() for name, value in params.items()}
