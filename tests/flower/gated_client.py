"""A ClientApp whose replies a test can hold back, as long as there is a file that names them."""

import os
import time
from pathlib import Path

from flwr.clientapp import ClientApp

from fedtiny.flower.client import app as node

GATES = "FEDTINY_TEST_GATES"  # the folder of these files, in a node's environment


class Gated(ClientApp):
    """Answers as any node does, notes it, and sends nothing before its gate is gone."""

    def __call__(self, message, context):
        reply = node(message, context)
        name, kind = context.node_config["name"], message.metadata.message_type
        folder = Path(os.environ[GATES])
        with (folder / name).open("a") as noted:
            noted.write(f"{kind}\n")
        gate = folder / f"{name} {kind} {answers(folder, name, kind)}"
        while gate.exists():
            time.sleep(0.05)
        return reply


def answers(folder, name, kind):
    """How many answers of a kind a node has made by now."""
    noted = folder / name
    return noted.read_text().split().count(kind) if noted.exists() else 0


app = Gated()
