"""Examples in docstrings are run as a reader would: with fedtiny imported, in a folder of theirs.

The progress of runs is left out of them.
"""

import pytest

import fedtiny


@pytest.fixture(autouse=True)
def _place_of_examples(request, tmp_path_factory, monkeypatch):
    if not isinstance(request.node, pytest.DoctestItem):
        return
    monkeypatch.chdir(tmp_path_factory.mktemp("example"))
    request.node.dtest.globs.setdefault("fedtiny", fedtiny)
    source = "".join(example.source for example in request.node.dtest.examples)
    if "frame()" in source:
        pytest.importorskip("pandas")
    if "fedtiny.run(" in source:
        from fedtiny.runs.reporter import Silent

        monkeypatch.setattr("fedtiny.api.running.automatic", Silent)
