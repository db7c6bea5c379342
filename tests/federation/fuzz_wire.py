"""Decode mutated payloads in a process that may use little time and memory.

    python -m tests.federation.fuzz_wire [--payloads 10000] [--seconds S] [--seed 0]

Real requests and replies of FedTiny and FedDST are changed (bits flipped, ends cut off, bytes put
in, length fields blown up), most of them with a right checksum, and decoded as by their receiver.
Prints what came of them as JSON; anything but the project's own errors ends the process.
"""

import argparse
import itertools
import json
import random
import resource
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from fedtiny import methods
from fedtiny.config import Config, from_dict
from fedtiny.errors import FedTinyError, ReplyError, WireError
from fedtiny.federation.messages import Reply, Request, bn_statistics, losses, pool_arrays
from fedtiny.federation.method import Method
from fedtiny.federation.reply_spec import expected
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.federation.server import Server
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import uniform, uniform_noise
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

MIB = 2**20
SPARE_MEMORY = 256 * MIB  # beside what the process has when it begins
CPU_SECONDS = 120
DEVICE, SAMPLES = 3, 40

ANATOMY = ParamSpec(
    prunable={"one.weight": (16, 8, 3, 3), "two.weight": (32, 16, 3, 3), "three.weight": (64, 32)},
    dense={"norm.running_mean": (16,), "norm.running_var": (16,), "head.weight": (10, 64)},
    blocks=(("one.weight", "two.weight"), ("three.weight",)),
    norms=("norm",),
    input_layer="first",
    output_layer="head.weight",
)
Decode = Callable[[bytes], object]


def bound(size: int) -> int:
    """The memory that `codec.py` states, and 64 KiB for what Python itself needs."""
    layers = 8 * ANATOMY.prunable_count + 40 * max(ANATOMY.sizes.values())
    return size + layers + 128 * size + 64 * 1024


def corpus() -> Iterator[tuple[bytes, Decode]]:
    """Real messages, each with how its receiver reads it."""
    for name in ("fedtiny", "feddst"):
        method = methods.create(_config(name))
        for round in (0, 1):
            yield from _exchange(_training(method, round), method.reducer)
    for request in _selection():
        yield from _exchange(request, "mean")


def _config(method: str) -> Config:
    pruning = {"delta_r": 2, "r_stop": 8}
    settings = {"density": 0.1, "train": {"local_epochs": 5}, "pruning": pruning}
    return from_dict({"method": method, **settings})


def _exchange(request: Request, reducer: str) -> Iterator[tuple[bytes, Decode]]:
    theta, validator = request.theta, ReplyValidator(request, reducer, _config(request.method))

    def asked(data: bytes) -> object:
        return decode_request(data, ANATOMY, theta.mask, theta)

    def answered(data: bytes) -> object:
        reply = validator.decoded(data)
        validator.check(reply, DEVICE, SAMPLES)
        return reply

    mask, version = theta.mask.version, theta.version
    for known in (NOTHING_KNOWN, Known(mask), Known(mask, version)):
        yield encode_request(request, known), asked
    yield encode_reply(_reply(request), theta.mask), answered


def _theta(seed: int, counts: Iterable[int]) -> Theta:
    draw = np.random.default_rng(seed)
    kept = {
        layer: np.sort(draw.choice(size, int(count), replace=False))
        for (layer, size), count in zip(ANATOMY.sizes.items(), counts, strict=True)
    }
    mask = Mask(ANATOMY, kept)
    return Theta(mask, np.abs(draw.standard_normal(length(mask))).astype(np.float32))


def _training(method: Method, round: int) -> Request:
    """The request that the method itself would send."""
    theta = _theta(round, uniform(ANATOMY, 0.1))
    server = Server(method.config, None, theta, round=round)
    program = method.train_locally(server) + method.score(server)
    return Request("train", method.name, round, program, theta)


def _selection() -> Iterator[Request]:
    counts = uniform_noise(ANATOMY, 0.1, 5, np.random.default_rng(0))
    pool = CandidatePool.cut(_theta(9, ANATOMY.sizes.values()), counts)
    statistics = {n: np.ones((5, *shape), np.float32) for n, shape in ANATOMY.statistics.items()}
    for verb, given in ((bn_statistics(128), {}), (losses(), statistics)):
        yield Request("select", "fedtiny", 0, (verb,), pool.theta, pool_arrays(counts, given))


def _reply(request: Request) -> Reply:
    """What an honest device might answer."""
    parts, mask, draw = expected(request), request.theta.mask, np.random.default_rng(4)
    theta = _swapped(request.theta, parts.swaps, draw) if parts.own_mask else request.theta
    gradients = {}
    for layer, count in parts.gradients.items():
        pruned = np.setdiff1d(np.arange(ANATOMY.sizes[layer]), mask.indices(layer))
        chosen = np.sort(draw.choice(pruned, count, replace=False)).astype(np.int32)
        gradients[layer] = SparseVector(ANATOMY.sizes[layer], chosen, np.ones(count, np.float32))
    arrays = {name: np.ones(shape, np.float32) for name, shape in parts.arrays.items()}
    metrics = dict.fromkeys(parts.metrics, 0.4375)
    own = theta if parts.theta else None
    asked = (request.round, request.id)
    return Reply(DEVICE, SAMPLES, own, gradients, arrays, metrics, *asked)


def _swapped(theta: Theta, swaps: Mapping[str, int], draw: np.random.Generator) -> Theta:
    """A theta in whose layers so many weights were dropped and others grown."""
    kept = {}
    for layer, size in ANATOMY.sizes.items():
        own, count = theta.mask.indices(layer), swaps.get(layer, 0)
        pruned = np.setdiff1d(np.arange(size), own)
        grown = draw.choice(pruned, count, replace=False)
        kept[layer] = np.sort(np.concatenate([draw.permutation(own)[count:], grown]))
    return theta.remasked(Mask(ANATOMY, kept))


def mutated(message: bytes, rng: random.Random) -> bytes:
    """One to three changes; mostly behind a checksum that fits."""
    data = bytearray(message[:-4])
    for _ in range(rng.randint(1, 3)):
        _change(data, rng)
    content = bytes(data)
    if rng.random() < 0.1:
        return content + message[-4:]
    return content + zlib.crc32(content).to_bytes(4, "little")


def _change(data: bytearray, rng: random.Random) -> None:
    # Lengths, counts and forms are rare among the bytes, and near the start or after a name.
    near = min(len(data), 120) if rng.random() < 0.5 else len(data)
    place = rng.randrange(near) if near else 0
    match rng.randrange(6):
        case 0 if data:
            data[place] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[place] = rng.choice([0, 1, 2, 3, 127, 128, 255])
        case 2:
            del data[place:]
        case 3:
            data[place:place] = rng.randbytes(rng.randint(1, 40))
        case 4:
            del data[place : place + rng.randint(1, 9)]
        case _:
            width = rng.choice([2, 4, 8])
            huge = rng.choice([2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 10**6])
            data[place : place + width] = (huge % 2 ** (8 * width)).to_bytes(width, "little")


def outcome(decode: Decode, data: bytes) -> tuple[str, int]:
    """What came of a payload, and the most memory it took."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        decode(data)
        told = "read"
    except (WireError, ReplyError) as error:
        check_sentence(error)
        told = type(error).__name__
    return told, tracemalloc.get_traced_memory()[1] - before


def check_sentence(error: FedTinyError) -> None:
    """Refuse a sentence that is too long, too short or not printable."""
    sentence = str(error)
    assert sentence.isprintable(), sentence
    assert 10 < len(sentence) < 400, sentence


def confine(seconds: int | None = None) -> None:
    """Little more memory than now, and little time: who hangs or hoards is ended."""
    seconds = seconds or CPU_SECONDS
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--payloads", type=int, default=10_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    messages, rng, outcomes = list(corpus()), random.Random(arguments.seed), Counter()
    fullest = 0.0
    seconds = arguments.seconds
    confine(None if seconds is None else int(2 * seconds) + 60)
    end = None if seconds is None else time.monotonic() + seconds
    tracemalloc.start()
    for data, decode in messages:
        assert outcome(decode, data)[0] == "read", "an honest message was refused"
    for number in itertools.count():
        if number >= arguments.payloads if end is None else time.monotonic() >= end:
            break
        message, decode = messages[number % len(messages)]
        data = mutated(message, rng)
        told, memory = outcome(decode, data)
        outcomes[told] += 1
        fullest = max(fullest, memory / bound(len(data)))
    report = {"messages": len(messages), "outcomes": outcomes, "share_of_bound": round(fullest, 3)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
