"""Every name of the reference says its parameters, fields and returns, and has an example."""

import dataclasses
import importlib
import inspect
import re

import pytest

import fedtiny

from .markdown import ROOT

pycode = pytest.importorskip("sphinx.pycode")

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\.\. auto(?:function|class):: ([\w.]+)", PAGE, re.M)
SECTION = r"^\s*{}:\n((?:\s+.*\n|\n)*?)(?=^\s*(?:Args|Returns|Raises|Example):\n|\Z)"


def found(name):
    """What a full name stands for."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def section(thing, title):
    """The lines of a section of a docstring."""
    text = inspect.cleandoc(thing.__doc__ or "") + "\n"
    match = re.search(SECTION.format(title), text, re.M)
    return match[1] if match else ""


def undocumented(function):
    """What the docstring of a function leaves out."""
    described = set(re.findall(r"^    \*{0,2}(\w+): \S", section(function, "Args"), re.M))
    signature = inspect.signature(function)
    wanted = set(signature.parameters) - {"self", "cls"}
    lacking = [f"{function.__qualname__}: {name}" for name in sorted(wanted - described)]
    returns = signature.return_annotation not in (None, inspect.Signature.empty)
    if returns and not section(function, "Returns").strip():
        lacking.append(f"{function.__qualname__}: what it returns")
    return lacking


def undocumented_fields(kind):
    """Fields and parameters of a class that neither it nor a text below them describes."""
    described = set(re.findall(r"^    (\w+): \S", section(kind, "Args"), re.M))
    below = pycode.ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
    described |= {name for owner, name in below if owner == kind.__name__}
    if dataclasses.is_dataclass(kind):
        wanted = {field.name for field in dataclasses.fields(kind)}
    else:
        made = vars(kind).get("__init__")
        wanted = set(inspect.signature(made).parameters) - {"self"} if made else set()
    lacking = sorted(name for name in wanted - described if not name.startswith("_"))
    return [f"{kind.__name__}: {name}" for name in lacking]


def lacking(thing):
    """All that a public name leaves out, in words."""
    if not inspect.isclass(thing):
        return undocumented(thing) + example_lacking(thing)
    members = [getattr(each, "__func__", each) for each in vars(thing).values()]
    functions = [each for each in members if inspect.isfunction(each)]
    public = [each for each in functions if not each.__name__.startswith("_")]
    told = [line for each in public if each.__doc__ for line in undocumented(each)]
    told += [f"{each.__qualname__}: a docstring" for each in public if not each.__doc__]
    told += [
        f"{thing.__name__}.{name}: a docstring"
        for name, each in vars(thing).items()
        if isinstance(each, property) and not each.__doc__
    ]
    return undocumented_fields(thing) + told + example_lacking(thing)


def example_lacking(thing):
    return [] if ">>> " in (thing.__doc__ or "") else [f"{thing.__name__}: an example"]


@pytest.mark.parametrize("name", LISTED)
def test_a_name_says_all_of_its_parameters_and_has_an_example(name):
    assert lacking(found(name)) == []


def test_the_reference_has_every_public_name():
    public = {f"fedtiny.{name}" for name in fedtiny.__all__} - {"fedtiny.__version__"}
    assert public <= set(LISTED)
    assert len(set(LISTED)) == len(LISTED) > 35


def test_what_is_left_out_is_noticed():
    def bare(one, *, two=1) -> int:
        """Does something.

        Args:
            one: The first.
        """

    @dataclasses.dataclass
    class Bare:
        """A thing."""

        field: int
        _hidden: int = 0

        def method(self, option):
            """Does something."""

    names = "test_what_is_left_out_is_noticed.<locals>."
    assert lacking(bare) == [
        f"{names}bare: two",
        f"{names}bare: what it returns",
        "bare: an example",
    ]
    assert lacking(Bare) == [
        "Bare: field",
        f"{names}Bare.method: option",
        "Bare: an example",
    ]
