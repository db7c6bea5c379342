"""The example notebook as a page: its words, its code and, if nbclient is here, what it shows."""

import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "digits.ipynb"
SHOWN = ("image/svg+xml", "text/plain")
"""What is shown of an output: the first of these that it has."""


def executed(folder: Path) -> Any:
    """The notebook with its outputs, run top to bottom in a folder of its own."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    return notebook


def notebook() -> str:
    """Markdown with the cells of the notebook, the first heading left to the page."""
    if find_spec("nbclient") and find_spec("ipykernel"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            cells = executed(Path(folder)).cells
    else:
        import json

        cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(_cell(cell) for cell in cells).strip()


def _cell(cell: Any) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    return "\n\n".join([f"```python\n{text}\n```", *map(_output, cell["outputs"])])


def _output(output: Any) -> str:
    """Pictures as they are, and all else as text."""
    found = output.get("data") or {"text/plain": output.get("text", "")}
    form = next(form for form in SHOWN if form in found)
    if form == "text/plain":
        return f"```text\n{found[form].rstrip()}\n```"
    drawn = textwrap.indent(found[form].replace("><g", ">\n<g"), "   ")  # lines have a limit
    return f"```{{eval-rst}}\n.. raw:: html\n\n{drawn}\n```"
