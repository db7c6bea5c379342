"""Which part of an experiment is run."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.errors import ConfigError
from fedtiny.reproduce import reading
from fedtiny.reproduce.places import Place

NAMED = ("methods", "models", "datasets", "variants")
APART = ("method", "model", "data", "density")


@dataclass(frozen=True)
class Filter:
    """Only runs with one of these; nothing given means all.

    A name may be the paper's or, where the scale has another in its place, that one. A density is
    the one that is run. A run that stays dense passes for any density.
    """

    methods: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    density: tuple[float, ...] = ()

    def of(self, places: Sequence[Place]) -> list[Place]:
        """The places that pass; a word that no place has is an error."""
        self._require_known(places)
        return [place for place in places if self._passes(place)]

    def _passes(self, place: Place) -> bool:
        named = {kind: set(_names(place)[kind]) for kind in NAMED}
        wanted = {kind: set(getattr(self, kind)) for kind in NAMED}
        if any(wanted[kind] and not wanted[kind] & named[kind] for kind in NAMED):
            return False
        return not self.density or place.dense or place.config.density in self.density

    def _require_known(self, places: Sequence[Place]) -> None:
        for kind in NAMED:
            known = dict.fromkeys(name for place in places for name in _names(place)[kind])
            for word in getattr(self, kind):
                if word not in known:
                    raise ConfigError(f"--{kind}: no cell has '{word}' {reading.hint(word, known)}")
        densities = dict.fromkeys(place.config.density for place in places if not place.dense)
        for density in self.density:
            if density not in densities:
                listed = ", ".join(f"{d:g}" for d in densities)
                raise ConfigError(f"--density: no cell has {density:g} (known: {listed})")


def _names(place: Place) -> dict[str, list[str]]:
    """What a place is called in each respect: by its own settings and by the paper's."""
    config, asked = place.config, place.asked
    others = [at for axis, at in place.at.items() if axis not in APART]
    return {
        "methods": [config.method],
        "models": [config.model, asked.model],
        "datasets": [config.data.name, asked.data.name],
        "variants": [name for at in others for name in (str(at.value), at.label)],
    }
