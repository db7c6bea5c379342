"""One run played by both simulators, and how far the two are apart."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fedtiny
from fedtiny.config import Config, from_dict
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.adjust import Changes, mask_changes
from fedtiny.sparse.theta import Theta

DEFAULTS = {
    "width": 8,
    "density": 0.1,
    "rounds": 3,
    "workers": 1,
    "device_backend": "torch",
    "threads": 1,
    "data": {"limit_train": 300, "limit_test": 100},
    "fleet": {"devices": 4},
    "train": {"local_epochs": 1},
    "selection": {"pool_size": 4},
    "pruning": {"delta_r": 1, "r_stop": 2, "iterations": 3},
    "gpu": {"precision": "fp32", "compile": False, "lanes": 2},
}

SMALL = {
    "simulator": "gpu",
    "model": "small",
    "width": 4,
    "density": 0.3,
    "data": {"limit_train": 120, "limit_test": 40},
    "fleet": {"devices": 3},
    "gpu": {"precision": "fp32", "lanes": 2},
}
RESUME = """
import sys
import fedtiny
from fedtiny.runs.reporter import Silent

for path in sys.argv[1:]:
    fedtiny.resume(path, reporter=Silent())
"""


def quick(**changes: object) -> Config:
    """The config of a quick run on the digits; a section is given as a dict of what differs."""
    values = {name: dict(v) if isinstance(v, dict) else v for name, v in DEFAULTS.items()}
    for name, change in changes.items():
        values[name] = values.get(name, {}) | change if isinstance(change, dict) else change
    return from_dict(values)


def small(**changes: object) -> Config:
    """The config of a run of a quarter of a second on the GPU simulator."""
    sections = {name: SMALL.get(name, {}) | c for name, c in changes.items() if type(c) is dict}
    return quick(**(SMALL | changes | sections))


def resume_in_a_new_process(*paths: Path) -> None:
    """Continue runs where they stopped, in a process that knows nothing of this one."""
    order = [sys.executable, "-c", RESUME, *map(str, paths)]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Watcher(Silent):
    """Keeps the model at the start and after every round."""

    def __init__(self) -> None:
        self.thetas: list[Theta] = []

    def started(self, assembly, folder, records) -> None:
        self.assembly = assembly

    def selected(self, selection) -> None:
        self.thetas.append(self.assembly.server.theta)

    def round_done(self, record) -> None:
        self.thetas.append(self.assembly.server.theta)


@dataclass(frozen=True)
class Played:
    """A run, and its model at the start and after every round."""

    result: fedtiny.Result
    thetas: list[Theta]

    def first_adjustment(self) -> int | None:
        """The first round at whose end the mask changed."""
        pairs = zip(self.thetas, self.thetas[1:], strict=False)
        return next((r for r, (old, new) in enumerate(pairs) if old.mask != new.mask), None)


@dataclass(frozen=True)
class Twins:
    """One run on the reference simulator and on the GPU's."""

    reference: Played
    gpu: Played

    @property
    def both(self) -> tuple[Played, Played]:
        return self.reference, self.gpu


def play(config: Config, out: Path, watcher: Watcher | None = None, **given: object) -> Played:
    watcher = watcher or Watcher()
    return Played(fedtiny.run(config, out=out, reporter=watcher, **given), watcher.thetas)


def twins(config: Config, folder: Path) -> Twins:
    played = (
        play(replace(config, simulator=simulator), folder / simulator)
        for simulator in ("reference", "gpu")
    )
    return Twins(*played)


def assert_the_same_candidate(both: Twins) -> None:
    """Both chose one candidate, unless two of them are as good as each other."""
    chosen, losses = zip(
        *((s["chosen"], np.array(s["losses"])) for s in (selection(p) for p in both.both)),
        strict=True,
    )
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert chosen[0] == chosen[1] or abs(np.diff(losses[0][list(chosen)])) < 1e-4


def selection(played: Played) -> dict:
    return played.result.selection["selection"]


def assert_the_same_first_adjustment(both: Twins, share: float = 0.99) -> None:
    """Both grow and drop the same weights, but for at most a hundredth of them."""
    when = both.reference.first_adjustment()
    assert when is not None
    assert both.gpu.first_adjustment() == when
    theirs, ours = (
        indices(mask_changes(played.thetas[when].mask, played.thetas[when + 1].mask))
        for played in both.both
    )
    assert len(theirs) > 50, "or this shows nothing"
    assert len(theirs & ours) >= share * max(len(theirs), len(ours))


def indices(changes: Changes) -> set[tuple[str, str, int]]:
    """Every single weight that was grown or dropped."""
    return {
        (layer, what, position)
        for layer, change in changes.items()
        for what in ("grown", "dropped")
        for position in getattr(change, what).tolist()
    }


def assert_near_until_then(both: Twins, most: float = 2e-3, usual: float = 5e-5) -> None:
    """Weights are near up to the first adjustment, and in the round of it where both hold them.

    Adam moves a weight by about its learning rate however small the gradient is, so where a
    gradient is nearly zero its rounding shows; 99 of 100 values are much nearer.
    """
    when = both.reference.first_adjustment()
    last = 1 if when is None else when + 1
    for theirs, ours in zip(*(played.thetas[: last + 1] for played in both.both), strict=True):
        off = np.concatenate([np.abs(a - b) for a, b in shared(theirs, ours)])
        assert off.max() < most
        assert np.quantile(off, 0.99) < usual


def shared(one: Theta, other: Theta):
    """The values that both hold, tensor by tensor."""
    for name in one.places:
        if name in one.param_spec.dense:
            yield one.tensor(name).ravel(), other.tensor(name).ravel()
        else:
            held = one.mask.array(name) & other.mask.array(name)
            yield one.tensor(name)[held], other.tensor(name)[held]
