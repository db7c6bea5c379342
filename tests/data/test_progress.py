"""The progress bar is for a person at a terminal."""

import io
import sys

from fedtiny.data.cache import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_bar(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress("decoding cifar10", 10) as advance:
        advance(10)
    assert "decoding cifar10" in sys.stderr.getvalue()


def test_a_log_file_shows_nothing(capsys) -> None:
    with progress("decoding cifar10", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")
