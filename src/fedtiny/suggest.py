"""The name that was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6, prefix: str = "") -> str:
    """How a sentence about an unknown name ends: the closest known one, or nothing.

    >>> did_you_mean("snup", ["snip", "fedavg"])
    "; did you mean 'snip'?"
    >>> did_you_mean("x", ["snip", "fedavg"])
    ''
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{prefix}{near[0]}'?" if near else ""
