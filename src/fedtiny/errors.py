"""Errors that tell a user what went wrong and what to do about it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FedTinyError(Exception):
    """A problem the user can mend; the command line prints its one sentence and exits with 1.

    Sentences are written with flags; from Python, `str` names arguments instead.

    Args:
        message: What is wrong and what to do, in one sentence.
        retryable: Whether a run that ended with it may do better when it is continued.

    Example:
        >>> try:
        ...     fedtiny.run(fedtiny.Config(density=2.0))
        ... except fedtiny.errors.FedTinyError as error:
        ...     print(error)
        density must lie in (0, 1], got 2

    One that is not `retryable` comes again however often its run is continued: it takes a new run
    to do better. One that is `reported` is printed by another process of the same run.
    """

    retryable = True
    reported = False

    def __init__(self, message: str = "", *, retryable: bool | None = None) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        return named(super().__str__())


class ConfigError(FedTinyError):
    """A setting that cannot work.

    Example:
        >>> fedtiny.Config(method="fedtiny", rounds=0)
        Traceback (most recent call last):
        fedtiny.errors.ConfigError: rounds must be at least 1, got 0
    """


class DataError(FedTinyError):
    """Data that are missing, unreadable or do not fit.

    Example:
        >>> fedtiny.data.load("digit")
        Traceback (most recent call last):
        fedtiny.errors.DataError: there is no data set 'digit' among ...
    """


class WireError(FedTinyError):
    """Bytes from another party that are not what they claim to be."""


class ReplyError(FedTinyError):
    """A device's reply that is not what an honest device would send."""

    def __init__(self, why: str) -> None:
        super().__init__(f"reply refused: {why}")


class DivergedError(FedTinyError):
    """A training whose loss, weights or gradients are no longer finite."""


class SecureAggregationError(FedTinyError):
    """A step of secure aggregation that an honest party does not take, or a sum it cannot give."""


class RunError(FedTinyError):
    """A run folder that cannot be read, written or continued.

    Example:
        >>> fedtiny.load_run("nowhere")
        Traceback (most recent call last):
        fedtiny.errors.RunError: there is no nowhere; give the folder of a run
    """


class ModelError(FedTinyError):
    """A model that cannot be pruned or trained as asked.

    Example:
        >>> fedtiny.models.build("resnet", (3, 32, 32), classes=10)
        Traceback (most recent call last):
        fedtiny.errors.ModelError: there is no model 'resnet' ...
    """

    retryable = False


class KernelError(FedTinyError):
    """A kernel that cannot be built here, or that failed."""


class ExportError(FedTinyError):
    """A model that cannot be exported as asked, or an exported file that is not one.

    Example:
        >>> fedtiny.load("nothing.packed")
        Traceback (most recent call last):
        fedtiny.errors.ExportError: cannot read nothing.packed: No such file or directory
    """


class _Names:
    flags = False


@contextmanager
def naming_flags(flags: bool = True) -> Iterator[None]:
    """Within this, sentences name flags, as on the command line; elsewhere names of Python."""
    before, _Names.flags = _Names.flags, flags
    try:
        yield
    finally:
        _Names.flags = before


def named(sentence: str) -> str:
    """A sentence that is written with flags, as whoever is here would write its settings."""
    if _Names.flags:
        return sentence
    from fedtiny.config.flags import as_arguments

    return as_arguments(sentence)


def can_retry(error: BaseException | None) -> bool:
    """Whether what ended with this error may do better when it is continued."""
    return not isinstance(error, FedTinyError) or error.retryable


def printable(text: str) -> str:
    r"""Text that does nothing to a terminal.

    >>> printable("a\tb\x1b[2J")
    'a?b?[2J'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def plural(count: int, noun: str) -> str:
    """A number of things.

    >>> plural(1, "round"), plural(3, "round"), plural(0, "class")
    ('1 round', '3 rounds', '0 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6, prefix: str = "") -> str:
    """How a sentence about an unknown name ends: the closest known one, or nothing.

    >>> did_you_mean("snup", ["snip", "fedavg"])
    "; did you mean 'snip'?"
    >>> did_you_mean("x", ["snip", "fedavg"])
    ''
    """
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{prefix}{near[0]}'?" if near else ""
