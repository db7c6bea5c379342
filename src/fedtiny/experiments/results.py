"""An experiment's results: ours beside the paper's, place by place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedtiny.config import Config
from fedtiny.config.flat import flat
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import Damaged, Found
from fedtiny.experiments.places import Place, in_order
from fedtiny.experiments.quantities import QUANTITIES, label
from fedtiny.experiments.scale import AS_IT_IS, POOL, Scale
from fedtiny.experiments.suite import Paper, Printed, printed

MISSING = "-"


@dataclass(frozen=True)
class Value:
    """The mean over seeds, and their standard deviation (of a sample)."""

    mean: float
    spread: float
    seeds: int


@dataclass(frozen=True)
class Results:
    """Everything that a table and a figure are made of."""

    experiment: Experiment
    places: Sequence[Place]
    found: Found
    scale: Scale = AS_IT_IS
    paper: Paper = field(default_factory=dict)
    damaged: Damaged = field(default_factory=dict)

    def ours(self, place: Place, quantity: str) -> Value | None:
        """What we measured at a place; nothing if no run is finished."""
        runs = self.found.get(place.stem, [])
        if not runs:
            return None
        values = [QUANTITIES[quantity].of(run.numbers) for run in runs]
        mean = float(values[0]) if len(set(values)) == 1 else fmean(values)
        return Value(mean, stdev(values) if len(values) > 1 else 0.0, len(values))

    def printed(self, place: Place, quantity: str) -> Printed | None:
        """What the paper prints for a place."""
        return printed(self.paper, place.twin, quantity, self.experiment.source)

    @property
    def missing(self) -> int:
        """Number of places without a finished run."""
        return sum(not self.found.get(place.stem) for place in self.places)

    def notes(self) -> list[str]:
        """What a reader must know beside the figures."""
        where = "in brackets" if self.experiment.table.columns else "beside"
        missing = f" {MISSING} is not run yet." if self.missing else ""
        scale = f"Scale {self.scale.name}: {self.scale.title}. {self._seeds()}"
        return [
            f"Ours, and the paper's {where}.{missing}",
            scale.strip(),
            *self.experiment.notes,
            *self._stand_ins(),
            *self._elsewhere(),
        ]

    def _seeds(self) -> str:
        if not self.experiment.trains:
            return ""
        done = len(self.places) - self.missing
        seeds = sorted({len(runs) for runs in self.found.values() if runs})
        told = f"{done} of {len(self.places)} cells are finished"
        if not seeds:
            return f"{told}."
        span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        word = "seed" if seeds[-1] == 1 else "seeds"
        spread = "; ± is the standard deviation over seeds" if seeds[-1] > 1 else ""
        return f"{told}, with {span} {word} each{spread}."

    def _stand_ins(self) -> list[str]:
        """Which settings are not the paper's; pool sizes follow from the density."""
        axes = [axis.setting for axis in self.experiment.axes if axis.setting not in (None, POOL)]
        places = in_order(self.places, [axis.name for axis in self.experiment.axes])
        told: list[str] = []
        for setting in dict.fromkeys(("data.name", "model", "density", *axes)):
            pairs = [(_named(p.config, setting), _named(p.asked, setting)) for p in places]
            told += dict.fromkeys(
                f"{ours} for {theirs}" for ours, theirs in pairs if ours != theirs
            )
        return [f"In place of the paper's settings: {', '.join(told)}."] if told else []

    def _elsewhere(self) -> list[str]:
        """Which of the paper's values come from another table than this one."""
        own, quantities = self.experiment.source, self.experiment.table.values
        printed = [self.printed(place, q) for place in self.places for q in quantities]
        sources = dict.fromkeys(value.source for value in printed if value is not None)
        others = [source for source in sources if source != own]
        also = " also" if own in sources else ""
        return [f"The paper's values are{also} from {', '.join(others)}."] if others else []


def _named(config: Config, setting: str) -> str:
    """A setting's value in words; a network with its width if it is not the usual one."""
    name = label(flat(config)[setting])
    return f"{name} ({config.width} wide)" if setting == "model" and config.width else name
