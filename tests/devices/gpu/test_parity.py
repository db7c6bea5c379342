"""Whole runs on the GPU simulator against the reference simulator, in fp32 on a CPU.

Weights and images laid out as on the reference, both compute with the same kernels and stay
together to the end. Turned (channels last) they round otherwise, and are held to what the same
criteria ask of a GPU: the same candidate, 99 of 100 indices of the first adjustment, weights
near until then.
"""

import numpy as np
import pytest

from .twins import (
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    quick,
    selection,
    shared,
    twins,
)

PLAIN = {"gpu": {"channels_last": False}}
SMALL = {"model": "small", "width": 16, "density": 0.3, "rounds": 1}
SGD = {"train": {"optimizer": "sgd"}}  # one step of Adam is +-lr for all: nothing but ties to drop
EXTRUDING = {"extrude": True, "granularity": "entire"}
RECIPE = {
    "train": {"lr_schedule": "cosine", "lr_warmup": 1, "decay_norms": False, "proximal_mu": 0.1},
    "server": {"optimizer": "fedadam", "average": "ema", "average_start": 0},
}
RUNS = {
    "fedtiny": PLAIN | {"rounds": 2},
    "fedtiny pooled": PLAIN | SMALL | {"selection": {"variance": "pooled"}},
    "fedtiny two passes": PLAIN | SMALL | {"selection": {"passes": 2}},
    "fedtiny recipe": PLAIN | RECIPE | {"rounds": 2},
    "fedtiny extruding": PLAIN | SMALL | SGD | {"pruning": EXTRUDING},
    "fedtiny vgg11_small": PLAIN | {"model": "vgg11_small", "rounds": 1},
    "feddst": PLAIN | SGD | {"rounds": 1},
    "fedsgc": PLAIN | SGD | {"rounds": 1},
    "fedrts": PLAIN | SGD | {"rounds": 1, "pruning": {"draw": "voted"}},
    "fedfit": PLAIN | SGD | {"rounds": 1},
    "fedmef": PLAIN | SGD | {"rounds": 1},
    "fedmef resnet18_ns": PLAIN | SGD | {"model": "resnet18_ns", "rounds": 1},
    "set": PLAIN | SGD | {"rounds": 2},
    "ssfl": PLAIN | {"rounds": 1},
    "prunefl": PLAIN | {"rounds": 2},
    "lotteryfl": PLAIN | {"rounds": 2, "pruning": {"r_stop": 1}},
    "fedavg": PLAIN | {"rounds": 2},
    "synflow": PLAIN | {"rounds": 1},
    "small_model": PLAIN | {"density": 0.5, "rounds": 1},
    "fedtiny turned": {"rounds": 1, "train": {"lr": 1e-4}},
    "fedtiny recipe turned": SMALL | RECIPE | {"rounds": 2},
    "feddst turned": SMALL | SGD,
    "prunefl turned": SMALL,
    "fedavg turned": SMALL,
}
EXACT = [name for name in RUNS if not name.endswith("turned")]
SELECTING = [name for name in RUNS if name.startswith("fedtiny")]
ADJUSTING = [
    *SELECTING,
    "feddst",
    "fedsgc",
    "fedrts",
    "fedfit",
    "fedmef",
    "fedmef resnet18_ns",
    "set",
    "prunefl",
    "lotteryfl",
    "feddst turned",
    "prunefl turned",
]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Both simulators' runs of one name, played once."""
    found = {}

    def played_(name):
        if name not in found:
            config = quick(method=name.split()[0], **RUNS[name])
            found[name] = twins(config, tmp_path_factory.mktemp(name.replace(" ", "-")))
        return found[name]

    return played_


@pytest.mark.parametrize("name", SELECTING)
def test_the_same_candidate_is_selected_at_the_same_cost(played, name):
    assert_the_same_candidate(played(name))
    losses = selection(played(name).gpu)["losses"]
    assert len(set(losses)) == len(losses) == 4, "or there is nothing to choose"
    theirs, ours = (each.result.selection for each in played(name).both)
    for figure in ("bytes_down", "bytes_up", "failed"):
        assert ours[figure] == theirs[figure]


@pytest.mark.parametrize("name", ADJUSTING)
def test_the_first_adjustment_grows_and_drops_the_same_weights(played, name):
    assert_the_same_first_adjustment(played(name))


@pytest.mark.parametrize("name", RUNS)
def test_weights_are_near_until_the_first_adjustment(played, name):
    assert_near_until_then(played(name))


@pytest.mark.parametrize("name", EXACT)
def test_laid_out_as_on_the_reference_both_stay_together_to_the_end(played, name):
    theirs, ours = (each.thetas[-1] for each in played(name).both)
    kept = [np.intersect1d(theirs.mask.indices(n), ours.mask.indices(n)) for n in theirs.mask]
    assert sum(map(len, kept)) >= 0.999 * theirs.mask.count
    off = np.concatenate([np.abs(a - b) for a, b in shared(theirs, ours)])
    assert np.quantile(off, 0.99) < 1e-6
    metrics = [each.result.metrics[-1] for each in played(name).both]
    for figure in ("train_loss", "loss"):
        assert metrics[1][figure] == pytest.approx(metrics[0][figure], rel=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_written_down_of_the_first_round_is_the_same(played, name):
    theirs, ours = (each.result.metrics[0] for each in played(name).both)
    assert ours.keys() == theirs.keys()
    for figure in ("train_loss", "loss"):
        assert ours[figure] == pytest.approx(theirs[figure], rel=2e-3)
    for figure in (
        "round_number",
        "bytes_down",
        "flops",
        "density",
        "answered",
        "failed",
        "adjusted",
    ):
        assert ours[figure] == theirs[figure], figure
    assert ours["bytes_up"] == pytest.approx(theirs["bytes_up"], rel=1e-3)
