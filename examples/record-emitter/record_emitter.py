"""Provenance of a KV cache, for engines that are not asymkv: copy this file. Standard library only.

A Recorder collects four facts for keys and four for values, each from the place that knows it, and writes the record of
schemas/record.schema.json. It never fills one fact from another: what nobody told it stays "unset" or "unknown", and a
side is attested only if every kernel that ran worked on the format that the pool holds.
"""
import datetime
import hashlib
import json
import sys

SCHEMA = "asymkv.record/2"
FORMATS = {"bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias", "e5m2", "e4m3fnuz", "e5m2fnuz", "i4", "nvfp4",
           "mxfp4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}
SCALES = {"none", "fixed", "dynamic", "block"}  # block: inside the payload, as in q8_0
SECRETS = ("key", "token", "password", "secret", "authorization", "credential")


def exact(name, known):
    if name not in known:
        raise ValueError(f'"{name}" is no exact name; known: {" ".join(sorted(known))}')
    return name


class Side:
    """Keys or values."""

    def __init__(self):
        self.requested = None  # the user's word after parsing: "auto", "fp8", "q8_0"; None: not asked
        self._resolved = None
        self._allocated = None
        self._launched = {}

    def resolve(self, format):
        """What the configuration came to, after model, checkpoint and backend had their say."""
        self._resolved = exact(format, FORMATS)

    def allocate(self, format, scale, page_bytes, scale_bytes, payload_bytes):
        """Call it where the pool is made, with the pool's own numbers: of a page of one layer, and of the whole pool."""
        self._allocated = {"format": exact(format, FORMATS), "scale": exact(scale, SCALES), "page_bytes": page_bytes,
                           "scale_bytes": scale_bytes, "payload_bytes": payload_bytes}

    def launch(self, family, instance, format, build, count=1):
        """Call it where a kernel is launched, with the type that this kernel reads or writes."""
        kernel = (family, instance, exact(format, FORMATS), build)
        self._launched[kernel] = self._launched.get(kernel, 0) + count

    def facts(self):
        names = ("family", "instance", "format", "build")
        launched = [dict(zip(names, kernel), count=count) for kernel, count in sorted(self._launched.items())]
        effective = self._allocated["format"] if self._allocated else "unknown"
        return {"requested": "unset" if self.requested is None else self.requested,
                "resolved": self._resolved or "unknown", "allocated": self._allocated or "unknown",
                "launched": launched or "unknown", "effective": effective,
                "attested": bool(self._allocated and launched) and all(k["format"] == effective for k in launched)}


class Recorder:
    def __init__(self, engine, version):
        self.key, self.value = Side(), Side()
        nothing = lambda *names: dict.fromkeys(names)
        self.rest = {
            "engine": engine, "engine_version": version, "imported_from": None,
            "model": nothing("id", "revision", "weights_sha256", "tokenizer_sha256", "config_sha256", "native_dtype"),
            "scales": {"source": "unknown", "sha256": None, "epoch": 0},
            "transform": {"kind": "none", "sha256": None},
            "layout": {"id": None, "page_size": 0},
            "worker": None, "device": nothing("kind", "name", "driver", "toolkit", "compute_capability"),
            "build": nothing("hash", "compiler"),
            "launch": {"split": None, "mode": "unknown", "batch": 0, "threads": 0},
            "protocol_sha256": None, "argv_sha256": argv_fingerprint(sys.argv), "started": utc_now(), "ended": None}

    def note(self, part, **fields):
        """note("model", id="...", native_dtype="bf16"); a part or field that the schema has not is an error."""
        for name, value in fields.items():
            self.rest[part][name]  # KeyError
            self.rest[part][name] = value

    def record(self):
        return {"schema": SCHEMA, "key": self.key.facts(), "value": self.value.facts(), **self.rest, "ended": utc_now()}

    def canonical(self):
        """Sorted keys, no blanks: equal records have equal bytes, so a hash of them is stable."""
        return json.dumps(self.record(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def utc_now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def names_a_secret(option):
    name = option.lower()
    return "tokens" not in name and "tokenizer" not in name and any(mark in name for mark in SECRETS)


def argv_fingerprint(argv):
    """SHA-256 over the arguments, each behind its length; the values of options that name a secret are left out."""
    digest, skip = hashlib.sha256(), False
    for argument in argv:
        skipped, skip = skip and not argument.startswith("-"), False
        if skipped:
            continue
        if argument.startswith("-"):
            name, equals, _ = argument.partition("=")
            if names_a_secret(name):
                argument, skip = name, not equals
        data = argument.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
