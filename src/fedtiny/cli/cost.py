"""fedtiny cost."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from fedtiny import config as configs
from fedtiny import cost, methods
from fedtiny.cli.main import config_file_first
from fedtiny.config import Config, DataConfig, SelectionConfig
from fedtiny.config.presets import recipe_of
from fedtiny.cost.memory import MemoryModel
from fedtiny.cost.network import IMAGES
from fedtiny.cost.workload import PAPER_SAMPLES, CostInputs
from fedtiny.errors import ConfigError, did_you_mean, plural
from fedtiny.experiments.quantities import scientific
from fedtiny.methods.pool import ESTIMATED
from fedtiny.models import KINDS, READS, STANDARD
from fedtiny.runs import formatting

PROG = "fedtiny cost [CONFIG.toml]"
PAPER_DENSITIES: tuple[float, ...] = (0.01, 0.005, 0.001)
PAPER_CONFIG = Config(data=DataConfig(name="cifar10"), selection=SelectionConfig(pool_size="auto"))
Row = dict[str, Any]


@dataclass(frozen=True)
class Arguments:
    """What training costs one device: FLOPs, memory and bytes, worked out without training.

    Settings come from the config file, if one is named first, and from flags, which win. Without
    a file they are the paper's: CIFAR-10, 5 epochs, batches of 64, a pool of 0.1 / density.
    """

    model: str | None = None
    """Network: see `fedtiny list models`."""
    density: tuple[float, ...] = ()
    """One or several target densities; default: the paper's."""
    methods: tuple[str, ...] = ()
    """Methods to cost; default: all of fedtiny's own."""
    memory_budget: str | None = None
    """Give the largest density that fits into so much memory, say 400MB, in place of densities."""
    memory_model: MemoryModel | None = None
    """What the budget counts: all that a device needs (the default), or the paper's items."""
    flops_budget: str | None = None
    """Most FLOPs of a plain round, say 2% of the dense network's or 1.5e12: lowers the density."""
    budgets: Literal["uniform", "erk", "flow"] | None = None
    """How kept weights are spread over layers."""
    flow_beta: float | None = None
    """The point on the curve of budgets `flow`, if no budget of FLOPs chooses it."""
    flow_floor: float | None = None
    """Budgets `flow`: the least share of its uniform count that a projection shortcut keeps."""
    flow_normalize: Literal["never", "auto", "always"] | None = None
    """Budgets `flow`: divide what a unit lets through by its mean."""
    data: str | None = None
    """Data set whose images and classes are meant."""
    shape: tuple[int, ...] | None = None
    """Channels, height and width of an image, channels and time of a sequence, or the features of a
    table; default: the data set's."""
    classes: int | None = None
    """Number of classes; default: the data set's."""
    samples: int = PAPER_SAMPLES
    """Training samples of the device."""
    width: int | None = None
    """Channels of the network's first layer; default: the network's own."""
    local_epochs: int | None = None
    """Epochs on a device in a round."""
    batch_size: int | None = None
    """Samples in a mini-batch."""
    optimizer: Literal["adam", "sgd"] | None = None
    """Whose state a device holds."""
    pool_size: int | Literal["auto"] | None = None
    """Number of candidates C; auto is 0.1 / density."""
    rounds: int | None = None
    """Rounds of the run, for epsilon; default: the data set's."""
    devices: int | None = None
    """Devices of the run, for privacy."""
    fraction: float | None = None
    """Share of the devices that a round asks, for privacy."""
    growth: Literal["gradient", "random", "shared", "fisher", "votes"] | None = None
    """How weights grow, which decides what devices send in adjusting rounds."""
    secure_aggregation: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Count the bytes and the work of masked replies, keys and shares."""
    epsilon: float | None = None
    """Differential privacy: the noise for this budget in all rounds."""
    noise_multiplier: float | None = None
    """Differential privacy: the epsilon that this noise leaves after all rounds."""
    layers: bool = False
    """Show FLOPs by layer too, for one image."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as JSON."""


def command(arguments: list[str]) -> int:
    """Parse, work out and print."""
    base, densities = PAPER_CONFIG, PAPER_DENSITIES
    file, flags = config_file_first(arguments)
    if file:
        base = configs.load(file, programs=True)
        densities = (base.density,)
    parsed = tyro.cli(Arguments, prog=PROG, args=flags)
    if parsed.samples < 2:
        raise ConfigError(f"--samples must be at least 2, got {parsed.samples}")
    config, inputs = _config(parsed, base), _inputs(parsed, base)
    if len(names := _methods(parsed)) == 1:
        config = _of_method(names[0], config, parsed, base)
    rows = _rows(parsed, config, base, parsed.density or densities, inputs)
    layers: list[Row] = []
    if parsed.layers:
        shown = dict.fromkeys(row["density"] for row in rows if row["density"] is not None)
        for density in shown:
            layers += cost.layers(replace(config, density=density), **inputs)
    if parsed.json:
        print(json.dumps(_document(config, inputs, rows, layers), indent=1))
        return 0
    console = Console(highlight=False)
    console.print(_cost_table(rows))
    if layers:
        console.print(_layer_table(layers))
    chosen = _chosen(rows, config)
    for line in (
        _settings(config, inputs),
        *_of_all_parameters(rows),
        *chosen,
        *_selections(rows),
        *_private(rows),
        *_notes(rows),
    ):
        console.print(line, markup=False)
    return 0


def _config(arguments: Arguments, base: Config) -> Config:
    train = _said(arguments, "local_epochs", "batch_size", "optimizer")
    pruning = _said(arguments, "budgets", "flow_beta", "flow_floor", "flow_normalize", "growth")
    own = _said(
        arguments, "model", "width", "memory_budget", "memory_model", "flops_budget", "rounds"
    )
    hidden = base.privacy.secure_aggregation or arguments.secure_aggregation
    names = _methods(arguments)
    config = replace(
        base,
        method=names[0] if len(names) == 1 else base.method,
        **own,
        data=replace(base.data, name=arguments.data or base.data.name),
        train=replace(base.train, **train),
        selection=replace(base.selection, **_said(arguments, "pool_size")),
        pruning=replace(base.pruning, **pruning),
        fleet=replace(base.fleet, **_said(arguments, "devices", "fraction")),
        privacy=replace(
            base.privacy,
            secure_aggregation=hidden,
            **_said(arguments, "epsilon", "noise_multiplier"),
        ),
    )
    return configs.resolve(config)


def _methods(arguments: Arguments) -> list[str]:
    """The methods whose costs are asked for."""
    return [methods.find(name).name for name in arguments.methods] or list(methods.OURS)


def _said(arguments: Arguments, *names: str) -> dict[str, Any]:
    """The flags among these that were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _inputs(arguments: Arguments, base: Config) -> CostInputs:
    name = arguments.data or base.data.name
    if name not in IMAGES and not (arguments.shape and arguments.classes):
        hint = did_you_mean(name, IMAGES) or "; give --shape and --classes"
        raise ConfigError(f"the samples of data set '{name}' are not known{hint}")
    shape, classes = IMAGES.get(name, ((), 0))
    _check_shape(arguments.model or base.model, arguments.shape or shape, arguments)
    return {
        "shape": arguments.shape or shape,
        "classes": arguments.classes or classes,
        "samples": arguments.samples,
    }


def _check_shape(model: str, shape: tuple[int, ...], arguments: Arguments) -> None:
    """A network of sequences or tables needs a shape: no data set that is known by name has one."""
    reads = KINDS[model].dimensions if model in KINDS else len(shape)
    if reads != len(shape) and not arguments.shape:
        example = " ".join(map(str, STANDARD[reads]))
        raise ConfigError(f"{model} reads {READS[reads]}; give --shape, such as --shape {example}")


def _rows(
    arguments: Arguments,
    config: Config,
    base: Config,
    densities: tuple[float, ...],
    inputs: CostInputs,
) -> list[Row]:
    asked = [_of_method(name, config, arguments, base) for name in _methods(arguments)]
    if arguments.memory_budget and arguments.density:
        raise ConfigError("give either --density or --memory-budget, not both")
    if arguments.density:
        asked = [replace(one, memory_budget=None) for one in asked]
    if arguments.density or not config.memory_budget:
        asked = list(dict.fromkeys(_at(one, density) for density in densities for one in asked))
    rows = [cost.fitting_summary(one, **inputs) for one in asked]
    for one, row in zip(asked, rows, strict=True):
        _, is_estimate = _layer_budgets(one.method, arguments, base)
        if is_estimate and row["density"] is not None:
            row["notes"].append(ESTIMATED)
    if all(row["density"] is None for row in rows):
        raise ConfigError(_why_nothing(rows))
    return rows


def _of_method(name: str, config: Config, arguments: Arguments, base: Config) -> Config:
    """The config of a row: all train alike, but what a method selects and keeps is its own."""
    own = recipe_of(name)
    kind = base.selection.kind or own["selection"]["kind"]
    said = (arguments.flow_floor, base.pruning.flow_floor, own["pruning"]["flow_floor"])
    budgets, _ = _layer_budgets(name, arguments, base)
    floor = next(value for value in said if value is not None)
    pruning = replace(config.pruning, budgets=budgets, flow_floor=floor)
    selection = replace(config.selection, kind=kind)
    return replace(config, method=name, selection=selection, pruning=pruning)


def _layer_budgets(name: str, arguments: Arguments, base: Config) -> tuple[Any, bool]:
    """The layer budgets asked for, or a method's own, and whether ERK's stand in for flow's.

    Flow is measured only where it is asked about, or where FLOPs must be exact.
    """
    if asked := arguments.budgets or base.pruning.budgets:
        return asked, False
    own = recipe_of(name)["pruning"]["budgets"]
    flags = (arguments.flow_beta, arguments.flow_floor, arguments.flow_normalize)
    asks = any(flag is not None for flag in flags) or _sets_flow(base)
    if own != "flow" or asks or arguments.flops_budget or base.flops_budget:
        return own, False
    return "erk", True


def _sets_flow(base: Config) -> bool:
    """Whether a file says something of synaptic flow."""
    usual, names = PAPER_CONFIG.pruning, ("flow_beta", "flow_floor", "flow_normalize")
    return any(getattr(base.pruning, name) != getattr(usual, name) for name in names)


def _why_nothing(rows: list[Row]) -> str:
    """Why no method has costs; of several that do not fit the least demanding speaks for all."""
    if len(rows) > 1 and all("least_memory" in row for row in rows):
        nearest = min(rows, key=lambda row: row["least_memory"])
        return f"no method fits, and the least demanding is this: {nearest['notes'][0]}"
    return "; ".join(dict.fromkeys(note for row in rows for note in row["notes"]))


def _at(config: Config, density: float) -> Config:
    """The config at a density; a method that stays dense has one alone."""
    return replace(config, density=1.0 if methods.find(config.method).dense else density)


def _document(config: Config, inputs: CostInputs, rows: list[Row], layers: list[Row]) -> Row:
    settings = configs.to_dict(config)
    shared = {name: settings[name] for name in settings if name not in ("method", "density")}
    document = {"settings": shared, **inputs, "rows": rows}
    return document | ({"layers": layers} if layers else {})


def _settings(config: Config, inputs: CostInputs) -> str:
    shape, train = "x".join(map(str, inputs["shape"])), config.train
    epochs = plural(train.local_epochs or 0, "epoch")
    return (
        f"{config.model}: {plural(inputs['samples'], 'sample')} of {shape}, {epochs}, "
        f"batches of {train.batch_size}, {train.optimizer}. FLOPs and memory of the costliest "
        "round; bytes of a plain round."
    )


def _of_all_parameters(rows: list[Row]) -> list[str]:
    """What share of all parameters a density of the prunable weights is, for each network."""
    sparse = [row for row in rows if row["density"] is not None and row["whole_density"] < 1]
    told = [f"{_density(row)} is {row['whole_density']:.3g}" for row in sparse]
    return [f"of all parameters, density {', '.join(dict.fromkeys(told))}"] if told else []


def _chosen(rows: list[Row], config: Config) -> list[str]:
    """What budgets chose beside the density, and the plain round that a budget of FLOPs counts."""
    told = []
    for row in (row for row in rows if row["density"] is not None):
        parts = []
        if config.flops_budget:
            share = row["flops_plain"] / row["flops_dense_round"]
            parts.append(f"{scientific(row['flops_plain'])} FLOPs in a plain round ({share:.2%})")
        if row["flow_beta"] is not None:
            parts.append(f"flow-beta {row['flow_beta']:g}")
        if row["batch_size"] != config.train.batch_size:
            parts.append(f"batches of {row['batch_size']}")
        if parts:
            told.append(f"{row['method']} at density {_density(row)}: {', '.join(parts)}")
    return told


def _asks(candidates: int) -> str:
    return f"compares {plural(candidates, 'candidate')}" if candidates else "asks devices"


def _selections(rows: list[Row]) -> list[str]:
    return [
        f"{row['method']} at density {_density(row)} first "
        f"{_asks(row['pool_size'])}: "
        f"{scientific(row['selection_flops'])} FLOPs, "
        f"{formatting.size(row['selection_bytes_down'])} down, "
        f"{formatting.size(row['selection_bytes_up'])} up "
        f"(the paper counts {formatting.size(row['selection_bytes_paper'])} down)"
        for row in rows
        if row.get("selection_flops")
    ]


def _private(rows: list[Row]) -> list[str]:
    """What privacy takes, each sentence once for all rows that it is true of."""
    told = _epsilon_lines([row for row in rows if "privacy" in row])
    for row in (row for row in rows if "secure_aggregation" in row):
        told += _mask_lines(row["secure_aggregation"], row)
    return list(dict.fromkeys(told))


def _epsilon_lines(rows: list[Row]) -> list[str]:
    """Methods that ask devices equally often share a sentence; if all do, it names none."""
    told: dict[str, list[str]] = {}
    for row in rows:
        told.setdefault(_epsilon_line(row["privacy"]), []).append(row["method"])
    by = [f" by {', '.join(dict.fromkeys(own))}" * (len(told) > 1) for own in told.values()]
    return [
        f"differential privacy of a device{who}: {line}" for who, line in zip(by, told, strict=True)
    ]


def _epsilon_line(told: Row) -> str:
    return (
        f"epsilon {formatting.epsilon(told)} at delta "
        f"{told['delta']:.2g} after {told['releases']} questions to devices, noise multiplier "
        f"{told['noise_multiplier']:.3g}, sampling {told['sampling']}, noise by the {told['noise']}"
    )


def _mask_lines(told: Row, row: Row) -> list[str]:
    where = f"{row['method']} at density {_density(row)}"
    size = formatting.size
    lines = [
        f"secure aggregation, {told['devices']} devices with {told['neighbors']} neighbors each: "
        f"{where} takes {size(told['extra_bytes_down'])} more down and "
        f"{size(told['extra_bytes_up'])} more up, and a device makes {told['masks']} masks, "
        f"{size(told['mask_bytes'])} of key stream"
    ]
    if told["table_bytes"]:
        lines.append(
            f"{where}: the largest gradients travel in a table of {size(told['table_bytes'])} a "
            f"device, {size(row['bytes_adjusting_up'])} up in all in a round that adjusts"
        )
    return lines


def _notes(rows: list[Row]) -> list[str]:
    told = ((row.get("left_out"), note) for row in rows for note in row["notes"])
    return list(dict.fromkeys(f"left out: {note}" if out else note for out, note in told))


def _cost_table(rows: list[Row]) -> Table:
    headings = ("method", *COLUMNS)
    title = "Cost of a round, for one device"
    table = formatting.titled(title, *headings, left=("method",), no_wrap=True)
    table.padding = (0, 1, 0, 0)
    for row in (row for row in rows if not row.get("left_out")):
        there = row["density"] is not None
        cells = [show(row) for show in COLUMNS.values()] if there else ["none"]
        table.add_row(row["method"], *cells, end_section=row["method"] == rows[-1]["method"])
    return table


def _density(row: Row) -> str:
    """Rounded down, so that what is copied still fits."""
    return f"{floor(1e6 * row['density'] + 1e-4) / 1e6:g}"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "density": _density,
    "FLOPs": lambda row: scientific(row["flops_round"]),
    "ratio": lambda row: f"{row['flops_ratio']:.4f}",
    "memory\n(paper)": lambda row: formatting.size(row["memory_paper"]),
    "memory\n(device)": lambda row: formatting.size(row["memory_device"]),
    "down": lambda row: formatting.size(row["bytes_down"]),
    "up": lambda row: formatting.size(row["bytes_up"]),
}


def _layer_table(layers: list[Row]) -> Table:
    headings = (name.replace("_", "\n") for name in layers[0])
    table = formatting.titled("FLOPs by layer, for one sample", *headings, left=("name",))
    table.padding = (0, 1, 0, 0)
    for layer in layers:
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v) for v in layer.values()))
    return table
