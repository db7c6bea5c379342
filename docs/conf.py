"""How the documentation site is built: `make docs`, without a network and without warnings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import source_pages
from command_lexer import CommandLexer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from fedtiny import __version__
from fedtiny.config.flags import as_arguments

project = "fedtiny"
author = "The fedtiny maintainers"
copyright = "the fedtiny maintainers, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "generated_pages",
    "mathml",
    "source_pages",
]
exclude_patterns = ["extensions", "static"]

html_theme = "furo"
html_title = "fedtiny"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
myst_url_schemes = {
    "http": None,
    "https": None,
    "mailto": None,
    "source": {"url": f"{source_pages.FOLDER}/{{{{path}}}}.html#{{{{fragment}}}}"},
}

highlight_language = "none"
default_role = "code"
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
linkcode_resolve = source_pages.of_object

# What lies outside fedtiny has no page here: Python, NumPy, PyTorch, and names within fedtiny
# that stand for types of theirs.
# Neither have the inner parts of the native engine, of packed models, drawings and data files.
nitpick_ignore_regex = [
    ("py:.*", r"(?!fedtiny\.).*"),
    (
        "py:class",
        r"fedtiny\.(native|export\.network|drawing\.canvas|data\.own_files)\..*"
        r"|fedtiny\.(federation\.method|cost\.budgets)\.C",
    ),
]


def setup(app: Sphinx) -> None:
    """Commands are shown without a prompt, so that they can be copied."""
    app.add_lexer("console", CommandLexer)
    app.connect("autodoc-process-docstring", read_sections)
    app.connect("autodoc-process-docstring", escape_bars)


def read_sections(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Args, Returns, Raises and Example are sections; a setting is named as Python writes it."""
    if what == "attribute":
        lines[:] = as_arguments("\n".join(lines)).split("\n")
    else:
        kind = "method" if what == "property" else what
        sections = Config(napoleon_use_rtype=False)
        lines[:] = GoogleDocstring(lines, sections, app, kind, name, thing, options).lines()


def escape_bars(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """An amount like |g w| in a docstring is no substitution."""
    lines[:] = [line.replace("|", r"\|") for line in lines]
