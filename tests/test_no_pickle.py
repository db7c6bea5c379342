"""Nothing is unpickled anywhere in the project: a file from elsewhere is data, never a program."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "examples", "experiments", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
UNSAFE_MODULES = {
    *("pickle", "_pickle", "cPickle", "pickletools", "dill", "cloudpickle", "joblib"),
    *("marshal", "shelve", "jsonpickle", "torch.package", "torch.serialization"),
}
UNSAFE_CALLS = {
    *("torch.save", "torch.jit.load", "torch.hub.load", "torch.export.load"),
    *("pd.read_pickle", "pandas.read_pickle", "yaml.load", "yaml.unsafe_load"),
    *("eval", "exec", "compile"),
}


def dotted(node):
    """`a.b.c` as text, or nothing."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else f"?.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(node):
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def says(node, argument, value):
    given = [word.value for word in node.keywords if word.arg == argument]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is value


def troubles(source):
    """What in a file could run a stranger's code."""
    for node in ast.walk(ast.parse(source)):
        unsafe = {name for name in imported(node) if name in UNSAFE_MODULES}
        unsafe |= {name for name in imported(node) if name.partition(".")[0] in UNSAFE_MODULES}
        yield from sorted(unsafe)
        if isinstance(node, ast.Constant) and node.value in UNSAFE_MODULES:
            yield f"the name '{node.value}'"
        if isinstance(node, ast.Call):
            yield from _call_troubles(node)


def _call_troubles(node):
    name = dotted(node.func)
    if name in UNSAFE_CALLS:
        yield name
    if name.endswith("torch.load") and not says(node, "weights_only", True):
        yield "torch.load without weights_only=True"
    numpy_load = name in ("np.load", "numpy.load")
    if numpy_load and not says(node, "allow_pickle", False):
        yield "np.load without allow_pickle=False"
    if any(word.arg == "allow_pickle" for word in node.keywords) and not says(
        node, "allow_pickle", False
    ):
        yield "allow_pickle"
    if name.endswith((".recv", ".send")) and not node.keywords and len(node.args) <= 1:
        yield f"{name} of a pipe pickles; there is {name}_bytes"


def test_nothing_is_unpickled():
    assert len(FILES) > 100
    found = {path: list(troubles(path.read_text(encoding="utf-8"))) for path in FILES}
    assert {path.relative_to(ROOT): what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch.package",
        "from torch import package, serialization",
        "importlib.import_module('pickle')",
        "__import__('dill')",
        "import cloudpickle as c",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=flag)",
        "np.savez(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "connection.recv()",
        "self.pipe.send(thing)",
        "yaml.load(text)",
        "eval(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert list(troubles(source))


@pytest.mark.parametrize(
    "source",
    ["torch.load(p, weights_only=True)", "np.load(p, allow_pickle=False)", "model.eval()(x)"],
)
def test_what_is_safe_is_let_through(source):
    assert list(troubles(source)) == []
