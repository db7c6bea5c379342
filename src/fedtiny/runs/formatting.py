"""How numbers and tables of a run are put for a reader; shared by the live display and inspect."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedtiny import methods
from fedtiny.config import Config, DataConfig, FleetConfig, RunConfig, resolve
from fedtiny.config.flat import flat
from fedtiny.config.presets import recipe_of
from fedtiny.cost import Workload
from fedtiny.cost.flops import dense_round, plain
from fedtiny.cost.memory import total
from fedtiny.errors import plural
from fedtiny.federation.method import Method
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs.metrics import Record, number
from fedtiny.sparse.flow import LayerFlow

MAX_COLUMNS = 20
ROUND_HEADINGS = ("round", "accuracy", "loss", "density", "swapped", "down", "up", "s", "missing")
VALIDATING = "accuracy is that of samples held out of the training set; the test set is not used"
NO_GPU = "there is no GPU here: the GPU simulator computes on the CPU, slowly"
SEVERAL = "torchrun --nproc-per-node"  # how a run takes several GPUs


def size(count: float) -> str:
    """A number of bytes, in units of a thousand.

    >>> size(999), size(1_870_000), size(0)
    ('999 B', '1.87 MB', '0 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def spread(fleet: FleetConfig) -> str:
    """How images are spread over the devices."""
    return f"Dirichlet({fleet.alpha:g})" if fleet.partition == "dirichlet" else fleet.partition


def headline(
    config: Config,
    table: NDArray[np.int64] | None = None,
    param_spec: ParamSpec | None = None,
    backend: str = "",
) -> str:
    """A run in one line; with its network, what share of all parameters the density is.

    The table is that of the samples of each device and class.
    """
    width = f" (width {config.width})" if config.width else ""
    share = f" ({_of_all_parameters(config, param_spec)})" if param_spec else ""
    computes = f"; {backend}" if backend else ""
    return (
        f"{config.method}: {config.model}{width} to density {config.density:g}{share} on "
        f"{config.data.name}, {fleet_line(config, table)}{computes}"
    )


def _of_all_parameters(config: Config, param_spec: ParamSpec) -> str:
    """The target as a share of all parameters."""
    share = param_spec.whole_density(config.density * param_spec.prunable_count)
    return f"{share:.3g} of all parameters"


def whole_line(result: dict[str, Any]) -> str:
    """The share of all parameters that a finished run keeps, if it is told."""
    share = number(result, "whole_density")
    return "" if share is None else f", {share:.3g} of all parameters"


def fleet_line(config: Config, table: NDArray[np.int64] | None = None) -> str:
    """Who trains on what, and for how long; of real devices' own data the table has no sample."""
    fleet = config.fleet
    rounds = "rounds by the preset" if config.rounds is None else plural(config.rounds, "round")
    if table is not None and not table.any():
        return f"own data of {plural(fleet.devices, 'node')}, {rounds}"
    return f"{plural(fleet.devices, 'device')}, {spread(fleet)}, {rounds}"


def budget_lines(config: RunConfig, work: Workload, arena: int | None) -> list[str]:
    """What was chosen to meet the budgets of a run, and what a device needs by every count."""
    chosen = [f"density {config.density:.4g}"]
    if config.pruning.budgets == "flow":
        chosen.append(f"flow-beta {config.pruning.flow_beta:g}")
    if config.memory_budget and config.memory_model == "device":
        chosen.append(f"batches of {config.train.batch_size}")
        if arena is not None:
            chosen.append(f"activations in {config.device.storage}")
            chosen += ["recomputing"] * config.device.recompute
    budgets = [config.memory_budget, config.flops_budget and f"{config.flops_budget} FLOPs"]
    native = "" if arena is None else f", {size(arena)} in the arena of a native device"
    flops = plain(work)
    return [
        f"to fit {' and '.join(filter(None, budgets))}: {', '.join(chosen)}",
        f"memory of a device: {size(total(work, 'paper'))} as the paper counts, "
        f"{size(total(work, 'device'))} with PyTorch's activations{native}; a plain round: "
        f"{flops:.3g} FLOPs, {flops / dense_round(work):.2%} of the dense network's",
    ]


def selection_line(selection: dict[str, Any]) -> str:
    """The chosen candidate in one line."""
    choice = selection["selection"]
    losses, chosen = choice["losses"], choice["chosen"]
    finite = [loss for loss in losses if loss is not None]
    kind = f" ({choice['kinds'][chosen]})" if "kinds" in choice else ""
    return (
        f"chosen candidate {chosen + 1} of {len(losses)}{kind}: loss {losses[chosen]:.3f} "
        f"(pool {min(finite):.3f} to {max(finite):.3f}){_tie(choice)}, "
        f"density {choice['densities'][chosen]:.4f}, "
        f"{size(selection['bytes_down'])} down, {size(selection['bytes_up'])} up"
        f"{_suspected(selection)}"
    )


def _tie(choice: dict[str, Any]) -> str:
    """How a candidate was taken whose loss cannot be told from those of others.

    >>> _tie({"tied": [0, 3, 4], "tolerance": 0.003, "rule": "most useful weights"})
    ', 3 losses cannot be told apart (within 0.003): taken by most useful weights'
    """
    if len(choice.get("tied", ())) < 2:
        return ""
    within = f"{len(choice['tied'])} losses cannot be told apart (within {choice['tolerance']:g})"
    return f", {within}: taken by {choice['rule']}"


def round_line(record: Record, rounds: int) -> str:
    """A round in one line."""
    digits = len(str(rounds))
    parts = [f"round {record['round_number']:>{digits}}/{rounds}"]
    if record["accuracy"] is not None:
        parts.append(f"accuracy {record['accuracy']:.4f}  loss {record['loss']:.3f}")
    if record.get("device_accuracy_worst") is not None:
        parts.append(
            f"devices {record['device_accuracy_mean']:.4f} "
            f"(worst {record['device_accuracy_worst']:.4f})"
        )
    if "epsilon" in record:
        parts.append(f"epsilon {epsilon(record)}")
    parts.append(f"density {record['density']:.4f}")
    parts.append(f"swapped {record['mask_change']:>5}")
    parts.append(f"{size(record['bytes_down'])} down  {size(record['bytes_up'])} up")
    parts.append(f"{record['seconds']:.1f} s")
    return "  ".join(parts) + _missing(record) + _suspected(record)


def epsilon(told: Any) -> str:
    """The epsilon of a record or a result; without noise there is none.

    >>> epsilon({"epsilon": 7.123}), epsilon({"epsilon": None})
    ('7.12', 'inf')
    """
    found = number(told, "epsilon")
    return "inf" if found is None else f"{found:.2f}"


def privacy_line(result: dict[str, Any], rounds: int) -> str:
    """What a finished run has spent, and whether it stopped at its budget."""
    told, played = result["privacy"], result["rounds"]
    line = (
        f"differential privacy of a device: epsilon {epsilon(told)} at delta "
        f"{told['delta']:.2g}, noise multiplier {told['noise_multiplier']:.3g}"
    )
    if played >= rounds:
        return line
    return f"{line}; stopped after round {played} of {rounds}: another would exceed the budget"


def round_cells(record: Record) -> list[str]:
    """A round in the columns of `ROUND_HEADINGS`; what is not known is left blank."""

    def told(key: str, form: str) -> str:
        value = number(record, key)
        return "" if value is None else format(value, form)

    moved = (number(record, f"bytes_{way}") for way in ("down", "up"))
    failed = record.get("failed")
    return [
        str(record["round_number"]),
        told("accuracy", ".4f"),
        told("loss", ".3f"),
        told("density", ".4f"),
        told("mask_change", ",.0f"),
        *("" if value is None else size(value) for value in moved),
        told("seconds", ".1f"),
        ", ".join(map(str, failed)) if isinstance(failed, dict) else "",
    ]


def gpu_line(result: dict[str, Any]) -> str:
    """What the GPU carried, that of rank 0 of several, in one line."""
    cards = ", ".join(result["cards"])
    rank = f", the first of {result['ranks']} ranks" if "ranks" in result else ""
    kernels = " and ".join(result.get("kernels", ()))
    trained = f"{kernels} kernels, " if kernels else ""
    used = size(result["gpu_memory"])
    return f"on {cards}{rank}: {trained}{plural(result['lanes'], 'lane')}, {used} of GPU memory"


def idle_gpus_line(count: int) -> str:
    """That a process takes one of the machine's GPUs, and what takes all."""
    return f"this run takes one of {count} GPUs; all take part with: {SEVERAL} {count} -m fedtiny"


def _missing(record: Record) -> str:
    if not record["failed"]:
        return ""
    reasons: dict[str, list[str]] = {}
    for device, why in record["failed"].items():
        reasons.setdefault(why, []).append(device)
    listed = "; ".join(f"{', '.join(devices)} {why}" for why, devices in reasons.items())
    outcome = "" if record["counted"] else " - too few replies, the round does not count"
    return f"  (devices missing: {listed}{outcome})"


def _suspected(record: Record) -> str:
    """Who was out of the others' bounds, and why a round was repeated."""
    out = "; ".join(f"{device} {why}" for device, why in record.get("bounded", {}).items())
    told = f"  (devices out of bounds: {out})" if out else ""
    if rejected := record.get("rejected"):
        without = ", ".join(map(str, rejected["without"])) or "anybody suspected"
        told += f"  (not accepted: {rejected['why']}; repeated without {without}"
        told += ")" if rejected["then"] == "accepted" else f": {rejected['then']})"
    return told


def titled(
    title: str,
    *columns: str,
    left: Sequence[str] = (),
    no_wrap: bool = False,
    close: bool = False,
) -> Table:
    """An empty table in the house style; columns in `left` are words, the others numbers.

    Many columns stand `close`, so that a terminal has room for them.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    if close:
        table.pad_edge, table.padding = False, (0, 1, 0, 0)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=no_wrap)
    return table


def partition_table(
    table: NDArray[np.int64], classes: tuple[str, ...] = (), width: int = 80
) -> Table:
    """Samples by device and class; of more classes than `width` has room for, how uneven they are.

    Names of classes may be broken, numbers are not.
    """
    shown = titled("Training samples by device and class", close=True)
    sums = table.sum(axis=1, keepdims=True)
    names = [escape(name) for name in classes or map(str, range(table.shape[1]))]
    if table.shape[1] > MAX_COLUMNS or _needed(np.hstack([sums, table])) > width:
        names = ["classes", "largest class"]
        table = np.hstack(
            [(table > 0).sum(axis=1, keepdims=True), table.max(axis=1, keepdims=True)]
        )
    widest = [len(str(column.max())) for column in table.T]
    shown.add_column("device", justify="right", min_width=len("device"))
    shown.add_column("all", justify="right", style="bold", min_width=len(str(sums.max())))
    for name, least in zip(names, widest, strict=True):
        shown.add_column(name, justify="right", min_width=least, overflow="fold")
    for device, (samples, row) in enumerate(zip(sums[:, 0], table, strict=True)):
        cells = [n or "[dim]·[/dim]" for n in row]
        shown.add_row(*map(str, (device, samples, *cells)))
    return shown


def _needed(numbers: NDArray[np.int64]) -> int:
    """The width of a table of these numbers, beside those of the devices."""
    return sum(2 + len(str(column.max())) for column in numbers.T) + len("device") + 2


def layer_table(record: Record) -> Table:
    """Density by layer, drawn as bars, with what of it can reach the output; then of the model."""
    shown = titled("Density by layer", "layer", "density", "effective", "", left=("layer", ""))
    effective, densities = record.get("effective_densities") or {}, record.get("densities", {})
    most = max(densities.values(), default=1.0) or 1.0
    for layer, density in densities.items():
        name, useful = layer.removesuffix(".weight"), _share(effective.get(layer))
        shown.add_row(name, f"{density:.4f}", useful, bar(density / most))
    shown.add_section()
    shown.add_row("all", _share(record.get("density")), _share(record.get("effective_density")))
    return shown


def _share(share: float | None) -> str:
    """A share, or nothing where it is not known."""
    return "" if share is None else f"{share:.4f}"


def bar(share: float, width: int = 24) -> Text:
    """A share between 0 and 1 as a bar."""
    return Text("█" * max(1, round(share * width)), style="cyan")


OWN_SETTINGS = {
    **dict.fromkeys(("pruning.growth", "pruning.drop"), ("fedtiny",)),
    **dict.fromkeys(("pruning.reclaim", "pruning.redistribute"), ("fedtiny",)),
    **dict.fromkeys(("pruning.granularity", "pruning.order"), ("fedtiny",)),
    "pruning.extrude": ("fedtiny", "set"),
    "pruning.draw": ("fedrts",),
    "pruning.gradient_epsilon": ("fedtiny", "feddst", "fedsgc", "fedmef", "fedrts", "fedfit"),
    "pruning.rescale": tuple({*methods.OURS} - {"fedavg", "lotteryfl", "small_model"}),
    **dict.fromkeys(("selection.pool", "selection.tolerance"), ("fedtiny", "fedtiny_flow")),
}
"""Settings that some of our methods go by, and which; others keep their masks or have one rule."""


OF_SELECTION = (
    *("selection.tolerance", "selection.development_ratio", "selection.batch_size"),
    *("selection.passes", "selection.variance", "selection.pool_size"),
)
"""What has no effect without selection."""


OF_FLOW_BUDGETS = ("pruning.flow_beta", "pruning.flow_floor")
"""What has no effect unless synaptic flow sets layer budgets."""


def not_gone_by(config: Config) -> set[str]:
    """Return the settings that one of our methods does not go by, whatever their values are.

    >>> "pruning.gradient_epsilon" in not_gone_by(Config(method="synflow"))
    True
    """
    if config.method not in methods.OURS:
        return set()
    return {name for name, known in OWN_SETTINGS.items() if config.method not in known}


def flow_lines(config: Config, method: Method, flow: LayerFlow) -> Iterator[str]:
    """What the network makes of the settings of synaptic flow."""
    if flow.normalized:
        yield "synaptic flow is normalized unit by unit (--pruning.flow-normalize)"
    if _is_asked_for(config, "flow_floor") and method.has_flow_budgets and not flow.floors:
        yield "without effect: --pruning.flow-floor (the network has no projection shortcuts)"


def rescale_lines(config: Config, param_spec: ParamSpec, layers: Collection[str]) -> Iterator[str]:
    """That no layer is rescaled, though it was asked for or there is batch norm to do so."""
    if not layers and (param_spec.norms or _is_asked_for(config, "rescale")):
        yield (
            "without effect: --pruning.rescale (as far as the network can be traced, no pruned "
            "layer is read by batch norm alone)"
        )


def _is_asked_for(config: Config, setting: str) -> bool:
    """Whether a setting of pruning is neither off nor what the method has of its own."""
    own = recipe_of(config.method)["pruning"][setting]
    return getattr(config.pruning, setting) not in (0, own)


def unused_settings(*configs: Config) -> list[str]:
    """What was set and changes nothing, each reason in a line; every line once.

    What a config leaves to be chosen is not judged.

    >>> unused_settings(Config(simulator="gpu", workers=4))
    ['without effect: --workers (the GPU simulator has no processes to share work with)']
    """
    return list(dict.fromkeys(line for config in configs for line in _unused(config)))


def _unused(config: Config) -> Iterator[str]:
    gpu = config.simulator == "gpu"
    reasons = {
        "workers": (gpu, "the GPU simulator has no processes to share work with"),
        "device.": (gpu or config.device_backend == "torch", "the devices are not native"),
        "gpu.": (config.simulator == "reference", "the devices are not simulated on a GPU"),
        "gpu.cards": (gpu, f"a process takes one GPU; take more with {SEVERAL} N -m fedtiny"),
    }
    own = Config(method=config.method, recipe=config.recipe, data=DataConfig(config.data.name))
    usual = {"workers": 1} | flat(resolve(own))
    changed = [name for name, value in flat(config).items() if value != usual.get(name)]
    yield from _unused_budgets(config)
    in_vain = [name for name in OWN_SETTINGS if name in not_gone_by(config) & {*changed}]
    if in_vain:
        it = "it" if len(in_vain) == 1 else "them"
        yield f"without effect: {_flags(in_vain)} ({config.method} does not go by {it})"
    if config.method in methods.OURS:
        yield from _unused_of_flow(config, changed)
    yield from _unused_of_selection(config, changed)
    if not gpu and (config.workers or 1) > config.fleet.devices:
        most = config.fleet.devices
        yield f"without effect: --workers above {most} (there is no more to do for a process each)"
    for start, (is_in_vain, why) in reasons.items():
        named = [name for name in changed if name.startswith(start)]
        if is_in_vain and named:
            yield f"without effect: {_flags(named)} ({why})"


def _unused_budgets(config: Config) -> Iterator[str]:
    """Layer budgets that a method cannot have."""
    budgets = config.pruning.budgets
    if budgets not in (None, "uniform") and (why := without_budgets(config)):
        yield f"without effect: --pruning.budgets {budgets} ({config.method} {why})"


def without_budgets(config: Config) -> str:
    """Why a method cannot have the layer budgets that are asked for; nothing if it can."""
    budgets, method = config.pruning.budgets, methods.find(config.method)
    if method.global_threshold:
        return "" if budgets in (None, "global") else "has one threshold for all layers"
    if budgets in (None, *method.budgets):
        return ""
    if budgets == "global":
        return "has no scores of its own to set a threshold"
    others = ", ".join(method.budgets)
    return f"has other layer budgets: {others}" if others else "prunes no layer"


def _unused_of_flow(config: Config, changed: Iterable[str]) -> Iterator[str]:
    """Settings of flow where nothing goes by it, or where it sets no layer budgets."""
    flow = [name for name in changed if name.startswith("pruning.flow_")]
    method = methods.create(resolve(config))
    why = "nothing is chosen by synaptic flow"
    if method.needs_flow:
        flow = [] if method.has_flow_budgets else [n for n in flow if n in OF_FLOW_BUDGETS]
        why = "synaptic flow sets no layer budgets"
    if flow:
        yield f"without effect: {_flags(flow)} ({why})"


def _unused_of_selection(config: Config, changed: Iterable[str]) -> Iterator[str]:
    """Settings of selection where one candidate is cut; its kind is the first one asked for."""
    selection = resolve(config).selection
    if selection.kind != "none" or config.method not in OWN_SETTINGS["selection.tolerance"]:
        return
    in_vain = [name for name in changed if name in OF_SELECTION]
    if config.memory_budget:  # which may have lowered the batch
        in_vain = [name for name in in_vain if name != "selection.batch_size"]
    if in_vain:
        yield f"without effect: {_flags(in_vain)} (nothing is selected)"
    first, _, others = (selection.pool or "").partition(",")
    if others:
        yield f"without effect: --selection.pool beyond {first} (nothing is selected)"


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
