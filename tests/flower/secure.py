"""Federations in one process whose nodes mask their replies."""

from pathlib import Path

from fedtiny.flower import signing_keys

from .federation import Grid, parts, tiny

SECURE = {"secure_aggregation": True}


def secure_tiny(devices=5, privacy=None, **changes):
    fleet = {"devices": devices, "partition": "iid"} | changes.pop("fleet", {})
    return tiny(privacy=SECURE | (privacy or {}), fleet=fleet, **changes)


def with_keys(nodes, folder: Path):
    """The same nodes, each with its key and the list of all."""
    if not folder.exists():
        signing_keys.make(folder, len(nodes))
    keys = str(folder / signing_keys.LIST)
    return {
        node: own | {"secagg-key": str(signing_keys.own_key(folder, k)), "secagg-keys": keys}
        for k, (node, own) in enumerate(nodes.items())
    }


def secure_grid(folder: Path, devices=5, trouble=None, kind=Grid, **settings):
    """Nodes with keys, and with other settings of their owners."""
    nodes = with_keys(parts(devices), folder / "keys")
    return kind({node: own | settings for node, own in nodes.items()}, trouble)
