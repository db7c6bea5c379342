"""Colors for commands: what is run, and its flags, beside what Pygments knows of a shell."""

from pygments.lexer import inherit
from pygments.lexers import BashLexer
from pygments.token import Name, Number, Text


class CommandLexer(BashLexer):
    """A shell whose lines are commands without a prompt, so that they can be copied."""

    name = "Commands"
    aliases = ("commands",)
    tokens = {  # noqa: RUF012 (as Pygments has it)
        "basic": [
            (r"^[a-z][\w.-]*(?= |$)", Name.Function),
            (r"(?<=\s)--?[a-zA-Z][\w.-]*", Name.Attribute),
            (r"(?<=\s)\d[\w.%]*(?=\s)", Number),
            (r"(?<=[a-z] )test\b", Text),
            inherit,
        ]
    }
