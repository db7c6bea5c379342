"""The exported C beside onnxruntime and torch: bytes, memory, and milliseconds of an image.

A network for CIFAR images under a uniform magnitude mask, untrained; one core. In each round every
contender classifies the same images; times are processor time, ratios medians over the rounds.
ResNet18 at full width and density 0.01 or less fails where it is larger or slower than it may be.

    python benchmarks/export.py [--model resnet18] [--density 0.01] [--width 64] [--rounds 25]
                                [--json PATH]
"""

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny.data.transforms import ArrayTransform, Preparation
from fedtiny.export.c_source import Source, write_source
from fedtiny.export.network import TinyModel, lower
from fedtiny.export.onnx_file import onnx_bytes
from fedtiny.export.packed import packed
from fedtiny.extras import require
from fedtiny.graph.trace import trace
from fedtiny.models import analyze, build, kind
from fedtiny.runs.formatting import size
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest

SHAPE, CLASSES = (3, 32, 32), 10
CIFAR10 = Preparation((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
FLAGS = ("-std=c99", "-O3", "-march=native", "-ffp-contract=fast")
STRICT = ("-pedantic", "-Wall", "-Wextra", "-Werror")
IMAGES = 5
FULL_WIDTH, JUDGED_DENSITY = 64, 0.01
MOST_FLASH, MOST_RESIDENT = 300_000, 2_500_000  # bytes of the C code with int8 weights
LEAST_SPEEDUP = 5  # over onnxruntime
MOST_PACKED = 0.025  # of the dense model's bytes, with fp32 values
Network = Any
Classify = Callable[[np.ndarray], np.ndarray]


def sparse_network(name: str, width: int, density: float) -> tuple[Network, Theta]:
    """A network under a uniform magnitude mask, in torch and as theta.

    Kept weights are scaled up, so that images still tell at the output of the untrained network.
    """
    torch = require("torch", extra="torch")
    network = build(name, SHAPE, CLASSES, width=width).eval()
    param_spec = analyze(network, SHAPE)
    tensors = {n: tensor.numpy() for n, tensor in network.state_dict().items()}
    counts = zip(param_spec.prunable, uniform(param_spec, density), strict=True)
    mask = Mask(param_spec, {n: largest(tensors[n].reshape(-1), int(count)) for n, count in counts})
    scaled = {n: tensors[n] * density**-0.5 for n in param_spec.prunable}
    theta = Theta.from_tensors(tensors | scaled, mask)
    kept = {n: torch.from_numpy(tensor.copy()) for n, tensor in theta.tensors().items()}
    network.load_state_dict(network.state_dict() | kept)
    return network, theta


def tiny_model(name: str, network: Network, theta: Theta) -> TinyModel:
    """The same as it is exported."""
    net = lower(trace(network, SHAPE), theta, fold=True, remove_dead=True)
    return TinyModel(net, CIFAR10, tuple(map(str, range(CLASSES))), {"model": name})


def by_torch(network: Network) -> Classify:
    torch = require("torch", extra="torch")
    torch.set_num_threads(1)

    def classify(image: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(image)[None]).numpy()[0]

    return classify


def by_onnxruntime(model: TinyModel) -> Classify:
    """The plain graph; it normalises, so pixels are put back to 0..1 before."""
    runtime = require("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(
        onnx_bytes(model, plain=True), options, providers=["CPUExecutionProvider"]
    )
    mean, std = (np.float32(v)[:, None, None] for v in (CIFAR10.mean, CIFAR10.std))
    return lambda image: session.run(None, {"image": (image * std + mean)[None]})[0][0]


def by_c(library: Path) -> Classify:
    run = ctypes.CDLL(str(library)).model_run_values
    run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    def classify(image: np.ndarray) -> np.ndarray:
        logits = np.empty(CLASSES, dtype=np.float32)
        run(image.ctypes.data, logits.ctypes.data)
        return logits

    return classify


def compile_c(folder: Path) -> dict[str, Path]:
    """The library for timing, the object for its size, and the program for its memory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("this benchmark needs a C compiler")
    orders = {
        "library": (*FLAGS, "-shared", "-fPIC", "model.c", "-lm", "-o", "model.so"),
        "object": ("-std=c99", "-Os", "-fno-pie", "-c", "model.c", "-o", "model.o"),
        "program": (*FLAGS, "-static", "model.c", "main.c", "-lm", "-o", "model"),
    }
    for order in orders.values():
        subprocess.run([compiler, *STRICT, *order], cwd=folder, check=True)
    return {name: folder / order[-1] for name, order in orders.items()}


def section_bytes(compiled: Path) -> tuple[int, int]:
    """What an object takes of flash (code and constants) and of RAM (static buffers)."""
    told = subprocess.check_output(["size", compiled], text=True)
    text, data, bss = map(int, told.splitlines()[1].split()[:3])
    return text + data, data + bss


def resident_bytes(program: Path) -> int:
    """Peak resident size of the whole program, libc included, after an image."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program], **pipes) as running:
        running.stdin.write(bytes(int(np.prod(SHAPE))))
        running.stdin.flush()
        running.stdout.readline()
        lines = Path(f"/proc/{running.pid}/status").read_text(encoding="utf-8").splitlines()
        running.communicate()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def interleaved(
    contenders: dict[str, Classify], images: np.ndarray, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of processor time of an image, by contender and round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, classify in contenders.items():
            start = time.process_time()
            for image in images:
                classify(image)
            if turn:  # the first warms up
                times[name].append(1e3 * (time.process_time() - start) / len(images))
    return times


def measure(
    name: str, width: int | None, density: float, rounds: int, folder: Path
) -> dict[str, Any]:
    """Everything that is told."""
    width = width or kind(name).width
    network, theta = sparse_network(name, width, density)
    model = tiny_model(name, network, theta)
    contenders = {"torch": by_torch(network), "onnxruntime": by_onnxruntime(model)}
    found: dict[str, Any] = {"model": name, "density": density, "width": width}
    found["load"] = os.getloadavg()[0]
    for values in ("fp32", "int8"):
        report = write_source(Source(model, values, bands=False), folder / values)
        compiled = compile_c(folder / values)
        flash, ram = section_bytes(compiled["object"])
        found[f"c_{values}"] = {
            "table_bytes": report.flash_bytes,
            "flash_bytes": flash,
            "ram_bytes": ram,
            "resident_bytes": resident_bytes(compiled["program"]),
        }
        contenders[f"c_{values}"] = by_c(compiled["library"])
    found["bytes"] = file_bytes(model, theta)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, *SHAPE), dtype=np.uint8)
    images = ArrayTransform(CIFAR10.mean, CIFAR10.std).normalise(pixels)
    found["differences"] = differences(contenders, images)
    times = interleaved(contenders, images, rounds)
    found["ms"] = {name: statistics.median(spent) for name, spent in times.items()}
    found["speedup_over_onnxruntime"] = {
        name: statistics.median(o / s for o, s in zip(times["onnxruntime"], spent, strict=True))
        for name, spent in times.items()
    }
    return found


def file_bytes(model: TinyModel, theta: Theta) -> dict[str, int]:
    """Bytes of the dense values and of the files of other formats."""
    return {
        "dense": 4 * (theta.param_spec.prunable_count + theta.param_spec.dense_count),
        "onnx": len(onnx_bytes(model, plain=True)),
        "onnx sparse": len(onnx_bytes(model)),
        "packed fp32": len(packed(model, "fp32")),
        "packed int8": len(packed(model, "int8")),
    }


def differences(contenders: dict[str, Classify], images: np.ndarray) -> dict[str, float]:
    """The largest difference of a logit from torch's, as a share of the largest logit."""
    logits = {name: np.stack([c(image) for image in images]) for name, c in contenders.items()}
    most = np.abs(logits["torch"]).max()
    return {
        name: float(np.abs(found - logits["torch"]).max() / most) for name, found in logits.items()
    }


def tell(found: dict[str, Any]) -> None:
    files, dense = found["bytes"], found["bytes"]["dense"]
    print(f"{found['model']}, width {found['width']}, density {found['density']:g}, one core")
    print("; ".join(f"{name} {size(count)} ({count / dense:.2%})" for name, count in files.items()))
    for name in ("c_fp32", "c_int8"):
        c = found[name]
        print(
            f"{name}: {size(c['flash_bytes'])} of flash ({c['flash_bytes'] / dense:.2%}), tables "
            f"{size(c['table_bytes'])} of it; {size(c['ram_bytes'])} of static RAM; "
            f"{size(c['resident_bytes'])} resident as a Linux program"
        )
    for name, ms in found["ms"].items():
        ratio, difference = found["speedup_over_onnxruntime"][name], found["differences"][name]
        print(
            f"{name:12}{ms:8.2f} ms an image, {ratio:5.2f} times as fast as onnxruntime; "
            f"logits differ from torch's by {difference:.1e}"
        )


def is_judged(found: dict[str, Any]) -> bool:
    """Whether this is the network that the targets are set for; a narrow one has little to save."""
    full = (found["model"], found["width"]) == ("resnet18", FULL_WIDTH)
    return full and found["density"] <= JUDGED_DENSITY


def missed(found: dict[str, Any]) -> list[str]:
    """What is larger or slower than it may be, in words."""
    c, files = found["c_int8"], found["bytes"]
    flash, resident = c["flash_bytes"], c["resident_bytes"]
    speedup = found["speedup_over_onnxruntime"]["c_int8"]
    share = files["packed fp32"] / files["dense"]
    targets = (
        (flash <= MOST_FLASH, f"{size(flash)} of flash, not {size(MOST_FLASH)}"),
        (resident <= MOST_RESIDENT, f"{size(resident)} resident, not {size(MOST_RESIDENT)}"),
        (speedup >= LEAST_SPEEDUP, f"{speedup:.1f} times onnxruntime's speed, not {LEAST_SPEEDUP}"),
        (share <= MOST_PACKED, f"a packed file of {share:.2%} of dense, not {MOST_PACKED:.1%}"),
    )
    return [words for fits, words in targets if not fits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="one that reads images")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--width", type=int, help="default: the network's own")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(asked.model, asked.width, asked.density, asked.rounds, Path(folder))
    tell(found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if is_judged(found) and missed(found):
        sys.exit(f"the export misses its targets: {'; '.join(missed(found))}")


if __name__ == "__main__":
    main()
