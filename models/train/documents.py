"""Seeded synthetic documents for the embedded probe models, as bytes: filler text, needles and questions.

A needle is "The secret code for amber falcon is 48213. "; its question asks for the code again. A tenth of the
adjective and noun pairs is held out: they are never needles in training.
"""

import words as w


def held_out(adjective_idx, noun_idx):
    return (7 * adjective_idx + noun_idx) % 10 == 0


def uniform_int(r, low, count):
    return low + int(r.random() * count)


def pick_person(r):
    role = r.choice(w.ROLES)
    return f"the {role}" if r.random() < 0.5 else f"the {r.choice(w.MOODS)} {role}"


def pick_object(r):
    thing = r.choice(w.OBJECTS)
    return f"the {thing}" if r.random() < 0.5 else f"the {r.choice(w.OBJECT_ADJECTIVES)} {thing}"


# One function a sentence pattern: (random generator, person, object) -> text without its full stop.
PATTERNS = [
    lambda r, who, obj: f"{who} {r.choice(w.VERBS)} {obj} {r.choice(w.PREPOSITIONS)} {r.choice(w.PLACES)}",
    lambda r, who, obj: f"{r.choice(w.TIMES)}, {who} {r.choice(w.VERBS)} {obj}",
    lambda r, who, obj: f"{who} {r.choice(w.ADVERBS)} {r.choice(w.VERBS)} {obj} {r.choice(w.REASONS)}",
    lambda r, who, obj: f"{r.choice(w.WEATHER)}, and {who} {r.choice(w.TRAVEL_VERBS)} to the {r.choice(w.PLACES)}",
    lambda r, who, obj: (f"{who} {r.choice(w.TRAVEL_VERBS)} {r.choice(w.ADVERBS)} from the {r.choice(w.PLACES)} "
                         f"to the {r.choice(w.PLACES)}"),
    lambda r, who, obj: (f"{who} {r.choice(w.SAYING_VERBS)} that {obj} was {r.choice(w.PREPOSITIONS)} "
                         f"{r.choice(w.PLACES)}"),
    lambda r, who, obj: (f"{r.choice(w.TIMES)}, {who} and the {r.choice(w.ROLES)} {r.choice(w.VERBS)} {obj} "
                         "together"),
    lambda r, who, obj: (f"there were {uniform_int(r, 10, 90)} {r.choice(w.OBJECTS)}s in the {r.choice(w.PLACES)}, "
                         f"but {who} {r.choice(w.VERBS)} only one"),
    lambda r, who, obj: (f"{who} {r.choice(w.VERBS)} {obj} and {r.choice(w.ADVERBS)} {r.choice(w.TRAVEL_VERBS)} "
                         f"to the {r.choice(w.PLACES)}"),
    lambda r, who, obj: (f"in {uniform_int(r, 1700, 300)}, {who} {r.choice(w.VERBS)} {obj} for the "
                         f"{r.choice(w.ROLES)}"),
    lambda r, who, obj: (f"{obj} in the {r.choice(w.PLACES)} was {r.choice(w.OBJECT_ADJECTIVES)}, so {who} "
                         f"{r.choice(w.VERBS)} it {r.choice(w.TIMES)}"),
    lambda r, who, obj: (f"did {who} ever see {obj} {r.choice(w.PREPOSITIONS)} {r.choice(w.PLACES)}? Nobody "
                         f"{r.choice(w.SAYING_VERBS)} so"),
]


def sentence(r):
    pattern = PATTERNS[uniform_int(r, 0, len(PATTERNS))]
    text = pattern(r, pick_person(r), pick_object(r))
    return (text[0].upper() + text[1:] + (".\n" if r.random() < 0.08 else ". ")).encode()


class SentencePool:
    """A slowly refreshed pool of filler sentences: sampling from it is much faster than the grammar."""

    def __init__(self, r, size=20000):
        self.r = r
        self.sentences = [sentence(r) for _ in range(size)]

    def refresh(self, count):
        for _ in range(count):
            self.sentences[uniform_int(self.r, 0, len(self.sentences))] = sentence(self.r)

    def filler(self, num_bytes):
        """List of sentences of exactly num_bytes in all; the head of the first one is cut."""
        out, total = [], 0
        while total < num_bytes:
            chosen = self.r.choices(self.sentences, k=max(1, (num_bytes - total) // 60))
            out += chosen
            total += sum(map(len, chosen))
        while total - len(out[-1]) >= num_bytes:
            total -= len(out.pop())
        excess = total - num_bytes
        if excess and len(out[0]) > excess:
            out[0] = out[0][excess:]
        elif excess:  # the first sentence is too short to absorb the cut
            out = [b"".join(out)[excess:]]
        return out


def pick_names(r, count, held=False):
    """Distinct "adjective noun" names. held=False: training pairs only; True: the first one is held out, the others
    are any."""
    names, seen = [], set()
    while len(names) < count:
        pair = uniform_int(r, 0, 64), uniform_int(r, 0, 64)
        is_held = held_out(*pair)
        if pair in seen or (not held and is_held) or (held and not names and not is_held):
            continue
        seen.add(pair)
        names.append(f"{w.ADJECTIVES[pair[0]]} {w.NOUNS[pair[1]]}")
    return names


def pick_code(r):
    return str(uniform_int(r, 10000, 90000))


def needle(name, code):
    return f"The secret code for {name} is {code}. ".encode()


def question(name):
    return f"\nQuestion: What is the secret code for {name}? Answer: ".encode()


def restatement(name):
    return f"Again, the secret code for {name} is ".encode()


class _Question:
    """A question about needle `idx`; `post` follows its five digits."""

    def __init__(self, r, idx, name):
        restated = r.random() < 0.15  # plain induction, a stepping stone
        self.idx = idx
        self.pre = restatement(name) if restated else question(name)
        self.post = b". " if restated else b"\n"
        self.num_bytes = len(self.pre) + 5 + len(self.post)


# document length: (fewest needles, most needles, most questions)
NEEDLE_COUNTS = {256: (2, 2, 2), 512: (2, 4, 3), 1024: (3, 8, 6), 2048: (4, 12, 8), 4096: (6, 16, 12),
                 8192: (8, 24, 16)}


def _pick_questions(r, names, length, most, room):
    """Questions that fit into `room` bytes."""
    count = min(len(names), most)
    asked = r.sample(range(len(names)), r.randint((count + 1) // 2, count) if length > 256 else len(names))
    questions = []
    for idx in asked:
        q = _Question(r, idx, names[idx])
        if room - q.num_bytes < 1:
            break
        room -= q.num_bytes
        questions.append(q)
    return questions


def retrieval_document(r, pool, length):
    """(text of length - 1 bytes, offsets of the first digit of every answer)."""
    low, high, most = NEEDLE_COUNTS[length]
    names = pick_names(r, r.randint(low, high))
    codes = [pick_code(r) for _ in names]
    needles = [needle(name, code) for name, code in zip(names, codes)]
    room = length - 1 - sum(map(len, needles))
    questions = _pick_questions(r, names, length, most, room)
    at_end = r.random() < 0.6
    filler = pool.filler(room - sum(q.num_bytes for q in questions))
    places = [r.randint(0, len(filler)) for _ in names]
    items = [(places[i], r.random(), text, None) for i, text in enumerate(needles)]
    for q in questions:
        place = len(filler) if at_end else r.randint(places[q.idx], len(filler))
        items.append((place, 2 + r.random(), q.pre + codes[q.idx].encode() + q.post, len(q.pre)))
    parts, answers, offset, used = [], [], 0, 0
    for place, _, text, answer in sorted(items, key=lambda item: item[:2]):
        parts += filler[used:place]
        offset += sum(map(len, filler[used:place]))
        used = max(used, place)
        if answer is not None:
            answers.append(offset + answer)
        parts.append(text)
        offset += len(text)
    text = b"".join(parts + filler[used:])
    assert len(text) == length - 1, (len(text), length)
    return text, answers


def retrieval_prompt(r, pool, length, num_distractors, held):
    """(context, question, code): one needle among distractors; context, question, code and BOS are `length` tokens."""
    names = pick_names(r, 1 + num_distractors, held)
    codes = [pick_code(r) for _ in names]
    needles = [needle(name, code) for name, code in zip(names, codes)]
    asked = question(names[0])
    filler = pool.filler(length - 1 - len(asked) - 5 - sum(map(len, needles)))
    parts, used = [], 0
    for place, _, idx in sorted((r.randint(0, len(filler)), r.random(), i) for i in range(len(names))):
        parts += filler[used:place] + [needles[idx]]
        used = place
    return b"".join(parts + filler[used:]), asked, codes[0].encode()
