"""The average over rounds by hand, under a mask that changes, and what becomes the final model."""

import numpy as np
import pytest

from fedtiny.federation import averaging
from fedtiny.federation.averaging import AVERAGE
from fedtiny.federation.messages import Reply
from fedtiny.federation.method import Method
from fedtiny.federation.rounds import federate
from fedtiny.federation.transport import ABSENT

from .fakes import FULL, FakeTransport, server_of, theta_of
from .test_server_optimizer import FIRST_TWO, LAST_TWO, theta

STATISTICS = {"norm.running_mean": [[5.0, 6.0]], "norm.running_var": [[7.0, 8.0]]}


def averaged(kind, *models, start=0, **more):
    """The average after rounds with these models."""
    more = {"average": kind, "average_start": start, **more}
    server = server_of(FakeTransport(), theta=models[0], rounds=9, server=more)
    mask = models[0].mask
    for number, model in enumerate(models):
        server.theta, server.round = model, number
        averaging.update(server, mask)
        mask = model.mask
    return server.arrays.get(AVERAGE)


def test_an_exponential_average_moves_by_the_rest_of_its_decay():
    """0; 0.75 x 0 + 0.25 x 4 = 1; 0.75 x 1 + 0.25 x 5 = 2."""
    models = [theta(value, 0, 0, 0, 1, 0) for value in (0, 4, 5)]
    assert averaged("ema", *models, average_decay=0.75).tolist() == [2, 0, 0, 0, 1, 0]


def test_a_plain_average_is_the_mean_of_the_models():
    models = [theta(value, -value, 0, 0, 1, 2 * value) for value in (1, 4, 7)]
    assert averaged("swa", *models).tolist() == [4, -4, 0, 0, 1, 8]


def test_it_begins_at_its_first_round():
    models = [theta(value, 0, 0, 0, 1, 0) for value in (9, 1, 3)]
    assert averaged("swa", *models, start=1).tolist() == [2, 0, 0, 0, 1, 0]
    assert averaged("swa", *models, start=3) is None


@pytest.mark.parametrize(("rounds", "first"), [(8, 6), (1, 0), (90, 67)])
def test_by_default_it_begins_after_three_quarters(rounds, first):
    assert averaging.first_round(server_of(FakeTransport(), rounds=rounds).config) == first


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_a_weight_that_is_new_enters_with_its_value(kind):
    """Weight 0 leaves; weight 1 is averaged over both rounds; weight 2 is as it was grown."""
    before, after = theta(8, 2, 0, 1, 0, mask=FIRST_TWO), theta(4, 6, 0, 1, 0, mask=LAST_TWO)
    found = averaged(kind, before, after, average_decay=0.5)
    assert found.tolist() == [3, 6, 0, 1, 0]


def run(answers, rounds=4, **more):
    """A run whose devices add one to every value in a round."""

    def answer(device, request):
        if request.action != "average":
            vector = request.theta.vector + 1
            return Reply(device, 1, type(request.theta)(request.theta.mask, vector))
        return answers(device)

    transport = FakeTransport(answer=answer)
    how = {"average": "swa", **more}
    server = server_of(transport, theta_of(FULL), density=1.0, rounds=rounds, server=how)
    results = list(federate(server, Method(server.config), rounds))
    assert len(results) == rounds
    return server, transport


def measured(device):
    arrays = {name: np.array(values, np.float32) for name, values in STATISTICS.items()}
    return Reply(device, 1, arrays=arrays)


def test_the_final_model_is_the_average_with_statistics_that_devices_measured():
    """After rounds 0 to 3 all values are 1 to 4; rounds 2 and 3 are averaged to 3.5."""
    server, transport = run(measured, average_start=2)
    last = transport.requests[-1]
    assert (last.action, last.round, last.candidates) == ("average", 4, 1)
    assert last.theta.vector.tolist() == [3.5] * 15
    assert server.theta.vector.tolist() == [4] * 15
    assert server.model.tensor("norm.running_mean").tolist() == [5, 6]
    assert server.model.tensor("norm.running_var").tolist() == [7, 8]
    assert server.model.tensor("a.weight").tolist() == [3.5] * 4
    told = {"kind": "swa", "rounds": 2, "batch_norm": "measured"}
    assert averaging.record(server) == {"average": told}


def test_if_too_few_devices_answer_the_statistics_are_the_average_s():
    server, _ = run(lambda device: ABSENT, average_start=2)
    assert server.model.vector.tolist() == [3.5] * 15
    assert averaging.record(server)["average"]["batch_norm"] == "averaged"


def test_a_run_that_goes_on_does_so_from_its_last_model():
    server, _ = run(measured, average_start=0)
    for _ in federate(server, Method(server.config), 5):
        assert server.theta.vector[0] == 5
        assert server.model.tensor("a.weight").tolist() == [3] * 4


def test_without_an_average_nothing_is_kept_and_nobody_asked():
    server, transport = run(measured, average="none")
    assert server.model is server.theta
    assert (server.arrays, server.memory) == ({}, {})
    assert [request.action for request in transport.requests] == ["train"] * 4
    assert averaging.record(server) == {}
