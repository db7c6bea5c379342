"""The server asks the right devices and keeps account."""

import pytest

from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Verb
from fedtiny.federation.transport import ABSENT, STRAGGLER, Traffic

from .fakes import HALF, FakeTransport, server_of, theta_of

PROGRAM = (Verb("train", {"epochs": 1}),)


def test_a_request_says_who_asks_what_and_when():
    transport = FakeTransport()
    server = server_of(transport, method="fedavg")
    server.round = 4
    server.ask("train", PROGRAM)
    ((devices, request, reducer),) = transport.asked
    assert devices == [0, 1, 2]
    assert (request.action, request.method, request.round) == ("train", "fedavg", 4)
    assert (request.program, request.theta, request.arrays) == (PROGRAM, server.theta, {})
    assert reducer == "mean"


def test_another_theta_and_arrays_may_be_sent():
    transport, other = FakeTransport(), theta_of(HALF, 5)
    arrays = {"x": other.vector}
    server_of(transport).ask("select", PROGRAM, theta=other, arrays=arrays)
    assert transport.requests[0].theta is other
    assert transport.requests[0].arrays == arrays


def test_bytes_and_failures_add_up_until_the_account_is_taken():
    def answer(device, request):
        return ABSENT if device == request.round else Reply(device, 1, request.theta)

    server = server_of(FakeTransport(answer=answer))
    for server.round in (0, 2):
        server.ask("train", PROGRAM)
    assert server.take_account() == (Traffic(60, 6), {0: ABSENT, 2: ABSENT}, {}, [])
    assert server.take_account() == (Traffic(), {}, {}, [])
    server.round = 1
    server.ask("train", PROGRAM)
    assert server.take_account() == (Traffic(30, 3), {1: ABSENT}, {}, [])


def test_an_account_taken_does_not_change_any_more():
    server = server_of(
        FakeTransport(answer=lambda device, request: STRAGGLER if device else Reply(0, 1))
    )
    server.ask("train", PROGRAM)
    failed = server.take_account().failed
    server.failed[9] = "later"
    assert failed == {1: STRAGGLER, 2: STRAGGLER}


# Who is asked


def asked(fraction, devices, rounds=1, seed=0, action="train"):
    transport = FakeTransport(devices)
    server = server_of(transport, seed=seed, fleet={"fraction": fraction, "devices": devices})
    for server.round in range(rounds):
        server.ask(action, PROGRAM)
    return [devices for devices, _, _ in transport.asked]


@pytest.mark.parametrize(
    ("fraction", "devices", "number"),
    [(1.0, 10, 10), (0.3, 10, 3), (0.25, 10, 3), (0.01, 10, 1), (0.1, 100, 10), (0.5, 3, 2)],
)
def test_a_fraction_of_the_devices_is_asked(fraction, devices, number):
    (chosen,) = asked(fraction, devices)
    assert len(chosen) == len(set(chosen)) == number
    assert chosen == sorted(chosen)
    assert set(chosen) <= set(range(devices))
    assert all(type(device) is int for device in chosen)


@pytest.mark.parametrize(
    ("fraction", "devices", "number"), [(0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7)]
)
def test_a_fraction_that_is_whole_is_not_rounded_up(fraction, devices, number):
    """Though 0.07 * 100 is 7.000000000000001."""
    (chosen,) = asked(fraction, devices)
    assert len(chosen) == number


def test_the_choice_is_new_each_round_and_fixed_by_the_seed():
    first = asked(0.3, 10, rounds=20)
    assert first == asked(0.3, 10, rounds=20) != asked(0.3, 10, rounds=20, seed=1)
    assert len({tuple(chosen) for chosen in first}) > 10
    assert {device for chosen in first for device in chosen} == set(range(10))


def test_a_round_s_choice_does_not_depend_on_what_was_asked_before():
    transport = FakeTransport(10)
    server = server_of(transport, fleet={"fraction": 0.3, "devices": 10})
    server.ask("select", PROGRAM)
    server.round = 7
    server.ask("train", PROGRAM)
    assert transport.asked[-1][0] == asked(0.3, 10, rounds=8)[7]


@pytest.mark.parametrize("action", ["select", "evaluate"])
def test_all_are_asked_for_anything_but_training(action):
    assert asked(0.3, 10, action=action) == [list(range(10))]


# Who answers


@pytest.mark.parametrize(("minimum", "enough"), [(1, True), (2, True), (3, False)])
def test_enough_is_the_stated_minimum(minimum, enough):
    transport = FakeTransport(
        answer=lambda k, request: STRAGGLER if k == 1 else Reply(k, 1, request.theta)
    )
    server = server_of(transport, fleet={"min_replies": minimum})
    assert server.enough(server.ask("train", PROGRAM)) == enough


def test_nobody_answering_for_errors_is_an_error_that_tells_them():
    server = server_of(FakeTransport(9, lambda k, _: f"out of ink {k}" if k else STRAGGLER))
    server.round = 3
    with pytest.raises(FedTinyError, match=r"no device answered 'train' in round 4") as told:
        server.ask("train", PROGRAM)
    assert "device 1: out of ink 1" in str(told.value)
    assert "ink 8" not in str(told.value)  # a few are enough


def test_nobody_answering_for_simulated_trouble_is_an_outcome():
    server = server_of(FakeTransport(answer=lambda k, _: STRAGGLER if k else ABSENT))
    outcome = server.ask("train", PROGRAM)
    assert outcome.answered == ()
    assert outcome.failed == {0: ABSENT, 1: STRAGGLER, 2: STRAGGLER}


def test_one_answer_is_enough_for_the_others_errors_to_pass():
    server = server_of(FakeTransport(answer=lambda k, request: "ink" if k else Reply(0, 1)))
    assert server.ask("train", PROGRAM).answered == (0,)
