"""fedtiny doctor: what works on this machine, and what to do about the rest."""

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtiny import __version__, data, models
from fedtiny.data.hub import KNOWN, SPLITS, root_folder, split_files
from fedtiny.errors import FedTinyError, plural
from fedtiny.extras import own_code, require, version_of
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.native import compile as native_compile
from fedtiny.native import library
from fedtiny.native.model import NativeModel
from fedtiny.process import cores, free_memory
from fedtiny.runs.formatting import size
from fedtiny.runs.tracking import TRACKERS

NEEDED = ("numpy", "rich", "safetensors", "tomli-w", "tyro")
EXTRAS = {
    "Pillow": ("PIL", "images"),
    "pyarrow": ("pyarrow", "data"),
    "matplotlib": ("matplotlib", "plot"),
    "ONNX Runtime": ("onnxruntime", "onnx"),
    "pandas": ("pandas", "pandas"),
    "dp-accounting": ("dp_accounting", "dp"),
    "cryptography": ("cryptography", "secagg"),
    **{name: (name, name) for name in TRACKERS},
}
"""What extras bring: the module of each, and the extra's name."""
REBUILD = "python -m fedtiny.native.compile"
LITTLE = 2 * 10**9  # bytes of memory or disk below which a run is likely to end early


@dataclass(frozen=True)
class Arguments:
    """Tell what works on this machine, and what to do about what does not.

    Ends with 0 if fedtiny can train here, whatever extras are missing, else with 1.
    """

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; without a `core` one that is ok, nothing can be trained."""

    name: str
    state: Literal["ok", "missing", "broken"]
    found: str
    advice: str = ""
    core: bool = False


def command(arguments: list[str]) -> int:
    """Parse, look at everything and tell."""
    parsed = tyro.cli(Arguments, prog="fedtiny doctor", args=arguments)
    findings = []
    for finding in examined():
        findings.append(finding)
        if not parsed.json:
            print(_shown(finding), flush=True)
    works = all(finding.state == "ok" for finding in findings if finding.core)
    if parsed.json:
        print(json.dumps({"works": works, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        print(_summary(findings, works=works))
    return 0 if works else 1


def examined() -> Iterator[Finding]:
    """Look at one thing after the other; a check that fails is a finding too."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            name = check.__name__.strip("_").replace("_", " ")
            yield Finding(name, "broken", why, core=check in CORE)


def _shown(finding: Finding) -> str:
    width = max(40, shutil.get_terminal_size().columns)
    start, indent = f"{finding.state:<8}{finding.name:<16}", " " * 24
    lines = [textwrap.fill(finding.found, width, initial_indent=start, subsequent_indent=indent)]
    if finding.advice:
        first = f"{indent}-> "
        advice = textwrap.TextWrapper(
            width, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
        )
        lines.append(advice.fill(finding.advice))
    return "\n".join(lines)


def _summary(findings: list[Finding], *, works: bool) -> str:
    lacking = [finding.name for finding in findings if finding.state != "ok"]
    able = "fedtiny can train here" if works else "fedtiny cannot train here yet"
    if not lacking:
        return f"{able}; nothing is missing"
    return f"{able}; see above: {', '.join(lacking)}"


def _fedtiny() -> Iterator[Finding]:
    place = Path(__file__).parents[1]
    yield Finding("fedtiny", "ok", f"{__version__} (code {own_code()}) in {place}", core=True)
    system = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("Python", "ok", f"{system}, {sys.executable}", core=True)
    versions = {package: version_of(package) for package in NEEDED}
    found = ", ".join(f"{package} {version}" for package, version in versions.items())
    missing = [package for package, version in versions.items() if version == "not installed"]
    advice = f"pip install {' '.join(missing)}" if missing else ""
    yield Finding("packages", "missing" if missing else "ok", found, advice, core=True)


def _machine() -> Iterator[Finding]:
    count, threads = cores(), os.environ.get("OMP_NUM_THREADS", "")
    limit = f"; OMP_NUM_THREADS is {threads}" if threads else ""
    told = f"{plural(count, 'core')}{limit}; a run takes a process for each, of one thread"
    yield Finding("cores", "ok", told)
    free = free_memory()
    if free is not None:
        low = "take a small network and --workers 1" if free < LITTLE else ""
        yield Finding("memory", "ok", f"{size(free)} free", low)
    disk = shutil.disk_usage(Path.cwd()).free
    low = "choose another disk with --out" if disk < LITTLE else ""
    yield Finding("disk", "ok", f"{size(disk)} free in {Path.cwd()}", low)


def _torch() -> Iterator[Finding]:
    try:
        torch = require("torch", extra="torch")
    except FedTinyError as error:
        yield Finding("PyTorch", "missing", "not installed", str(error), core=True)
        return
    network = models.build("small", (1, 8, 8), 10, width=2)
    with torch.no_grad():
        shape = tuple(network.eval()(torch.zeros(1, 1, 8, 8)).shape)
    state: Literal["ok", "broken"] = "ok" if shape == (1, 10) else "broken"
    yield Finding("PyTorch", state, torch.__version__, core=True)


def _gpu() -> Iterator[Finding]:
    try:
        torch = require("torch", extra="torch")
    except FedTinyError:  # as was told
        return
    from fedtiny.devices.gpu.sparse import compiler, nvrtc

    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "PyTorch sees none" if built else "this PyTorch is built for CPUs"
        advice = "none is needed; with an NVIDIA GPU, install its driver and pip's torch for CUDA"
        yield Finding("GPU", "missing", f"{why}; devices are played on the CPU", advice)
        absent = bool(nvrtc.unavailable())
        found = "not installed" if absent else "installed"
        told = f"{found}; it builds the sparse kernels of a GPU, and nothing else"
        yield Finding("NVRTC", "missing" if absent else "ok", told)
        return
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        major_minor = f"{card.major}.{card.minor}"
        told = f"{card.name}, {size(card.total_memory)}, compute capability {major_minor}"
        yield Finding("GPU", "ok", told)
    trouble = compiler.unavailable(torch.device("cuda", 0))
    advice = "or leave it: devices are then trained by dense kernels" if trouble else ""
    built_by = "sparse kernels can be built"
    yield Finding("NVRTC", "missing" if trouble else "ok", trouble or built_by, advice)


def _compiler() -> Iterator[Finding]:
    found = native_compile.compiler()
    if found is None:
        advice = (
            "install one (apt install g++, or Xcode's command line tools), or name one in CXX; it "
            "builds the native library where a wheel did not bring it, and exported C"
        )
        yield Finding("C++ compiler", "missing", "neither c++, g++ nor clang++ is there", advice)
        return
    order = [*found, "--version"]
    told = subprocess.run(order, capture_output=True, text=True, timeout=20, check=False)
    first = (told.stdout or told.stderr).partition("\n")[0]
    state: Literal["ok", "broken"] = "broken" if told.returncode else "ok"
    yield Finding("C++ compiler", state, f"{' '.join(found)}: {first}")


def _native_library() -> Iterator[Finding]:
    name = "native library"
    place = library.path()
    if place is None:
        found = "not built; devices are played by dense PyTorch"
        yield Finding(name, "missing", found, f"with a C++ compiler: {REBUILD}")
        return
    image = Node(Kind.INPUT, channels=1, size=(8, 8))
    layers = (Node(Kind.FLATTEN, (0,)), Node(Kind.LINEAR, (1,), "fc", 10))
    try:
        NativeModel(Graph((image, *layers)))
        found = f"{library.library().instructions} instructions, {place}"
        yield Finding(name, "ok", found)
    except (FedTinyError, OSError, AttributeError) as error:
        found = f"{place} does not fit this fedtiny ({error})"
        yield Finding(name, "broken", found, f"build it again: {REBUILD}")


def _flower() -> Iterator[Finding]:
    version = version_of("flwr")
    if version == "not installed":
        advice = "for real devices: pip install 'fedtiny[flower]'"
        yield Finding("Flower", "missing", version, advice)
    else:
        yield Finding("Flower", "ok", version)


def _data() -> Iterator[Finding]:
    try:
        digits = data.load("digits")
        yield Finding("digits", "ok", f"{len(digits.train) + len(digits.test):,} images")
    except FedTinyError as error:
        yield Finding("digits", "missing", "cannot be loaded", str(error))
    root = root_folder()
    for name, known in KNOWN.items():
        try:
            count = sum(len(split_files(root, name, split, known.config)) for split in SPLITS)
            yield Finding(name, "ok", f"{plural(count, 'file')} in {root}")
        except FedTinyError:
            advice = f"fedtiny data get {name}, or set FEDTINY_DATA to the folder that holds it"
            yield Finding(name, "missing", f"not in {root}", advice)


def _extras() -> Iterator[Finding]:
    for name, (module, extra) in EXTRAS.items():
        there = find_spec(module) is not None
        advice = "" if there else f"pip install 'fedtiny[{extra}]'"
        found = "installed" if there else "not installed"
        yield Finding(name, "ok" if there else "missing", found, advice)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    *(_fedtiny, _machine, _torch, _gpu, _compiler, _native_library),
    *(_flower, _data, _extras),
)
CORE = (_fedtiny, _torch)
