"""What the contract of a method is tested with: one tiny run in several ways, and plug-ins."""

import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import invalidate_caches
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import fedtiny
from fedtiny import methods
from fedtiny.models import ParamSpec, analyze
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.mask import Mask

from ..devices.tiny import TinyNet, images, seeded, settings
from ..runs.tiny import lines, stop, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method"
POINTS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
NAMES = list(dict.fromkeys([*methods.names(), *POINTS[methods.GROUP]]))

DEVICES, ROUNDS, R_STOP, DENSITY = 3, 3, 2, 0.3
FILES = ("model", "checkpoint")
BASE = {
    "density": DENSITY,
    "rounds": ROUNDS,
    "eval_every": ROUNDS,
    "workers": 1,
    "threads": 1,
    "seed": 4,  # with which some devices fail where they may, yet never all
    "data": {"n_shots": 2},
    "train": {"local_epochs": 2, "batch_size": 8, "pretrain_epochs": 1},
    "selection": {"pool_size": 3, "development_ratio": 0.5},
    "pruning": {"delta_r": 1, "r_stop": R_STOP, "iterations": 3},
}
WAYS = {
    "plain": {},
    "again": {},
    "two workers": {"workers": 2},
    "encoded": {"fleet": {"wire": "encode"}},
    "failing": {"fleet": {"fail_rate": 0.3, "min_replies": 1}},
    "stopped": {},
}


def config_of(method, way="plain"):
    """The tiny run of a method, in one of several ways."""
    changes = WAYS[way]
    fleet = {"devices": DEVICES, "min_samples": 8} | changes.get("fleet", {})
    return settings(method=method, **BASE | changes | {"fleet": fleet})


def given():
    """Data and network of the tiny run."""
    return {"data": images(45), "model": seeded(TinyNet)}


@dataclass(frozen=True, eq=False)
class Ran:
    """A finished run, and what its files say."""

    result: fedtiny.Result

    @property
    def path(self) -> Path:
        return self.result.path

    @property
    def metrics(self) -> list[dict]:
        """A record a round, but for the time it took."""
        return lines(self.path)

    @property
    def bytes(self) -> dict[str, bytes]:
        """The files that hold results, and not how they were come by."""
        files = {name: (self.path / f"{name}.safetensors").read_bytes() for name in FILES}
        split = load_file(self.path / "partition.safetensors")
        files["partition"] = b"".join(split[name].tobytes() for name in sorted(split))
        return files | {"selection": (self.path / "selection.json").read_bytes()}

    @cached_property
    def param_spec(self) -> ParamSpec:
        return analyze(self.result.network, given()["data"].shape)

    @cached_property
    def model(self) -> dict[str, np.ndarray]:
        return load_file(self.path / "model.safetensors")

    @cached_property
    def mask(self) -> Mask:
        """The mask in the checkpoint, read here by hand; making it checks its positions."""
        saved = load_file(self.path / "checkpoint.safetensors")
        kept, indices = {}, saved["mask.indices"]
        for (layer, size), count in zip(
            self.param_spec.sizes.items(), saved["mask.counts"], strict=True
        ):
            taken = 0 if count == size else count
            kept[layer] = indices[:taken] if taken else None
            indices = indices[taken:]
        assert len(indices) == 0
        return Mask(self.param_spec, kept)


class Archive:
    """Every run is made once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[tuple[str, str], Ran] = {}

    def __call__(self, method: str, way: str = "plain") -> Ran:
        if (method, way) not in self.runs:
            self.runs[method, way] = Ran(self._run(method, way))
        return self.runs[method, way]

    def _run(self, method: str, way: str) -> fedtiny.Result:
        config, out = config_of(method, way), self.folder / method / way
        if way != "stopped":
            return train(config, out, **given())
        stop(config, out, R_STOP, **given())
        return fedtiny.resume(out, reporter=Silent(), **given())


@contextmanager
def installed(folder: Path, code: Path, points: dict[str, str], name="fedtiny-guest"):
    """A package with entry points, as importlib finds an installed one; nothing is installed."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    listed = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[{methods.GROUP}]\n{listed}")
    paths, modules = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(folder), str(code)]
    invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = paths
        for module in set(sys.modules) - modules:
            if module in {value.partition(":")[0] for value in points.values()}:
                del sys.modules[module]


def example_installed(folder: Path):
    """The example plug-in, by the entry points of its own pyproject."""
    return installed(folder, EXAMPLE, POINTS[methods.GROUP], "fedtiny-erk")
