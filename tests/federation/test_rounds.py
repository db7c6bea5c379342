"""The round: the moments of a method in their order, void rounds, and the density contract."""

from itertools import chain

import pytest

from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Verb, train
from fedtiny.federation.method import Method
from fedtiny.federation.rounds import federate, play_round, prepare
from fedtiny.federation.transport import ABSENT, STRAGGLER

from .fakes import FULL, HALF, Diary, FakeTransport, server_of, theta_of


def started(method=Diary, transport=None, **config):
    server = server_of(transport or FakeTransport(), **config)
    return server, method(server.config)


def test_the_moments_come_in_the_order_of_the_paper():
    server, method = started()
    results = list(federate(server, method, 2))
    one_round = ("train_locally", "score", "aggregate", "adjust")
    assert method.calls == [
        "check",
        "coarse_prune",
        *(f"{moment} {round}" for round in (0, 1) for moment in one_round),
    ]
    assert [result.round for result in results] == [0, 1]
    assert all(result.counted for result in results)
    assert server.round == 2


def test_training_and_measuring_are_one_question():
    server, method = started()
    list(federate(server, method, 2))
    program = (Verb("train", {"epochs": 3}), Verb("top_gradients", {"counts": {"a.weight": 1}}))
    assert [(r.action, r.round, r.program) for r in server.transport.requests] == [
        ("train", 0, program),
        ("train", 1, program),
    ]


def test_each_round_sends_what_the_last_one_made():
    transport = FakeTransport(
        answer=lambda k, r: Reply(k, 1, theta_of(r.theta.mask, r.theta.vector[0] + 1))
    )
    server, method = started(transport=transport)
    list(federate(server, method, 3))
    assert [request.theta.vector[0] for request in transport.requests] == [1, 2, 3]
    assert server.theta.vector[0] == 4


def test_coarse_pruning_happens_once_in_a_run():
    server, method = started()
    prepare(server, method)
    list(federate(server, method, 1))
    list(federate(server, method, 3))
    assert method.calls.count("coarse_prune") == 1
    assert server.round == 3


def test_a_resumed_run_goes_on_where_it_stands():
    server, method = started(theta=theta_of(HALF))
    server.coarse_pruned, server.round = True, 5
    assert [result.round for result in federate(server, method, 7)] == [5, 6]
    assert method.calls[0] == "train_locally 5"


def test_a_finished_run_does_nothing():
    server, method = started()
    server.coarse_pruned, server.round = True, 5
    assert list(federate(server, method, 5)) == []
    assert server.transport.asked == []


def test_the_plain_method_trains_and_averages_and_no_more():
    server = server_of(FakeTransport(), density=1.0, train={"local_epochs": 4})
    (result,) = federate(server, Method(server.config), 1)
    assert server.transport.requests[0].program == (train(4),)
    assert server.theta.version == theta_of(FULL, 1).version
    assert result.changes == {}


def test_a_reducer_that_there_is_not_is_refused_by_name():
    class Robust(Diary):
        reducer = "median"

    server, method = started(Robust)
    with pytest.raises(FedTinyError, match="'diary' names the reducer 'median'; there are 'mean'"):
        list(federate(server, method, 1))


def test_what_was_adjusted_is_told():
    class Swapping(Diary):
        def adjust(self, server, outcome):
            kept = server.theta.mask.indices("a.weight")
            self.dropped, self.grown = kept[0], kept[-1] + 1
            changed = [*kept[1:], self.grown]
            server.theta = server.theta.remasked(server.theta.mask.replace({"a.weight": changed}))

    server, method = started(Swapping)
    (result,) = federate(server, method, 1)
    assert result.changes.keys() == {"a.weight"}
    assert result.changes["a.weight"].grown.tolist() == [method.grown]
    assert result.changes["a.weight"].dropped.tolist() == [method.dropped]
    assert result.outcome.answered == (0, 1, 2)


# Void rounds


@pytest.mark.parametrize("reason", [ABSENT, STRAGGLER, "out of ink"])
def test_a_round_of_too_few_replies_is_void_and_the_run_goes_on(reason):
    def answer(device, request):
        missing = request.round == 1 and device > 0
        return reason if missing else Reply(device, 1, theta_of(HALF, request.round + 5))

    server, method = started(transport=FakeTransport(answer=answer), fleet={"min_replies": 2})
    thetas, counted = [], []
    for result in federate(server, method, 3):
        counted.append(result.counted)
        thetas.append(server.theta)
    assert counted == [True, False, True]
    assert thetas[1] is thetas[0]
    assert [theta.vector[0] for theta in thetas] == [5, 5, 7]
    assert [c for c in method.calls if c.endswith(" 1")] == ["train_locally 1", "score 1"]
    assert server.round == 3


def test_a_round_that_nobody_answers_is_void():
    server, method = started(transport=FakeTransport(answer=lambda *_: ABSENT))
    (result,) = federate(server, method, 1)
    assert not result.counted
    assert result.changes == {}
    assert result.outcome.failed == dict.fromkeys(range(3), ABSENT)
    assert server.theta.vector[0] == 1


def test_a_round_that_nobody_can_do_ends_the_run():
    server, method = started(transport=FakeTransport(answer=lambda *_: "out of ink"))
    with pytest.raises(FedTinyError, match=r"no device answered 'train' in round 1.*ink"):
        list(federate(server, method, 1))


# The density contract


class Greedy(Diary):
    """Grows beyond its limit in round 2."""

    name = "greedy"

    def adjust(self, server, outcome):
        if server.round == 1:
            server.theta = server.theta.remasked(FULL)
        return {}


def test_a_method_that_exceeds_its_density_is_named():
    server, method = started(Greedy)
    with pytest.raises(FedTinyError, match=r"'greedy' broke its contract.*round 2.*limit 0\.5"):
        list(federate(server, method, 3))


def test_a_method_that_does_not_prune_is_named_too():
    class Lazy(Diary):
        name = "lazy"

        def coarse_prune(self, server):
            pass

    server, method = started(Lazy)
    with pytest.raises(FedTinyError, match="'lazy' broke its contract: density 1 "):
        list(federate(server, method, 1))
    assert server.transport.asked == []
    assert not server.coarse_pruned


def test_a_method_may_start_dense_and_state_its_limit_by_round():
    limits = []

    class Gradual(Greedy):
        def coarse_prune(self, server):
            pass

        def adjust(self, server, outcome):
            if server.round == 2:
                server.theta = server.theta.remasked(HALF)
            return {}

        def density_limit(self, round):
            limits.append(round)
            return 1.0 if round < 2 else 0.5

    server, method = started(Gradual)
    list(federate(server, method, 4))
    assert limits == [0, 0, 1, 2, 3]  # before the rounds, and after each
    assert server.theta.mask == HALF


def test_a_round_can_be_played_alone():
    server, method = started()
    prepare(server, method)
    result = play_round(server, method)
    assert (result.round, server.round) == (0, 1)


def test_a_model_is_checked_before_anything_is_asked():
    class Choosy(Diary):
        def check(self, param_spec):
            assert set(chain(*param_spec.blocks)) == set(FULL)
            raise FedTinyError("not this one")

    server, method = started(Choosy)
    with pytest.raises(FedTinyError, match="not this one"):
        list(federate(server, method, 1))
    assert server.transport.asked == []
