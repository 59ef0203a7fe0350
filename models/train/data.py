"""Training batches and evaluation sets as token arrays. Tokens: 0 to 255 bytes, 256 BOS, 257 EOS, 258 PAD; the
vocabulary is padded to 264. Everything follows from the seeds."""

import dataclasses
import random

import numpy as np

import documents
import word_problems

BOS, EOS, PAD, VOCAB = 256, 257, 258, 264
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
PROBLEM_LENGTH = 256

# Classes of target tokens, and the weight of each class's mean cross-entropy in the loss.
TEXT, FIRST_DIGIT, SOLUTION, PROBLEM, PADDING, OTHER_DIGITS = range(6)
CLASS_WEIGHTS = [0.5, 0.6, 0.6, 0.1, 0.0, 0.6]


@dataclasses.dataclass
class Batch:
    """Rows of `length` long documents and of word problems, flattened one after the other: int64 [tokens]."""

    length: int
    inputs: np.ndarray
    targets: np.ndarray
    classes: np.ndarray
    shapes: list  # (rows, tokens a row) of the two parts


def as_tokens(text):
    return np.frombuffer(text, np.uint8)


def document_row(r, pool, length):
    """length + 1 tokens (BOS, text, EOS) and their classes."""
    row, classes = np.empty(length + 1, np.int64), np.full(length + 1, TEXT, np.int64)
    if r.random() < 0.12:
        text, answers = b"".join(pool.filler(length - 1)), []
    else:
        text, answers = documents.retrieval_document(r, pool, length)
    row[0], row[1:length], row[length] = BOS, as_tokens(text), EOS
    for offset in answers:
        classes[1 + offset] = FIRST_DIGIT
        classes[2 + offset:6 + offset] = OTHER_DIGITS
    return row, classes


def problem_row(r, length):
    row, classes = np.full(length + 1, PAD, np.int64), np.full(length + 1, PADDING, np.int64)
    prompt, solution = b"", b" " * length
    while len(prompt) + len(solution) + 2 > length + 1:
        prompt, solution = (text.encode() for text in word_problems.word_problem(r)[:2])
    begin, end = 1 + len(prompt), 1 + len(prompt) + len(solution)
    row[0], row[1:begin], row[begin:end], row[end] = BOS, as_tokens(prompt), as_tokens(solution), EOS
    classes[:begin], classes[begin:end + 1] = PROBLEM, SOLUTION
    return row, classes


def pick_length(r, level):
    """Document length of one batch: mostly the curriculum's current one; at the last level a mixture of all."""
    if level == len(LENGTHS) - 1:
        return r.choices(LENGTHS, [5, 5, 16, 12, 12, 50])[0]
    if level == 0 or r.random() < 0.6:
        return LENGTHS[level]
    return LENGTHS[int(r.random() * level)]


def make_batch(r, pool, level, document_tokens, problem_tokens):
    length = pick_length(r, level)
    counts = (max(1, document_tokens // length), max(1, problem_tokens // PROBLEM_LENGTH))
    parts = [[document_row(r, pool, length) for _ in range(counts[0])],
             [problem_row(r, PROBLEM_LENGTH) for _ in range(counts[1])]]
    rows = [np.stack([row for row, _ in part]) for part in parts]
    classes = [np.stack([cls for _, cls in part]) for part in parts]
    flat = lambda arrays, window: np.concatenate([array[:, window].reshape(-1) for array in arrays])
    return Batch(length, flat(rows, slice(None, -1)), flat(rows, slice(1, None)), flat(classes, slice(1, None)),
                 [(counts[0], length), (counts[1], PROBLEM_LENGTH)])


class BatchMaker:
    """Batch number `step` is a function of (seed, step, level) alone, whichever process makes it. Filler comes from a
    pool of sentences that is replaced every 256 steps."""

    POOL_STEPS = 256

    def __init__(self, seed, document_tokens, problem_tokens, pool_size):
        self.seed = seed
        self.document_tokens = document_tokens
        self.problem_tokens = problem_tokens
        self.pool_size = pool_size
        self.pool_number = None

    def pool_of(self, step, r):
        number = step // self.POOL_STEPS
        if number != self.pool_number:
            self.sentences = documents.SentencePool(random.Random(f"{self.seed} pool {number}"), self.pool_size).sentences
            self.pool_number = number
        pool = documents.SentencePool(r, 0)
        pool.sentences = self.sentences
        return pool

    def batch(self, step, level):
        r = random.Random(f"{self.seed} step {step}")
        return make_batch(r, self.pool_of(step, r), level, self.document_tokens, self.problem_tokens)


# ------------------------------------------------------------------------------------------------------- evaluation


@dataclasses.dataclass
class RetrievalSet:
    tokens: np.ndarray  # [cases, length], the last five the answer's digits
    held_out: np.ndarray  # [cases] bool


def retrieval_set(seed, count, length, num_distractors):
    r = random.Random(seed)
    pool = documents.SentencePool(r, 4000)
    tokens, held = np.empty((count, length), np.int64), np.zeros(count, bool)
    for i in range(count):
        held[i] = r.random() < 0.5
        text = b"".join(documents.retrieval_prompt(r, pool, length, num_distractors, bool(held[i])))
        tokens[i, 0], tokens[i, 1:] = BOS, as_tokens(text)
        pool.refresh(100)
    return RetrievalSet(tokens, held)


def problem_set(seed, count):
    """[(prompt, solution, answer)] that fit into one training row."""
    r, problems = random.Random(seed), []
    while len(problems) < count:
        problem = word_problems.word_problem(r)
        if len(problem[0]) + len(problem[1]) <= PROBLEM_LENGTH - 2:
            problems.append(problem)
    return problems


def text_set(seed, count, length):
    """[count, length + 1] tokens of plain filler."""
    r = random.Random(seed)
    pool = documents.SentencePool(r, 4000)
    tokens = np.full((count, length + 1), BOS, np.int64)
    for i in range(count):
        tokens[i, 1:] = as_tokens(b"".join(pool.filler(length)))
        pool.refresh(400)
    return tokens
