"""What a device needs beside its own data: one record for every executor and for real devices."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedtiny import config as configs
from fedtiny.config import RunConfig
from fedtiny.data.transforms import Preparation
from fedtiny.errors import ConfigError, WireError
from fedtiny.graph.ir import Graph
from fedtiny.models.param_spec import ParamSpec


@dataclass(frozen=True)
class DeviceSpec:
    """How a device trains, on what network, and how it prepares its images.

    `graph` is the network as native devices and sparse kernels take it, or None if devices compute
    in PyTorch. The seed, the optimizer and how a device spends its memory are the config's.
    """

    config: RunConfig
    param_spec: ParamSpec
    preparation: Preparation
    graph: Graph | None = None

    def to_plain(self) -> dict[str, Any]:
        """As plain data, which JSON can hold."""
        return {
            "config": configs.to_dict(self.config),
            "param_spec": asdict(self.param_spec),
            "preparation": asdict(self.preparation),
            "graph": self.graph.to_plain() if self.graph else None,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "DeviceSpec":
        """What such data says; anything missing, unknown or of another kind is an error."""
        try:
            config, param_spec, preparation, graph = (
                plain[name] for name in ("config", "param_spec", "preparation", "graph")
            )
            return cls(
                configs.parse(RunConfig, config),
                ParamSpec(**_tuples(param_spec)),
                Preparation(**_tuples(preparation)),
                None if graph is None else Graph.from_plain(graph),
            )
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise WireError(f"this is not the spec of a device: {error}") from error


def _tuples(value: Any) -> Any:
    """JSON has lists only; ours are tuples, at any depth."""
    if isinstance(value, Mapping):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
