"""A node's own account: the same noise for the same question, one sum of it, and a limit."""

import shutil
import sqlite3
import stat
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import RecordDict

from fedtiny.cli.flower import command
from fedtiny.errors import FedTinyError, RunError, SecureAggregationError
from fedtiny.flower import question_account
from fedtiny.flower.node_log import NodeError, told_to_server
from fedtiny.flower.question_account import QuestionAccount
from fedtiny.flower.question_journal import QuestionJournal
from fedtiny.flower.secure_client import account_of
from fedtiny.privacy.secagg.server import SecureSum
from fedtiny.privacy.secagg.terms import SEEDS, SHARES, Terms
from fedtiny.runs import runner

from ..runs.tiny import essence, lines
from .federation import federate, parts
from .secure import secure_grid, secure_tiny, with_keys
from .test_resume import without_bytes
from .test_secure import GONE, NO_SELECTION, KilledError

TERMS = Terms(bytes(16), 1, 0, 7, (0, 1, 2, 3, 4), 40, 0.66)
AGAIN = replace(TERMS, run=b"another session.", number=5)
NOISE = {"noise": "devices", "noise_multiplier": 0.5, "clip": 0.5, "sampling": "fixed"}


def account(folder, most=None, name="account"):
    return QuestionAccount(folder / name, most)


def refusal(call, *told):
    with pytest.raises(FedTinyError) as caught:
        call(*told)
    return str(caught.value)


def test_noise_follows_from_the_question_and_the_answer_and_a_secret(tmp_path):
    own = account(tmp_path)
    seed = own.answer(TERMS, 0.5, b"numbers")
    assert stat.S_IMODE((tmp_path / "account").stat().st_mode) == 0o600
    assert account(tmp_path).answer(AGAIN, 0.5, b"numbers") == seed, "another session, a restart"
    changes = [{"round": 1}, {"request": 8}, {"participants": (0, 1, 2, 3)}, {"neighbors": 41}]
    changes += [{"threshold": 0.7}, {"scales": b"other"}, {"context": b"c" * 32}]
    others = [own.answer(replace(TERMS, **one), 0.5, b"numbers") for one in changes]
    others.append(account(tmp_path, name="other").answer(TERMS, 0.5, b"numbers"))
    assert len({seed, *others}) == 1 + len(changes) + 1
    assert sum(map(len, own.counts().values())) == 1 + len(changes), "asked again counts once"
    assert "finds another answer now" in refusal(own.answer, AGAIN, 0.5, b"else")


def test_who_loses_the_account_draws_other_noise(tmp_path):
    seed = account(tmp_path).answer(TERMS, 0.5, b"numbers")
    (tmp_path / "account").unlink()
    assert account(tmp_path).answer(TERMS, 0.5, b"numbers") != seed


def test_of_one_peer_never_both_in_whichever_session(tmp_path):
    """Of four neighbors a device needs three, so that it tells the seed of one."""
    own = account(tmp_path)
    own.answer(TERMS, 0.5, b"numbers")
    own.tell(TERMS, [3], SEEDS)
    own.tell(TERMS, [0, 1, 2], SHARES)
    own.tell(AGAIN, [3], SEEDS)
    own.tell(AGAIN, [0, 1, 2], SHARES)
    said = "the other secret of device 3 was told: this one is not told too"
    assert said in refusal(own.tell, AGAIN, [0, 1, 2, 3], SHARES)
    assert "of device 0 was told" in refusal(own.tell, AGAIN, [0], SEEDS)
    later = replace(TERMS, round=1)
    own.answer(later, 0.5, b"numbers")
    own.tell(later, [0, 1, 2, 3], SHARES)


def test_seeds_are_counted_over_all_sessions(tmp_path):
    """Else each of two sessions could cut a device off from one neighbor more."""
    own = account(tmp_path)
    own.answer(TERMS, 0.5, b"numbers")
    own.tell(TERMS, [3], SEEDS)
    assert refusal(own.tell, AGAIN, [2], SEEDS).startswith("of too many neighbors the seed")


def summed(owners, terms, devices, draw):
    """Whether a server that lies as it likes gets the sum of these devices in a session.

    Of every mask that one of them shares with another device it asks either end for the seed.
    """
    others = set(terms.participants) - devices
    try:
        for one, other in ((one, other) for one in devices for other in others):
            teller, peer = (one, other) if draw.random() < 0.7 else (other, one)
            owners[teller].tell(terms, [peer], SEEDS)
        for one in devices:
            tellers = [other for other in terms.graph[one] if other in devices]
            tellers += [other for other in terms.graph[one] if other in others]
            for teller in tellers[: terms.needed]:
                owners[teller].tell(terms, [one], SHARES)
    except SecureAggregationError:
        return False
    return True


def test_sums_of_all_sessions_are_made_of_large_parts(tmp_path, monkeypatch):
    """Seven devices, of whose six neighbors four are needed: no part has fewer than three."""
    monkeypatch.setattr(question_account, "SYNCHRONOUS", "OFF")  # it need not outlast a power cut
    draw, found = np.random.default_rng(0), []
    first = replace(TERMS, participants=tuple(range(7)))
    second = replace(first, run=AGAIN.run)
    for trial in range(12):
        owners = [account(tmp_path, name=f"{trial} {device}") for device in range(7)]
        for own in owners:
            own.answer(first, 0.5, b"numbers")
        sizes = draw.integers(3, 8, 2)
        one, other = ({*draw.choice(7, size, replace=False).tolist()} for size in sizes)
        if summed(owners, first, one, draw) and summed(owners, second, other, draw):
            found.append((one, other))
        if summed(owners, second, one, draw):
            found.append((one, one))
    assert any(one == other for one, other in found)
    for one, other in found:
        assert all(len(part) == 0 or len(part) >= 3 for part in (one - other, other - one))


def test_what_is_entered_outlasts_a_power_cut(tmp_path):
    """Also that the journal of the data base is gone, which would take the entry back."""
    with account(tmp_path)._open() as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_second_process_waits_for_the_first_or_tells_nothing(tmp_path, monkeypatch):
    own, connect = account(tmp_path), sqlite3.connect
    own.answer(TERMS, 0.5, b"numbers")
    monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0.05))
    with own._open(), pytest.raises(NodeError, match="cannot keep its account"):
        account(tmp_path).tell(TERMS, [3], SEEDS)
    own.tell(TERMS, [3], SHARES)


def test_on_a_full_disk_nothing_is_told(tmp_path, monkeypatch):
    own, connect = account(tmp_path), sqlite3.connect
    own.answer(TERMS, 0.5, b"numbers")

    def full(*told, **options):
        found = connect(*told, **options)
        (pages,) = found.execute("PRAGMA page_count").fetchone()
        found.execute(f"PRAGMA max_page_count = {pages}")
        return found

    monkeypatch.setattr(sqlite3, "connect", full)
    rounds = (own.answer(replace(TERMS, round=k), 0.5, b"numbers") for k in range(1, 1000))
    assert "cannot keep its account" in refusal(list, rounds)
    noises = own.counts()[TERMS.run.hex()]
    assert 1 <= len(noises) < 1000
    assert own.answer(AGAIN, 0.5, b"numbers"), "what is there already takes no room"


def test_an_account_that_was_lost_within_an_exchange_tells_nothing(tmp_path):
    """The noise in the masked numbers is that of the secret before."""
    own = account(tmp_path)
    own.answer(TERMS, 0.5, b"numbers")
    (tmp_path / "account").unlink()
    for kind in (SEEDS, SHARES):
        assert "has lost the question" in refusal(own.tell, TERMS, [3], kind)


def test_two_processes_do_not_pass_the_limit_together(tmp_path):
    one, other = account(tmp_path, most=1), account(tmp_path, most=1)
    one.check(TERMS, 0.0)
    other.check(AGAIN, 0.0)
    one.answer(TERMS, 0.0, b"numbers")
    assert "as its owner allows" in refusal(other.answer, AGAIN, 0.0, b"numbers")


def test_questions_without_noise_are_counted_each_time(tmp_path):
    own = account(tmp_path, most=2)
    for terms in (TERMS, AGAIN):
        own.check(terms, 0.0)
        own.answer(terms, 0.0, b"numbers")
    own.tell(TERMS, [3], SEEDS)
    own.tell(AGAIN, [3], SHARES)
    assert own.counts() == {TERMS.run.hex(): [0.0], AGAIN.run.hex(): [0.0]}
    said = "this node has answered as many questions as its owner allows (secagg-questions)"
    assert refusal(own.check, replace(TERMS, round=1), 0.0) == said


def test_at_the_limit_a_noisy_question_may_come_again(tmp_path):
    own = account(tmp_path, most=1)
    own.check(TERMS, 0.5)
    own.answer(TERMS, 0.5, b"numbers")
    account(tmp_path, most=1).check(AGAIN, 0.5)
    with pytest.raises(NodeError, match="as its owner allows"):
        own.check(replace(TERMS, round=1), 0.5)


@pytest.mark.parametrize("what", ["a folder", "nowhere", "no account"])
def test_a_node_that_cannot_keep_its_account_takes_no_part(what, tmp_path):
    path = tmp_path / "account"
    if what == "a folder":
        path.mkdir()
    elif what == "nowhere":
        path = tmp_path / "missing" / "account"
    else:
        path.write_bytes(b"no data base, but long enough to look like one. " * 40)
    with pytest.raises(NodeError) as caught:
        QuestionAccount(path).answer(TERMS, 0.0, b"numbers")
    told = told_to_server(caught.value)
    assert told.startswith("this node cannot keep its account of questions")
    assert str(tmp_path) not in told


def test_a_torn_line_of_the_journal_is_left_out(tmp_path):
    path = tmp_path / "questions.jsonl"
    own = QuestionJournal(path)
    own.note(0, b"one", {3: "too late"}, shows=False)
    own.note(0, b"one", {3: "too late", 4: "gone"}, shows=True)
    own.note(0, b"two", {}, shows=True)
    own.note(1, b"three", {}, shows=False)
    path.write_bytes(path.read_bytes() + b'{"release": 1, "que')
    again = QuestionJournal(path)
    again.note(1, b"four", {}, shows=True)
    for journal in (again, QuestionJournal(path)):
        assert journal.left_out(b"one") == {3: "too late", 4: "gone"}
        assert (journal.sums(0), journal.sums(1), journal.sums(2)) == (2, 1, 0)
        assert [journal.has_another(k, b"one") for k in range(3)] == [False, True, False]


@pytest.mark.parametrize("line", [b"not json", b"[]", b'{"release": 1}', b"null"])
def test_a_damaged_journal_is_refused_in_a_sentence(tmp_path, line):
    path = tmp_path / "questions.jsonl"
    QuestionJournal(path).note(0, b"one", {}, shows=True)
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(RunError, match=r"questions\.jsonl is damaged"):
        QuestionJournal(path)


def test_an_owner_reads_the_account(tmp_path, capsys):
    path = tmp_path / "secagg0.account"
    own = QuestionAccount(path)
    for number, noise in enumerate((0.7, 0.5)):
        own.answer(replace(TERMS, round=number), noise, b"numbers")
    own.answer(AGAIN, 0.0, b"numbers")
    assert command(["account", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"session {TERMS.run.hex()[:8]}: 2 questions, least noise multiplier 0.5"
    assert shown[1:] == [
        f"session {AGAIN.run.hex()[:8]}: 1 question, without noise",
        "3 questions in all",
    ]
    with pytest.raises(FedTinyError, match=r"give the \.account"):
        command(["account", str(tmp_path / "none")])


def accounts(grid):
    """What every node has answered: the noise of each question."""
    found = [account_of(own.node_config).counts().values() for own in grid.contexts.values()]
    return [[noise for run in own for noise in run] for own in found]


def noisy_config(**changes):
    return secure_tiny(**{"rounds": 3, "privacy": NOISE, **NO_SELECTION, **changes})


def same_secrets(folder, others):
    """Two sets of the same nodes: the same keys and secrets, and accounts of their own."""
    for own in with_keys(parts(5), folder / "keys").values():
        account_of(own).counts()
    shutil.copytree(folder / "keys", others / "keys")


class DroppedOnce:
    """A node drops out of the second round, if it does; and the server dies at a stage of it."""

    def __init__(self, stage="", drops=False):
        self.stage, self.drops = stage, drops

    def __call__(self, grid, node, message):
        kind, trained = message.metadata.message_type, grid.kinds(node).count("train")
        if node == 1014 and kind == self.stage and trained == 1 + (kind != "train"):
            raise KilledError
        return GONE if self.drops and node == 1021 and kind == "train" and trained == 1 else None


@pytest.fixture
def dies_before_the_checkpoint(monkeypatch):
    """The server of the first run that has played its second round."""
    done = runner.keep_best

    def dies(server, records):
        if len(records) == 2:
            monkeypatch.setattr(runner, "keep_best", done)
            raise KilledError
        done(server, records)

    monkeypatch.setattr(runner, "keep_best", dies)


def killed_and_resumed(folder, stage, drops):
    """A run that is stopped in its second round and continued by nodes that were started anew."""
    grid = secure_grid(folder, 5, DroppedOnce(stage, drops))
    with pytest.raises(KilledError):
        federate(grid, noisy_config(), folder / "run")
    again = secure_grid(folder)
    return again, federate(again, noisy_config(), folder / "run", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "drops"),
    [("train", False), ("query.unmask", False), ("query.reveal", True), ("query.unmask", True)],
)
def test_killed_between_the_stages_it_resumes_to_the_same_bits(stage, drops, tmp_path):
    """The same sum over the same devices, and nobody spends anything twice."""
    pytest.importorskip("dp_accounting")
    same_secrets(tmp_path, tmp_path / "stopped")
    grid = secure_grid(tmp_path, 5, DroppedOnce("", drops))
    whole = federate(grid, noisy_config(), tmp_path / "run")
    again, path = killed_and_resumed(tmp_path / "stopped", stage, drops)
    assert without_bytes(essence(path)) == without_bytes(essence(whole))
    assert accounts(again) == [[0.5] * 3] * 5, "also who answers only when asked again"
    assert [len(own) for own in accounts(grid)] == [3, 3, 3, 2 if drops else 3, 3]
    assert [line["answered"] for line in lines(path)][1] == [0, 1, 2, *([] if drops else [3]), 4]


@pytest.mark.slow
@pytest.mark.usefixtures("dies_before_the_checkpoint")
def test_killed_with_a_sum_and_without_a_checkpoint_it_has_the_same_sum_again(
    tmp_path, monkeypatch
):
    pytest.importorskip("dp_accounting")
    sums, result = [], SecureSum.result
    monkeypatch.setattr(SecureSum, "result", lambda *told: sums.append(result(*told)) or sums[-1])
    grid, path = killed_and_resumed(tmp_path, "", drops=True)
    assert len(sums) == 4
    assert np.array_equal(sums[1], sums[2])
    assert len({own.tobytes() for own in sums}) == 3
    assert [len(own) for own in accounts(grid)] == [3] * 5
    assert len(lines(path)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("dies_before_the_checkpoint")
def test_a_sum_of_other_devices_in_its_place_is_charged(tmp_path):
    """A node is gone when the run is resumed: another question, other noise, one release more."""
    pytest.importorskip("dp_accounting")
    grid = secure_grid(tmp_path)
    with pytest.raises(KilledError):
        federate(grid, noisy_config(), tmp_path / "run")
    again = secure_grid(tmp_path)
    del again.contexts[1021]
    federate(again, noisy_config(), tmp_path / "run", resume=True)
    whole = federate(secure_grid(tmp_path), noisy_config(rounds=5, seed=8), tmp_path / "whole")
    ours, theirs = ([line["epsilon"] for line in lines(path)] for path in (tmp_path / "run", whole))
    assert ours == [theirs[0], theirs[2], theirs[3]]


@pytest.mark.slow
@pytest.mark.usefixtures("dies_before_the_checkpoint")
def test_a_sum_of_other_devices_never_exceeds_a_budget(tmp_path, capsys):
    """The last round that it allows has shown its sum: another one is not asked for."""
    pytest.importorskip("dp_accounting")
    budget = {name: own for name, own in NOISE.items() if name != "noise_multiplier"}
    config = noisy_config(rounds=2, privacy=budget | {"epsilon": 20.0, "delta": 0.1})
    with pytest.raises(KilledError):
        federate(secure_grid(tmp_path), config, tmp_path / "run")
    again = secure_grid(tmp_path)
    del again.contexts[1021]
    path = federate(again, config, tmp_path / "run", resume=True)
    assert lines(path)[1]["epsilon"] <= 20.0
    assert lines(path)[1]["answered"] == []
    assert "'train' counts for nothing: the budget has no room" in capsys.readouterr().out
    assert [len(own) for own in accounts(again)] == [2] * 4


def test_two_sums_of_a_question_never_differ_by_a_device(tmp_path, monkeypatch, capsys):
    """Whoever asks it again and claims that a device dropped out, whose numbers it has summed."""
    pytest.importorskip("dp_accounting")
    sums, result = [], SecureSum.result
    monkeypatch.setattr(SecureSum, "result", lambda *told: sums.append(result(*told)) or sums[-1])
    config = noisy_config(rounds=1)
    federate(secure_grid(tmp_path), config, tmp_path / "first")
    federate(secure_grid(tmp_path), config, tmp_path / "same")
    assert len(sums) == 2
    assert np.array_equal(*sums)
    lying = secure_grid(tmp_path)
    lying.trouble = lambda grid, node, message: (
        GONE if node == 1021 and message.metadata.message_type == "train" else None
    )
    path = federate(lying, config, tmp_path / "lying")
    assert len(sums) == 2
    assert lines(path)[0]["answered"] == []
    assert "the other secret of device 3 was told" in capsys.readouterr().out
    assert [len(own) for own in accounts(lying)] == [1] * 5


def test_a_node_counts_over_runs_and_restarts(tmp_path):
    grid = secure_grid(tmp_path, **{"secagg-questions": 3})
    federate(grid, secure_tiny(rounds=2, **NO_SELECTION), tmp_path / "first")
    for context in grid.contexts.values():
        context.state = RecordDict()
    with pytest.raises(FedTinyError, match=r"as its owner allows \(secagg-questions\)"):
        federate(grid, secure_tiny(rounds=2, **NO_SELECTION), tmp_path / "second")
    assert accounts(grid) == [[0.0] * 3] * 5
    assert [len(own) for own in account_of(grid.contexts[1000].node_config).counts().values()] == [
        *(2, 1)
    ]


def test_the_account_may_lie_elsewhere(tmp_path):
    nodes = with_keys(parts(1), tmp_path / "keys")
    account_of(nodes[1000] | {"secagg-account": str(tmp_path / "own")}).answer(TERMS, 0.0, b"n")
    assert account(tmp_path, name="own").counts() == {TERMS.run.hex(): [0.0]}
