"""What a device in another process is given once, as text and plain arrays."""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedtiny.config import TrainConfig
from fedtiny.data import ImageSet
from fedtiny.data.transforms import ArrayTransform, Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.native_engine import NativeChoices, NativeEngine
from fedtiny.graph.ir import Graph
from fedtiny.models.param_spec import ParamSpec


@dataclass(frozen=True)
class Outfit:
    """All that a native device needs beside its own data."""

    graph: Graph
    param_spec: ParamSpec
    preparation: Preparation
    train: TrainConfig
    choices: NativeChoices
    seed: int

    def engine(self) -> NativeEngine:
        """How the device computes."""
        transform = ArrayTransform(**asdict(self.preparation))
        return NativeEngine(self.graph, self.param_spec, transform, self.train, self.choices)

    def to_json(self) -> str:
        """As text."""
        plain = {
            "description": self.graph.to_plain(),
            "anatomy": asdict(self.param_spec),
            "preparation": asdict(self.preparation),
            "train": asdict(self.train),
            "choices": asdict(self.choices),
            "seed": self.seed,
        }
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> "Outfit":
        """What such text says."""
        plain = json.loads(text)
        return cls(
            Graph.from_plain(plain["description"]),
            ParamSpec(**tuples(plain["anatomy"])),
            Preparation(**tuples(plain["preparation"])),
            TrainConfig(**plain["train"]),
            NativeChoices(**plain["choices"]),
            plain["seed"],
        )


def tuples(value: Any) -> Any:
    """JSON has lists only; ours are tuples, at any depth."""
    if isinstance(value, Mapping):
        return {name: tuples(part) for name, part in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def pack(shard: DeviceData) -> bytes:
    """A device's own images and labels, and no others'."""
    own, places = np.unique(np.concatenate([shard.indices, shard.development]), return_inverse=True)
    data, packed = shard.data.subset(own), io.BytesIO()
    np.savez(
        packed,
        device=shard.device,
        images=data.images,
        labels=data.labels,
        classes=data.classes,
        indices=places[: len(shard)],
        development=places[len(shard) :],
    )
    return packed.getvalue()


def unpack(packed: bytes) -> DeviceData:
    """The shard that was packed, with its images numbered anew."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as found:
        data = ImageSet(found["images"], found["labels"], tuple(map(str, found["classes"])))
        return DeviceData(int(found["device"]), data, found["indices"], found["development"])
