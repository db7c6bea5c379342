"""The reference of the command line: what each command says of itself."""

import contextlib
import io
import os
import re

from fedtiny.cli.main import COMMANDS, dispatch

WIDTH = "88"
SUBCOMMANDS = re.compile(r"usage: fedtiny \w+ \[-h\] \{([\w,-]+)\}")


def commands() -> str:
    """Markdown with a section for each command and subcommand."""
    overview = ["## fedtiny", *_literal(help_of())]
    return "\n".join([*overview, *(line for name in COMMANDS for line in _section(name))])


def help_of(*command: str) -> str:
    """What `fedtiny COMMAND --help` prints."""
    said = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            dispatch([*command, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return said.getvalue()


def _section(name: str) -> list[str]:
    text = help_of(name)
    lines = [f"## fedtiny {name}", *_literal(text)]
    found = SUBCOMMANDS.search(text)
    for part in found[1].split(",") if found else ():
        if (more := help_of(name, part)) != text:
            lines += [f"### fedtiny {name} {part}", *_literal(more)]
    return lines


def _literal(text: str) -> list[str]:
    return ["", "```text", text.strip("\n"), "```", ""]
