"""The runs of an experiment at a scale, each with its place in the table, and parts of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat
from fedtiny.errors import ConfigError
from fedtiny.experiments import reading
from fedtiny.experiments.experiment import Axis, Choice, Experiment
from fedtiny.experiments.quantities import label
from fedtiny.experiments.scale import Scale

NOT_VARIANTS = ("method", "model", "data", "density")
"""Axes that a filter has flags of their own for."""


@dataclass(frozen=True)
class Cell:
    """A run, with the name of its run folder."""

    config: Config
    name: str


@dataclass(frozen=True)
class Coordinate:
    """Where a run stands on an axis: the setting or the variant's name, and how it is shown.

    `rank` is the place among the axis's values.
    """

    value: Any
    label: str
    rank: int


@dataclass(frozen=True, eq=False)
class Place:
    """A run but for its seed: what it is, where it stands, and its twin in the paper."""

    stem: str
    config: Config
    asked: Config
    twin: str
    """The name of what the paper asked for."""
    at: Mapping[str, Coordinate]

    @property
    def dense(self) -> bool:
        """Whether the run has no density to choose."""
        return self.config.density == 1

    def cell(self, seed: int) -> Cell:
        """The run with this seed."""
        return Cell(replace(self.config, seed=seed), f"{self.stem}-s{seed}")

    def where(self, *axes: str) -> tuple[Any, ...]:
        """The values on these axes."""
        return tuple(self.at[axis].value for axis in axes)


def places(experiment: Experiment, scale: Scale, paper: Scale) -> list[Place]:
    """Every run of an experiment, most telling first; what falls together is run once."""
    found: dict[tuple[Any, ...], Place] = {}
    for chosen in experiment.combinations():
        place = _place(experiment, scale, paper, chosen)
        found.setdefault(place.where(*place.at), place)
    return list(found.values())


def along(places: Sequence[Place], axis: str) -> list[Coordinate]:
    """What stands on an axis, in the order of the file; density 1 comes before all others."""
    found: dict[Any, Coordinate] = {}
    for place in places:
        found.setdefault(place.at[axis].value, place.at[axis])
    return sorted(found.values(), key=lambda at: at.rank)


def in_order(places: Sequence[Place], axes: Sequence[str]) -> list[Place]:
    """The same places as a table has them: by the first axis, then by the second and so on."""
    return sorted(places, key=lambda place: [place.at[axis].rank for axis in axes])


def _place(
    experiment: Experiment, scale: Scale, paper: Scale, chosen: Mapping[str, Choice]
) -> Place:
    settings = dict(experiment.base)
    for choice in chosen.values():
        settings |= choice.settings
    try:
        config, asked = scale.config(settings), paper.config(settings)
    except ConfigError as error:
        raise ConfigError(f"experiment '{experiment.name}' at {scale.name}: {error}") from error
    ours = flat(config)
    at = {axis.name: _coordinate(axis, chosen[axis.name], ours) for axis in experiment.axes}
    if config.density == 1 and "density" in at:
        at["density"] = replace(at["density"], rank=-1)
    return Place(scale.stem(config), config, asked, paper.stem(asked), at)


def _coordinate(axis: Axis, choice: Choice, settings: Flat) -> Coordinate:
    """Where a choice stands; braces in a variant's label are filled in from the settings."""
    rank = axis.choices.index(choice)
    if axis.setting is not None:
        value = settings[axis.setting]
        return Coordinate(value, label(value), rank)
    text = choice.label or choice.name
    short = {name.rpartition(".")[2]: value for name, value in settings.items()}
    try:
        return Coordinate(choice.name, text.format_map(short), rank)
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"the label '{text}' names no setting: {error}") from error


@dataclass(frozen=True)
class Filter:
    """Only runs with one of these; nothing means all.

    A name may be the paper's or, if the scale has another in its place, that one. A run that stays
    dense passes for any density.
    """

    methods: tuple[str, ...] = ()
    """Run these methods only."""
    models: tuple[str, ...] = ()
    """Run these networks only."""
    datasets: tuple[str, ...] = ()
    """Run these data sets only."""
    density: tuple[float, ...] = ()
    """Run these densities only, as the scale has them; dense methods run in any case."""
    variants: tuple[str, ...] = ()
    """Run these variants only: values on any other axis, as the table shows them."""

    def of(self, places: Sequence[Place]) -> list[Place]:
        """The places that pass; a name that no place has is an error."""
        named = [(place, _names(place)) for place in places]
        passing = list(places)
        for kind, values in asdict(self).items():
            asked = [f"{value:g}" if kind == "density" else value for value in values]
            known = dict.fromkeys(name for _, names in named for name in names[kind])
            for name in asked:
                if name not in known:
                    raise ConfigError(f"--{kind}: no cell has '{name}' {reading.hint(name, known)}")
            having = [place for place, names in named if not set(asked).isdisjoint(names[kind])]
            free = [place for place in places if kind == "density" and place.dense]
            passing = [place for place in passing if not asked or place in having + free]
        return passing


def _names(place: Place) -> dict[str, list[str]]:
    """What a place is called in each respect: by its own settings and by the paper's."""
    config, asked = place.config, place.asked
    others = [at for axis, at in place.at.items() if axis not in NOT_VARIANTS]
    return {
        "methods": [config.method],
        "models": [config.model, asked.model],
        "datasets": [config.data.name, asked.data.name],
        "variants": [name for at in others for name in (str(at.value), at.label)],
        "density": [] if place.dense else [f"{config.density:g}"],
    }
