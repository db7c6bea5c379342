"""Data sets, their partition over devices, and their batched augmentation."""

from fedtiny.data.images import DataSet, ImageSet
from fedtiny.data.partition import Partition
from fedtiny.data.sources import from_arrays, from_torch, load, load_own, names

__all__ = [
    "DataSet",
    "ImageSet",
    "Partition",
    "from_arrays",
    "from_torch",
    "load",
    "load_own",
    "names",
]
