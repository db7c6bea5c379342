"""Training that torch did, written to a file for a program on another machine to do again."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtiny.native.library import Rates, node_records

from .twins import SGD, Twins, allowed

STEPS = 3


def write(
    path: Path,
    twins: Twins,
    batch: tuple[np.ndarray, np.ndarray],
    *,
    gradient_tolerance: float = 2e-4,
    state_tolerance: float = 2e-3,
) -> dict[str, dict]:
    """Train both sides, write what torch found and how far others may be off; the pairs of both."""
    start = {name: found for name, (_, found) in twins.states().items()}
    noise = twins.noise(*batch)
    gradients = twins.gradients(*batch)
    del gradients["loss"]
    twins.step(*batch, "sgd", steps=STEPS)
    states = twins.states()
    native = twins.native
    records = node_records(native.graph.nodes)
    kept = native._kept({name: len(positions) for name, positions in twins.kept.items()})
    by_node = {native._place(name)[0]: positions for name, positions in twins.kept.items()}
    with path.open("wb") as file:
        file.write(struct.pack("<q", len(records)) + b"".join(map(bytes, records)))
        file.write(bytes(native.options.record()))
        for number, count in enumerate(kept):
            file.write(struct.pack("<q", count))
            file.write(by_node[number].astype("<i4").tobytes() if count >= 0 else b"")
        images, labels = batch
        file.write(struct.pack("<q", images.size) + images.astype("<f4").tobytes())
        file.write(struct.pack("<q", labels.size) + labels.astype("<i8").tobytes())
        file.write(bytes(Rates(**SGD)) + struct.pack("<i", STEPS))
        file.write(_tensors(native, start, dict.fromkeys(start, 0.0)))
        for pairs, tolerance in ((gradients, gradient_tolerance), (states, state_tolerance)):
            limits = allowed(pairs, tolerance, noise)
            file.write(_tensors(native, {n: e for n, (e, _) in pairs.items()}, limits))
    return {"gradients": gradients, "states": states, "noise": noise}


def _tensors(native, tensors: Mapping[str, np.ndarray], limits: Mapping[str, float]) -> bytes:
    parts = [struct.pack("<q", len(tensors))]
    for name, values in tensors.items():
        flat = np.asarray(values, dtype="<f4").reshape(-1)
        parts += [struct.pack("<iidq", *native._place(name), limits[name], flat.size)]
        parts += [flat.tobytes()]
    return b"".join(parts)
