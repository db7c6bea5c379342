"""The example notebook as a page: its words and its code."""

import json
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "digits.ipynb"


def notebook() -> str:
    """Markdown with the cells of the notebook, the first heading left to the page."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(_cell(cell) for cell in cells).replace("\n# ", "\n## ").strip()


def _cell(cell: dict[str, object]) -> str:
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
