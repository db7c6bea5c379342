"""What pruning needs to know of a model, without the model itself (and without torch)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from fedtiny.errors import ModelError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParamSpec:
    """Which weights of a model may be pruned, what stays dense, and how it splits into blocks.

    Names are those of the model's state dict. `prunable` runs from the input to the output side;
    `dense` holds every other parameter and the batch-norm statistics; `norms` names the
    batch-norm layers; `blocks` partitions the prunable weights for progressive pruning.
    """

    prunable: Mapping[str, Shape]
    dense: Mapping[str, Shape]
    blocks: tuple[tuple[str, ...], ...]
    norms: tuple[str, ...]
    input_layer: str
    output_layer: str

    def __post_init__(self) -> None:
        in_blocks = [name for block in self.blocks for name in block]
        if sorted(in_blocks) != sorted(self.prunable):
            raise ModelError(
                "the blocks of a model must hold each prunable weight exactly once; got "
                f"{len(in_blocks)} entries for {len(self.prunable)} prunable weights"
            )
        if any(not block for block in self.blocks):
            raise ModelError("a block of a model holds no prunable weight")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of weights of each prunable layer."""
        return {name: prod(shape) for name, shape in self.prunable.items()}

    @cached_property
    def dense_sizes(self) -> dict[str, int]:
        """Number of values of each dense tensor."""
        return {name: prod(shape) for name, shape in self.dense.items()}

    @cached_property
    def prunable_count(self) -> int:
        """The N that density is a share of."""
        return sum(self.sizes.values())

    @cached_property
    def dense_count(self) -> int:
        """Number of values that are never pruned, batch-norm statistics included."""
        return sum(self.dense_sizes.values())

    @property
    def parameter_count(self) -> int:
        """Number of parameters, pruned or not; batch-norm statistics are none."""
        return self.prunable_count + self.dense_count - sum(map(prod, self.statistics.values()))

    def whole_density(self, kept: float) -> float:
        """The share of all parameters that a model has which keeps so many prunable weights."""
        return 1 - (self.prunable_count - kept) / self.parameter_count

    @property
    def dense_bytes(self) -> int:
        """Bytes of the model with every weight kept, in float32."""
        return 4 * (self.prunable_count + self.dense_count)

    @cached_property
    def statistics(self) -> dict[str, Shape]:
        """The batch-norm means and variances, by name."""
        kinds = ("running_mean", "running_var")
        names = [f"{norm}.{kind}" for norm in self.norms for kind in kinds]
        return {name: self.dense[name] for name in names}

    @cached_property
    def fingerprint(self) -> int:
        """Four bytes that tell one model's messages from another's."""
        text = repr((tuple(self.prunable.items()), tuple(self.dense.items())))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")
