"""One line a round, whatever happened to the last."""

import pytest

from fedtiny.errors import RunError
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder

RECORDS = [
    {"round_number": 1, "loss": 1.5},
    {"round_number": 2, "loss": None},
    {"round_number": 3, "loss": 0.5},
]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    for record in RECORDS:
        metrics.append(folder, record)
    return folder


def test_what_is_added_is_read(folder, tmp_path):
    assert metrics.read(folder) == RECORDS
    assert metrics.read(RunFolder(tmp_path / "nowhere")) == []


@pytest.mark.parametrize("cut", range(2, 24))
def test_a_last_line_that_was_cut_off_is_left_out(folder, cut):
    data = folder.metrics.read_bytes()
    folder.metrics.write_bytes(data[:-cut])
    assert metrics.read(folder) == RECORDS[:2]


def test_a_last_line_without_its_end_of_line_is_whole(folder):
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-1])
    assert metrics.read(folder) == RECORDS


def test_a_damaged_line_before_the_last_is_named(folder):
    text = folder.metrics.read_text().splitlines()
    folder.metrics.write_text("\n".join([text[0], text[1][:9], text[2], ""]))
    with pytest.raises(RunError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        metrics.read(folder)


def test_rounds_that_the_checkpoint_does_not_know_are_forgotten(folder):
    folder.metrics.write_bytes(folder.metrics.read_bytes()[:-3])
    metrics.write(folder, metrics.read_before(folder, 1))
    assert metrics.read(folder) == RECORDS[:1]
    metrics.append(folder, RECORDS[1])
    assert metrics.read(folder) == RECORDS[:2]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_round_that_is_missing_is_told_and_nothing_is_thrown_away(folder, gone):
    text = folder.metrics.read_text().splitlines(keepends=True)
    left = "".join(line for number, line in enumerate(text) if number != gone)
    folder.metrics.write_text(left)
    with pytest.raises(RunError, match=r"metrics\.jsonl lacks some of the 3 rounds"):
        metrics.read_before(folder, 3)
    assert folder.metrics.read_text() == left


def test_a_round_that_stands_twice_is_told(folder):
    metrics.append(folder, RECORDS[0])
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        metrics.read_before(folder, 3)


NOT_ROUNDS = [
    *("{}", "null", "[]", '{"round": "0"}', '{"round": null}', '{"round": -1}'),
    *('{"round_number": "1"}', '{"round_number": 0}', '{"round": 1}'),
]


@pytest.mark.parametrize("line", NOT_ROUNDS)
def test_a_line_that_is_not_a_round_is_damaged(folder, line):
    folder.metrics.write_text(line + "\n" + folder.metrics.read_text())
    with pytest.raises(RunError, match=r"line 1 of .*metrics\.jsonl is damaged"):
        metrics.read(folder)


def test_numbers_survive_to_the_last_bit(folder):
    value = 0.1 + 0.2
    metrics.append(folder, {"round_number": 4, "loss": value})
    assert metrics.read_before(folder, 4)[-1]["loss"] == metrics.read(folder)[-1]["loss"] == value


def test_a_line_that_was_lost_is_the_checkpoint_s(folder):
    last = {"round_number": 4, "loss": 1.0}
    assert metrics.read_before(folder, 4, last) == [*RECORDS, last]
