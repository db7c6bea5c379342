"""When and how much progressive pruning adjusts (Sec. 4.1.2). All in rounds, never iterations."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, floor, pi
from typing import Literal

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask

Granularity = Literal["layer", "block", "entire"]
Order = Literal["backward", "forward"]


@dataclass(frozen=True)
class Schedule:
    """Adjust every `delta_r` rounds until `r_stop`, one group of layers at a time."""

    delta_r: int
    r_stop: int
    granularity: Granularity = "block"
    order: Order = "backward"
    rate: float = 0.3
    """Share of a layer's weights that an adjustment in the first round swaps."""

    def adjusts(self, round: int) -> bool:
        """Whether the mask is adjusted at the end of this round (Alg. 2, line 10)."""
        return round % self.delta_r == 0 and round <= self.r_stop

    def event(self, round: int) -> int:
        """How many adjustments came before this round's."""
        return round // self.delta_r

    def layers(self, param_spec: ParamSpec, round: int) -> tuple[str, ...]:
        """The layers whose turn it is: by the number of the event, never of the round."""
        groups = _groups(param_spec, self.granularity)
        if not groups:
            return ()
        turn = self.event(round) % len(groups)
        return groups[turn if self.order == "forward" else -1 - turn]

    def pruning_number(self, round: int, kept: int, pruned: int) -> int:
        """How many weights of a layer are grown and dropped: a_t^l, never above the pruned ones.

        >>> Schedule(delta_r=10, r_stop=100).pruning_number(0, kept=100, pruned=900)
        30
        >>> Schedule(delta_r=10, r_stop=100).pruning_number(100, kept=100, pruned=900)
        0
        """
        share = self.rate / 2 * (1 + cos(pi * round / self.r_stop))
        return min(floor(share * kept + 1e-9), pruned)

    def pruning_numbers(
        self, mask: Mask, round: int, room: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """The layers to adjust at the end of this round, with their a_t^l above zero.

        `room` is how many weights below its due number a layer keeps, if any.
        """
        if not self.adjusts(round):
            return {}
        numbers = {
            layer: self.pruning_number(
                round,
                mask.kept(layer) + (room or {}).get(layer, 0),
                mask.param_spec.sizes[layer] - mask.kept(layer),
            )
            for layer in self.layers(mask.param_spec, round)
        }
        return {layer: number for layer, number in numbers.items() if number}

    def next_round(self, param_spec: ParamSpec, layer: str, after: int) -> int | None:
        """The next round at whose end it is a layer's turn, if there is one."""
        rounds = range(after + 1, self.r_stop + 1)
        turns = (r for r in rounds if self.adjusts(r) and layer in self.layers(param_spec, r))
        return next(turns, None)


def _groups(param_spec: ParamSpec, granularity: Granularity) -> tuple[tuple[str, ...], ...]:
    if granularity == "block":
        return param_spec.blocks
    if granularity == "layer":
        return tuple((layer,) for layer in param_spec.prunable)
    return (tuple(param_spec.prunable),)
