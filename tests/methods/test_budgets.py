"""Every method under every layer budget: exact counts, FLOPs, and the same bytes after resuming."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedtiny
from fedtiny import methods
from fedtiny.config import PruningConfig, SelectionConfig
from fedtiny.cost.workload import layer_flow_of
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.public import before_batch_norm
from fedtiny.federation.rounds import prepare
from fedtiny.runs.formatting import unused_settings
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.densities import budget, erdos_renyi_kernel, uniform

from ..devices.tiny import TinyNet, lab, seeded, settings
from ..runs.tiny import essence, stop, train
from .contract import BASE, DENSITY, R_STOP, given

METHODS = [name for name, method in methods.OURS.items() if method.budgets]
AT_START = ("fl_pqsu", "snip", "synflow", "grasp", "prunefl", "feddst")
USES = {"conv1.weight": 16, "conv2.weight": 16, "hidden.weight": 1}
FIXED = 64 * 36 + 24  # multiply-adds of the stem on 8 x 8 places, and of the head
every_budget = pytest.mark.parametrize("budgets", ["uniform", "erk", "flow"])


def config_of(method, budgets, **changes):
    pruning = BASE["pruning"] | {"budgets": budgets}
    fleet = {"devices": 3, "min_samples": 8}
    return settings(**BASE | {"method": method, "pruning": pruning, "fleet": fleet} | changes)


def prepared(method, budgets, beta=0.5, **changes):
    """A bench whose server has pruned, before any round."""
    pruning = {"budgets": budgets, "flow_beta": beta} | changes.pop("pruning", {})
    bench = lab(settings(method=method, density=0.2, pruning=pruning, **changes))
    facts = {"model": seeded(TinyNet), "shape": bench.data.shape, "classes": 3}
    bench.method.flow = layer_flow_of(bench.config, **facts)
    prepare(bench.server, bench.method)
    return bench


def layer_counts(bench, budgets, beta=0.5):
    if budgets == "flow":
        return bench.method.flow.counts(0.2, beta, bench.config.pruning.iterations)
    return {"uniform": uniform, "erk": erdos_renyi_kernel}[budgets](bench.param_spec, 0.2)


@every_budget
@pytest.mark.parametrize("method", AT_START)
def test_the_first_mask_has_exactly_the_layer_counts(method, budgets):
    bench = prepared(method, budgets)
    counts = list(bench.server.theta.mask.counts.values())
    assert counts == layer_counts(bench, budgets).tolist()
    assert sum(counts) == budget(bench.param_spec, 0.2)


@every_budget
@pytest.mark.parametrize("method", ["fedtiny", "fedtiny_flow"])
def test_fedtiny_without_selection_has_exactly_the_layer_counts(method, budgets):
    bench = prepared(method, budgets, selection={"kind": "none"})
    counts = list(bench.server.theta.mask.counts.values())
    assert counts == layer_counts(bench, budgets).tolist()


@pytest.mark.parametrize("budgets", ["erk", "flow"])  # uniform ones are rounded in other steps
def test_fedtiny_flow_without_selection_has_synflow_s_mask(budgets):
    bench = prepared("fedtiny_flow", budgets, selection={"kind": "none"})
    assert bench.server.theta.mask == prepared("synflow", budgets).server.theta.mask
    assert "selection" not in bench.server.memory


@pytest.mark.parametrize("method", ["synflow", "fedtiny", "fedtiny_flow", "set"])
def test_what_is_left_of_a_filter_can_keep_the_filter_s_norm(method):
    plain, scaled = (prepared(method, "uniform", pruning={"rescale": on}) for on in (0, 1))
    theta, other = scaled.server.theta, plain.server.theta
    assert theta.mask == other.mask
    dense = lab(settings(method="fedavg", density=1.0)).server.theta
    assert np.array_equal(theta.kept("hidden.weight"), other.kept("hidden.weight"))
    for layer in ("conv1.weight", "conv2.weight"):  # batch norm follows these
        norms, wanted, less = (filter_norms(own, layer) for own in (theta, dense, other))
        left = norms > 0
        assert left.any()
        assert norms[left] == pytest.approx(wanted[left], rel=1e-5)
        assert np.all(norms[left] > 0.999 * less[left])
        assert norms.sum() > less.sum()
    assert np.array_equal(theta.vector[theta.mask.count :], other.vector[other.mask.count :])


def test_statistics_that_selection_measured_cannot_be_both_rescaled_and_frozen():
    frozen = {"train": {"freeze_bn": 0.0}}
    with pytest.raises(ConfigError, match="rescale 0"):
        prepared("fedtiny", "uniform", pruning={"rescale": 1}, **frozen)
    with pytest.raises(ConfigError, match="rescale 0"):
        prepared("fedtiny_flow", "flow", selection={"kind": "adaptive_bn"}, **frozen)
    selects_nothing = prepared("fedtiny_flow", "flow", selection={"kind": "none"}, **frozen)
    assert selects_nothing.method.rescale == 1


@pytest.mark.parametrize(
    ("asked", "normalize", "power"),
    [(None, "never", 1), (None, "always", 0), (0.5, "always", 0.5), (0.0, "never", 0)],
)
def test_filters_are_rescaled_by_default_unless_flow_is_normalized(asked, normalize, power):
    pruning = {"rescale": asked, "flow_normalize": normalize}
    assert prepared("fedtiny_flow", "flow", pruning=pruning).method.rescale == power


def test_what_batch_norm_reads_is_not_known_without_a_graph():
    bench = prepared("synflow", "uniform")
    public, param_spec = bench.server.public, bench.server.param_spec
    assert before_batch_norm(public, param_spec) == ["conv1.weight", "conv2.weight"]
    assert before_batch_norm(None, param_spec) == []
    untraced = SimpleNamespace(graph=None)
    assert before_batch_norm(untraced, param_spec) == []


def filter_norms(theta, layer):
    weights = theta.tensor(layer)
    return np.linalg.norm(weights.reshape(len(weights), -1), axis=1)


@pytest.mark.parametrize("budgets", ["erk", "flow"])
def test_fedtiny_s_candidates_lie_around_the_layer_counts(budgets):
    bench = prepared("fedtiny", budgets, selection={"pool_size": 20})
    pool = np.array(bench.server.memory["selection"]["layer_counts"])
    middle = layer_counts(bench, budgets)
    assert (np.abs(pool - middle) <= 0.5 * middle + 1).all()
    assert len(np.unique(pool, axis=0)) > 5
    total = pool.sum(axis=1)
    assert (total <= budget(bench.param_spec, 0.2)).all()
    assert (total > 0.98 * 0.2 * bench.param_spec.prunable_count).all()


def test_under_a_budget_of_flops_no_candidate_takes_more_than_the_layer_counts():
    bench = prepared("fedtiny", "uniform", flops_budget="30%", selection={"pool_size": 20})
    pool = np.array(bench.server.memory["selection"]["layer_counts"])
    price = np.array(list(USES.values()))
    assert (pool @ price <= uniform(bench.param_spec, 0.2) @ price).all()


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_positions_within_a_layer_are_those_of_the_method_s_own_score(method):
    """In one step, the layer that keeps as many under both budgets keeps the same."""
    even, erk = (
        prepared(method, budgets, pruning={"iterations": 1}).server.theta.mask
        for budgets in ("uniform", "erk")
    )
    for layer in even:
        few, many = sorted((set(m.indices(layer).tolist()) for m in (even, erk)), key=len)
        assert few <= many


def test_flow_without_a_price_is_synflow_s_own_threshold():
    one, other = prepared("synflow", "flow", beta=0), prepared("synflow", "global")
    assert one.server.theta.mask.counts == other.server.theta.mask.counts


def test_flow_without_a_network_is_refused():
    bench = lab(settings(method="fl_pqsu", pruning={"budgets": "flow"}))
    bench.method.flow = None
    with pytest.raises(FedTinyError, match="needs the network"):
        prepare(bench.server, bench.method)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs a method under some budgets, once for all tests."""
    folder, found = tmp_path_factory.mktemp("budgets"), {}

    def run(method, budgets):
        if (method, budgets) not in found:
            out = folder / method / budgets
            found[method, budgets] = train(config_of(method, budgets), out, **given())
        return found[method, budgets]

    return run


@every_budget
@pytest.mark.parametrize("method", METHODS)
def test_the_whole_run_keeps_the_total_and_tells_its_flops(ran, method, budgets):
    result = ran(method, budgets)
    last = result.metrics[-1]
    kept = {name: round(last["densities"][name] * n) for name, n in SIZES.items()}
    total = sum(SIZES.values())
    if method.startswith("fedtiny"):  # whose candidates come near it
        assert 0.97 * DENSITY * total < sum(kept.values()) <= DENSITY * total
    else:
        assert sum(kept.values()) == int(DENSITY * total)
    assert all(kept.values())
    if method != "lotteryfl":  # which trained the last round under a mask of before
        macs = sum(USES[name] * n for name, n in kept.items()) + FIXED
        samples = result.metrics[-1]["flops_plain"] / (3 * 2 * 2 * macs)
        assert samples == pytest.approx(MEAN_SAMPLES, abs=1e-9)


SIZES = {"conv1.weight": 288, "conv2.weight": 576, "hidden.weight": 64}
MEAN_SAMPLES = 13  # 45 images without the 6 of the public set, on three devices


@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_flow_budgets_resumes_to_the_same_bytes(ran, method, tmp_path):
    path = tmp_path / "stopped"
    stop(config_of(method, "flow"), path, R_STOP, **given())
    fedtiny.resume(path, reporter=Silent(), **given())
    assert essence(path) == essence(ran(method, "flow").path)


@pytest.mark.parametrize("method", ["fedavg", "small_model"])
def test_a_method_that_prunes_no_layer_says_that_budgets_are_in_vain(method):
    told = unused_settings(config_of(method, "erk"))
    assert told == [f"without effect: --pruning.budgets erk ({method} prunes no layer)"]


def test_one_threshold_needs_scores_of_ones_own():
    (told,) = unused_settings(config_of("fedtiny", "global"))
    assert told.endswith("(fedtiny has no scores of its own to set a threshold)")
    assert unused_settings(*(config_of(name, "global") for name in ("snip", "synflow"))) == []
    assert prepared("fl_pqsu", "global").server.theta.mask == (
        prepared("fl_pqsu", "uniform").server.theta.mask
    )


def test_one_threshold_over_what_devices_measure_has_no_layer_budgets():
    (told,) = unused_settings(config_of("ssfl", "erk"))
    assert told == "without effect: --pruning.budgets erk (ssfl has one threshold for all layers)"
    assert unused_settings(config_of("ssfl", "global")) == []


def test_fedtiny_flow_has_flow_budgets_where_there_can_be_no_threshold():
    one, other = (prepared("fedtiny_flow", budgets) for budgets in ("global", "flow"))
    assert one.server.theta.mask == other.server.theta.mask


@pytest.mark.parametrize(
    ("method", "flags", "named"),
    [
        ("fedtiny_flow", {"growth": "votes"}, "--pruning.growth (fedtiny_flow does not go by it)"),
        (
            "feddst",
            {"drop": "after_training", "extrude": True},
            "--pruning.drop, --pruning.extrude (feddst does not go by them)",
        ),
        ("fedtiny", {"draw": "all"}, "--pruning.draw (fedtiny does not go by it)"),
    ],
)
def test_settings_of_other_methods_are_said_to_be_in_vain(method, flags, named):
    config = fedtiny.Config(method=method, pruning=PruningConfig(**flags))
    assert unused_settings(config) == [f"without effect: {named}"]


def test_settings_that_a_method_goes_by_are_not_remarked_on():
    adjusting = PruningConfig(growth="votes", drop="after_training", granularity="entire")
    assert unused_settings(fedtiny.Config(pruning=adjusting)) == []
    for method, own in (("set", {"extrude": True}), ("fedrts", {"draw": "all"})):
        assert unused_settings(fedtiny.Config(method=method, pruning=PruningConfig(**own))) == []
    flow = SelectionConfig(kind="adaptive_bn", pool="flow,erk", tolerance=0.1)
    assert unused_settings(fedtiny.Config(method="fedtiny_flow", selection=flow)) == []


def test_settings_of_flow_budgets_are_in_vain_without_them():
    given = {"flow_beta": 0.9, "flow_floor": 0.0, "flow_normalize": "always"}
    asked = PruningConfig(budgets="erk", **given)
    named = "--pruning.flow-beta, --pruning.flow-floor (synaptic flow sets no layer budgets)"
    told = unused_settings(fedtiny.Config(method="fedtiny_flow", pruning=asked))
    assert told == [f"without effect: {named}"]
    by_flow = fedtiny.Config(method="fedtiny_flow", pruning=PruningConfig(**given))
    assert unused_settings(by_flow) == []
    by_erk = SelectionConfig(kind="adaptive_bn", pool="erk")
    without = fedtiny.Config(
        method="fedtiny_flow", pruning=PruningConfig(flow_beta=0.9), selection=by_erk
    )
    assert unused_settings(without) == [
        "without effect: --pruning.flow-beta (synaptic flow sets no layer budgets)"
    ]


def test_candidates_that_nobody_compares_are_named():
    asked = SelectionConfig(pool="flow,erk", pool_size=20)
    assert unused_settings(fedtiny.Config(method="fedtiny_flow", selection=asked)) == [
        "without effect: --selection.pool-size (nothing is selected)",
        "without effect: --selection.pool beyond flow (nothing is selected)",
    ]


def test_what_a_budget_of_memory_has_chosen_is_not_in_vain():
    asked = SelectionConfig(batch_size=16)
    config = fedtiny.Config(method="fedtiny_flow", selection=asked)
    assert len(unused_settings(config)) == 1
    assert unused_settings(replace(config, memory_budget="1MB")) == []


@pytest.mark.parametrize(("budgets", "normalized"), [("uniform", False), ("flow", True)])
def test_synflow_scores_by_the_flow_of_its_budgets(budgets, normalized):
    bench = lab(config_of("synflow", budgets))
    bench.method.flow.normalized = True
    seen, plain = set(), bench.server.public.synaptic_flow
    bench.server.public.synaptic_flow = lambda theta, **how: (
        seen.add(how["normalized"]) or plain(theta, **how)
    )
    prepare(bench.server, bench.method)
    assert seen == {normalized}


@pytest.mark.parametrize(
    ("method", "budgets", "pool", "used"),
    [
        ("synflow", "uniform", None, False),
        ("synflow", "flow", None, True),
        ("fedtiny", "uniform", None, False),
        ("fedtiny", "uniform", "flow", True),
        ("fedavg", "uniform", None, False),
    ],
)
def test_settings_of_flow_without_flow_are_named(method, budgets, pool, used):
    pruning = PruningConfig(budgets=budgets, flow_floor=0.5, flow_normalize="always")
    config = fedtiny.Config(method=method, pruning=pruning, selection=SelectionConfig(pool=pool))
    named = "--pruning.flow-floor, --pruning.flow-normalize"
    expected = f"without effect: {named} (nothing is chosen by synaptic flow)"
    assert unused_settings(config) == ([] if used else [expected])
