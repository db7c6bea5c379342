"""Equations as MathML, which browsers draw by themselves: no script, no font, no network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """An equation within a sentence."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def displayed(translator: HTML5Translator, node: nodes.math_block) -> None:
    """An equation on a line of its own."""
    equation = convert(node.astext(), display="block")
    translator.body.append(f'<div class="equation">{equation}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Offer the renderer to Sphinx."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
