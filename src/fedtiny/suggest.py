"""One home for "did you mean"."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, if any is near.

    >>> did_you_mean("resnet19", ["resnet18", "vgg11"])
    "; did you mean 'resnet18'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
