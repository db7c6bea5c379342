"""What a process may use, and what stops it."""

import signal

import pytest

from fedtiny import process


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system and a container that tell how much memory is free."""
    monkeypatch.setattr(process, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(process, "CONTROL_GROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8000 kB\n")
    return tmp_path


def test_free_memory_is_the_system_s(system):
    assert process.free_memory() == 8000 * 1024


def test_a_container_may_have_less(system):
    (system / "memory.max").write_text("5000000\n")
    (system / "memory.current").write_text("3000000\n")
    assert process.free_memory() == 2_000_000
    (system / "memory.stat").write_text("anon 1\ninactive_file 700000\n")
    assert process.free_memory() == 2_700_000, "what is cached can be had"


def test_a_container_without_a_limit_has_what_the_system_has(system):
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text("3000000\n")
    assert process.free_memory() == 8000 * 1024


def test_a_system_that_does_not_tell(system):
    (system / "meminfo").unlink()
    assert process.free_memory() is None


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_stops_like_ctrl_c_unless_it_is_ignored(name, code):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    try:
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        process.stop_on_signals()
        assert signal.getsignal(number) == signal.SIG_IGN
        signal.signal(number, signal.SIG_DFL)
        process.stop_on_signals()
        with pytest.raises(KeyboardInterrupt) as stopped:
            signal.raise_signal(number)
        assert stopped.value.code == code
    finally:
        signal.signal(number, before)
