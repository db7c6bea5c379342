"""What a network does to its input, as torch.fx records it; or the line where that ends."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import Attribute

from fedtiny.errors import ModelError

NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
"""Folders with frames of no interest to the author of a network."""
MAX_SHOWN = 100  # characters of a line, or of what another library says
MAX_ANSWERS = 1000
Known = Callable[[fx.Node], Any]
"""What a call gives, if that follows from shapes."""


class _Question(Exception):  # noqa: N818
    """A network loops over something, or decides by it."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node


class _UnknownError(Exception):
    """Which is not known before the network is run."""


class _Counted(fx.Proxy):
    """A call whose result may be counted."""

    def __getattr__(self, name: str) -> Any:
        return _CountedAttribute(self, name)

    def __len__(self) -> int:
        tracer: Any = self.tracer
        return len(tracer.answer(self, tuple, list, trouble="counts a tensor; use its size(0)"))


class _CountedAttribute(_Counted, Attribute):
    """The same of an attribute, such as a shape."""


class _Tracer(fx.Tracer):
    """Answers what a network asks while it is traced, in order; the next question ends tracing."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """What stands for the result of a call."""
        return _Counted(node, self)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Every element, as something that is recorded too."""
        found = self.answer(obj, tuple, list)
        listed: Any = obj
        return iter([listed[place] for place in range(len(found))])

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Which way a network goes."""
        return bool(self.answer(obj, bool, int))

    def answer(
        self, obj: fx.Proxy, *kinds: type, trouble: str = "asks for the values of a tensor"
    ) -> Any:
        """What the network asks for, if it is one of these kinds."""
        found = next(self._answers, self)
        if found is self:
            raise _Question(obj.node)
        if isinstance(found, ModelError):
            raise _UnknownError(f"asks for what is not known ({found})")
        if not isinstance(found, kinds):
            raise _UnknownError(trouble)
        return found


def recorded(model: nn.Module, known: Known) -> fx.Graph:
    """All calls of a network in their order.

    Shapes are known, so a network may loop over them and decide by them. While torch.fx traces,
    modules do not give their parameters; so whatever is asked, tracing begins again with the
    answer.
    """
    answers: list[Any] = []
    while len(answers) < MAX_ANSWERS:
        try:
            return _Tracer(answers).trace(model)
        except _Question as asked:
            answers.append(_answered(asked.node, known))
        except Exception as error:
            raise ModelError(
                f"the network cannot be traced: {_place(error)} {_trouble(error)}"
            ) from error
    raise ModelError(f"the network cannot be traced: it loops more than {MAX_ANSWERS} times")


def _answered(node: fx.Node, known: Known) -> Any:
    try:
        return known(node)
    except ModelError as error:
        return error if _by_shape(node) else None


def _by_shape(node: fx.Node) -> bool:
    """Whether a call hangs on the shape of a tensor, not on its values."""
    return node.target in ("size", "dim", getattr) or any(map(_by_shape, node.all_input_nodes))


def _place(error: Exception) -> str:
    """The line of the network's own code where it went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)]
    if not own:
        return "it"
    place = f"line {own[-1].lineno} of {Path(own[-1].filename).name}"
    return f"{place} ({own[-1].line[:MAX_SHOWN]})" if own[-1].line else place


def _trouble(error: Exception) -> str:
    """What a network does there, in few words."""
    if isinstance(error, _UnknownError):
        return str(error)
    first = (str(error).strip().splitlines() or [""])[0].split(". ")[0]
    return f"raises {type(error).__name__}: {first[:MAX_SHOWN]}"
