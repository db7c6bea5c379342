"""Read mutated packed models, damaged or sealed again, in a process of little memory.

    python -m tests.export.fuzz_packed [--files 3000] [--seconds S] [--seed 0]

Bits are flipped, ends cut off, values changed behind a checksum that fits. What can be read must
compute an image; anything but the project's own error ends the process.
"""

import argparse
import json
import random
import time
from collections import Counter

import numpy as np
from safetensors.numpy import load, save

from fedtiny.errors import ExportError
from fedtiny.export import packed
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.files import digest_of, metadata_of

from ..federation.fuzz_wire import check_sentence, confine
from ..runs.damage import changed
from .nets import shipped, tiny_model


def mutated(data: bytes, draw: random.Random) -> bytes:
    """A damaged file, or a lie under a checksum that fits."""
    if draw.random() < 0.4:
        damaged = bytearray(data)
        place, kind = draw.randrange(len(data)), draw.randrange(4)
        if kind == 0:
            damaged[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del damaged[place:]
        elif kind == 2:
            damaged[place:place] = draw.randbytes(draw.randint(1, 40))
        else:
            damaged[place : place + 8] = draw.choice([b"\0" * 8, b"\xff" * 8, b"99999999"])
        return bytes(damaged)
    tensors, told = load(data), json.loads(metadata_of(data)[packed.METADATA])
    del tensors[packed.DIGEST]
    if draw.random() < 0.3:
        name = draw.choice(sorted(tensors))
        tensors[name] = tensors[name][: draw.randrange(len(tensors[name]) + 1)].copy()
    for _ in range(draw.randint(1, 3)):
        changed(told, draw)
    text = json.dumps(told)
    tensors[packed.DIGEST] = np.frombuffer(bytes.fromhex(digest_of(tensors, text)), np.uint8)
    return save(tensors, {packed.METADATA: text})


def outcome(data: bytes) -> str:
    """What came of a file."""
    try:
        model = packed.unpacked(data, "my.packed")
    except ExportError as error:
        check_sentence(error)
        return "refused"
    with np.errstate(all="ignore"):
        NumpyModel(model)(np.zeros((1, *model.shape), np.uint8))
    return "read"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, outcomes = random.Random(arguments.seed), Counter()
    whole = [
        packed.packed(tiny_model(shipped(name, 0.1)), values)
        for name in ("small", "resnet18")
        for values in ("fp32", "int8")
    ]
    confine(None if arguments.seconds is None else int(2 * arguments.seconds) + 60)
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    while sum(outcomes.values()) < arguments.files if end is None else time.monotonic() < end:
        outcomes[outcome(mutated(draw.choice(whole), draw))] += 1
    print(json.dumps({"outcomes": outcomes}))


if __name__ == "__main__":
    main()
