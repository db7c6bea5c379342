"""Small federations in one process, with a real ServerApp and a real ClientApp."""

from pathlib import Path

from flwr.app import Context, Message, RecordDict

from fedtiny.config import Config
from fedtiny.config.flat import flat
from fedtiny.flower import client, server

from ..runs.tiny import tiny as simulated
from .in_process import InProcessGrid

FAST = {"flower.wait": 0.3, "flower.timeout": 0.4}


def tiny(**changes) -> Config:
    """The tiny config as nodes can play it, so that a simulation may be compared with it."""
    return simulated(**{"simulator": "reference", "device_backend": "torch", **changes})


def parts(count: int) -> dict[int, dict]:
    """The configs of nodes that share a named set; their ids are far apart, as Flower's are."""
    return {
        1000 + 7 * k: {"partition-id": k, "num-partitions": count, "name": f"laptop-{k}"}
        for k in range(count)
    }


def federate(grid: InProcessGrid, config: Config, out: Path, **settings) -> Path:
    """Run the ServerApp against a grid."""
    own = {f"flower.{name}": value for name, value in settings.items()}
    run_config = {**flat(config), **FAST, "flower.run": str(out), **own}
    server.app(grid, Context(1, 1, {}, RecordDict(), run_config))
    return out


class Grid(InProcessGrid):
    """Nodes that fail as a test wants it: `trouble(node, kind, count)` is asked before each."""

    def __init__(self, nodes=None, trouble=None):
        super().__init__(client.app, parts(3) if nodes is None else nodes)
        self.trouble = trouble or (lambda grid, node, message: None)
        self.log: list[tuple[int, str]] = []

    def pull_messages(self, message_ids):
        for identity in list(message_ids):
            message = self.sent[identity]
            node = message.metadata.dst_node_id
            what = self.trouble(self, node, message)
            if isinstance(what, str):
                continue
            del self.sent[identity]
            self.log.append((node, message.metadata.message_type))
            yield Message(what, reply_to=message) if what else self.answer(message)

    def kinds(self, node: int) -> list[str]:
        """What a node was asked, in order."""
        return [kind for asked, kind in self.log if asked == node]
