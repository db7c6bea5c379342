"""What a node is given once in a run: all that a device needs beside its own data."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fedtiny import __version__
from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.data.transforms import Preparation
from fedtiny.devices.engine import Engine
from fedtiny.devices.outfit import Outfit, tuples
from fedtiny.errors import FedTinyError
from fedtiny.extras import require
from fedtiny.graph.ir import Graph
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.runs import backend
from fedtiny.runs.fleet import Premises
from fedtiny.runs.inputs import build_model


@dataclass(frozen=True, eq=False)
class Kit:
    """A run as a node must know it. Without a `description` the node computes in PyTorch."""

    config: Config
    own_data: bool
    shape: Shape
    classes: tuple[str, ...]
    preparation: Preparation
    param_spec: ParamSpec
    graph: Graph | None

    @classmethod
    def of(cls, premises: Premises, own_data: bool) -> "Kit":
        """The kit of a run."""
        config, data = premises.config, premises.data
        return cls(
            config,
            own_data,
            data.shape,
            data.classes,
            Preparation.of(data, config.data.augment, config.data.cutout),
            premises.param_spec,
            premises.graph,
        )

    def engine(self) -> Engine:
        """How the device computes."""
        return self._native() if self.graph else self._torch()

    def _native(self) -> Engine:
        assert self.graph
        choices = backend.choices(self.config)
        outfit = Outfit(
            self.graph,
            self.param_spec,
            self.preparation,
            self.config.train,
            choices,
            self.config.seed,
        )
        return outfit.engine()

    def _torch(self) -> Engine:
        require("torch", extra="torch").set_num_threads(self.config.threads or 1)
        config = self.config
        network = build_model(config, self)
        transform = require("fedtiny.data.augment", extra="torch").Transform
        engines = require("fedtiny.devices.torch_engine", extra="torch")
        engine: Engine = engines.TorchEngine(
            network, self.param_spec, transform(**asdict(self.preparation)), config.train
        )
        return engine

    @cached_property
    def text(self) -> str:
        """The kit as JSON."""
        plain = {
            "fedtiny": __version__,
            "config": configs.to_dict(self.config),
            "own_data": self.own_data,
            "shape": self.shape,
            "classes": self.classes,
            "preparation": asdict(self.preparation),
            "anatomy": asdict(self.param_spec),
            "description": self.graph.to_plain() if self.graph else None,
        }
        return json.dumps(plain)

    @cached_property
    def key(self) -> str:
        """A short name for exactly this kit."""
        return key_of(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kit) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def from_text(cls, text: str) -> "Kit":
        """The kit that such JSON says, if it is one of this version."""
        plain: Mapping[str, Any] = json.loads(text)
        if plain["fedtiny"] != __version__:
            raise FedTinyError(
                f"this node has fedtiny {__version__}, the server {plain['fedtiny']}; "
                "install the same on both"
            )
        graph = plain["description"]
        return cls(
            configs.from_dict(plain["config"]),
            plain["own_data"],
            tuple(plain["shape"]),
            tuple(plain["classes"]),
            Preparation(**tuples(plain["preparation"])),
            ParamSpec(**tuples(plain["anatomy"])),
            Graph.from_plain(graph) if graph is not None else None,
        )


def key_of(text: str) -> str:
    """A short name for the text of a kit."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
