"""Send damaged messages to fedtiny-device under the address and undefined sanitizers.

python -m tests.device.fuzz [--messages 100000] [--seconds S] [--seed 0]
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.devices import tiny

from fedtiny.federation import messages, wire
from fedtiny.federation.wire import Known
from fedtiny.native import device_program

BATCH = 2000  # messages of a process, if time counts
DRIVER = Path(__file__).with_name("fuzz.cpp")


def corpus() -> tuple[bytes, list[bytes]]:
    """The data of a device, and what it may be sent: first its spec, then requests of all kinds."""
    bench = tiny.lab(sizes=(10, 9))
    shard, theta, whole = bench.shards[0], bench.theta(), bench.start
    counts, kept = {"conv1.weight": 5, "hidden.weight": 3}, theta.mask.counts
    pool = np.array([[100, 200, 30], [50, 300, 20]], np.int32)
    ranks = np.concatenate([np.arange(n, dtype=np.int32) for n in whole.mask.counts.values()])
    statistics = {
        name: np.ones((2, *shape), np.float32)
        for name, shape in theta.param_spec.statistics.items()
    }
    programs = [
        ((messages.train(1),), theta, {}),
        ((messages.train(1, True),), theta, {}),
        ((messages.top_gradients(counts, 0.01),), theta, {}),
        ((messages.top_gradients(counts, 0.01, True, True),), theta, {}),
        ((messages.train(1), messages.prune_and_grow(counts)), theta, {}),
        ((messages.shared_gradients(counts, 0.01, 7),), theta, {}),
        ((messages.drop_scores({n: kept[n] for n in counts}),), theta, {}),
        ((messages.sensitivity(), messages.evaluate()), whole, {}),
        ((messages.bn_statistics(3),), whole, messages.pool_arrays(pool)),
        ((messages.bn_statistics(3, 2, "square"),), whole, messages.pool_arrays(pool, ranks=ranks)),
        ((messages.losses(),), whole, messages.pool_arrays(pool, statistics)),
    ]
    found = [json.dumps(bench.spec.to_plain()).encode()]
    for program, model, arrays in programs:
        request = messages.Request("train", "fedtiny", 1, program, model, arrays, 5)
        held = (wire.NOTHING_KNOWN, Known(mask=model.mask.version), Known.of(model))
        found += [bytes(4) + wire.encode_request(request, known) for known in held]
    return shard.to_bytes(), found


def build(folder: Path, library: Path | None = None) -> tuple[Path, Path, Path]:
    """The driver, sanitized with its native library or linked with one; its data and corpus."""
    driver, data, sent = (folder / name for name in ("fuzz", "data", "corpus"))
    flags = ("-DFEDTINY_MAX_EPOCHS=2",)
    linking = (f"-Wl,-rpath,{library.parent}",) if library else ()
    device_program.build(
        driver, main=(DRIVER,), flags=flags, linking=linking, library=library, sanitize=True
    )
    image, found = corpus()
    data.write_bytes(image)
    sent.write_bytes(b"".join(len(m).to_bytes(4, "little") + m for m in found))
    return driver, data, sent


def main() -> None:
    """Build the driver and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = build(Path(folder))
        if asked.seconds is None:
            subprocess.run([*command, str(asked.messages), str(asked.seed)], check=True)
            return
        end, seed = time.monotonic() + asked.seconds, asked.seed
        while time.monotonic() < end:
            subprocess.run([*command, str(BATCH), str(seed)], check=True)
            seed += 1


if __name__ == "__main__":
    main()
