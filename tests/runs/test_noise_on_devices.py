"""Runs whose devices add the noise in shares: nobody sees a sum without it."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedtiny
from fedtiny.config import from_dict
from fedtiny.devices import secure
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation import private
from fedtiny.federation.messages import Reply, Request, pool_arrays
from fedtiny.federation.secure import Bounds
from fedtiny.federation.secure_exchange import Encoding, context_of
from fedtiny.federation.verbs import Losses, Train
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.privacy.secagg.graph import fewest_summed
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.privacy.secagg.server import SecureSum
from fedtiny.privacy.secagg.terms import Terms
from fedtiny.runs.assembly import assemble
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from .tiny import differences, lines, stop, tiny, train

NOISE = {
    "secure_aggregation": True,
    "noise": "devices",
    "sampling": "fixed",
    "noise_multiplier": 2.0,
    "delta": 0.01,
}
SIX = {"devices": 6, "partition": "iid"}


def noisy_tiny(privacy=None, **changes):
    return tiny(privacy=NOISE | (privacy or {}), fleet=SIX | changes.pop("fleet", {}), **changes)


@pytest.fixture
def dp():
    return pytest.importorskip("dp_accounting")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    pytest.importorskip("dp_accounting")
    return train(noisy_tiny(), tmp_path_factory.mktemp("noise") / "run")


def test_a_stopped_run_resumes_to_the_same_end(finished, tmp_path):
    path = stop(noisy_tiny(), tmp_path / "stopped", 1)
    fedtiny.resume(path, reporter=Silent())
    assert differences(finished.path, path) == []


def test_without_cryptography_every_byte_is_the_same(finished, tmp_path):
    fast = train(noisy_tiny({"cryptography": False}), tmp_path / "fast")
    assert differences(finished.path, fast.path) == ["result", "config", "partition"]
    encoded = train(noisy_tiny(fleet={"wire": "encode"}), tmp_path / "encoded")
    assert differences(finished.path, encoded.path) == ["config", "partition"]


@pytest.mark.parametrize("at", ["take", "shares"])
def test_a_kill_between_the_stages_gives_no_other_message_the_same_noise(
    finished, tmp_path, monkeypatch, at
):
    """A round is played again from its first or its last stage: the same message, or others."""
    messages = {}
    seed, stage = Mechanism.share_seed, getattr(secure._Wire, at)

    def recorded(self, device, message):
        messages.setdefault(found := seed(self, device, message), []).append((device, message))
        return found

    def killed(self, *told):
        if self.request.round == 1 and killed.armed:
            killed.armed = False
            raise KeyboardInterrupt
        return stage(self, *told)

    killed.armed = True
    monkeypatch.setattr(Mechanism, "share_seed", recorded)
    monkeypatch.setattr(secure._Wire, at, killed)
    path = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        train(noisy_tiny(), path)
    fedtiny.resume(path, reporter=Silent())
    assert differences(finished.path, path) == []
    assert all(len(set(found)) == 1 for found in messages.values())
    assert len(messages) == 6 * 4  # a selection and three rounds
    assert sum(len(found) == 2 for found in messages.values()) == (6 if at == "shares" else 0)
    spent = [json.loads((own / "result.json").read_text()) for own in (finished.path, path)]
    assert spent[0]["privacy"] == spent[1]["privacy"]


def test_noise_differs_by_every_part_of_its_key():
    own = Mechanism(1.0, 1.0, 6, seed=1, round=2, number=3, shared_by=(40, 0.66))
    others = [replace(own, **{name: 9}).share_seed(0, b"m") for name in ("seed", "round", "number")]
    found = {own.share_seed(0, b"m"), own.share_seed(1, b"m"), own.share_seed(0, b"n"), *others}
    assert len(found) == 6
    assert own.share_seed(0, b"m") == own.share_seed(0, b"m")


def one_round(**changes):
    """A run, with the model that it sent, and what the devices of the first round answered."""
    assembly = assemble(noisy_tiny({"clip": 0.5}, selection={"kind": "none"}, **changes))
    fedtiny.federation.rounds.prepare(assembly.server, assembly.method)
    assembly.sent = assembly.server.theta
    result = fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    assembly.server.transport.close()
    return assembly, result.outcome


def test_the_server_never_sees_an_exact_sum(monkeypatch, dp):
    """What it unmasks, less the sum of what devices computed, is noise as wide as it should be."""
    exact, seen = [], []
    quantized, result = Scales.quantized, SecureSum.result
    monkeypatch.setattr(
        Scales, "quantized", lambda *told: exact.append((told[0], quantized(*told))) or exact[-1][1]
    )
    monkeypatch.setattr(SecureSum, "result", lambda *told: seen.append(result(*told)) or seen[-1])
    _, outcome = one_round(fleet={"straggler_rate": 0.2}, seed=11)
    assert len(outcome.answered) == 5
    scales, total = exact[0][0], np.sum([own for _, own in exact], axis=0, dtype=np.uint32)
    apart = (seen[0] - total)[:-1].astype(np.int32)
    assert len(apart) > 250
    assert np.mean(apart == 0) < 0.01
    expected = 2.0 * np.sqrt(5 / fewest_summed(6, 40, 0.66)) * scales.levels / 2
    assert apart.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * len(apart)))
    assert seen[0][-1] == len(outcome.answered)


def test_epsilon_is_that_of_the_events(finished, dp):
    account = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(6, 6, dp.GaussianDpEvent(2.0 / 2))
    account.compose(event)  # the selection
    for line in lines(finished.path):
        account.compose(event)
        assert line["epsilon"] == pytest.approx(account.get_epsilon(0.01), rel=1e-12)
    told = json.loads((finished.path / "result.json").read_text())["privacy"]
    assert told["noise"] == "devices"


def test_below_the_threshold_a_round_is_refused_and_changes_nothing(dp):
    """No noise of the server's takes the place of the devices'."""
    assembly, outcome = one_round(fleet={"straggler_rate": 0.2})
    assert outcome.answered == ()
    assert sorted(set(outcome.failed.values())) == ["too few devices for a secure sum", "too late"]
    assert np.array_equal(outcome.theta.vector, assembly.sent.vector)


def test_a_clip_that_adapts_counts_its_bits_under_the_devices_noise(tmp_path, dp):
    run = train(noisy_tiny({"clip": "adaptive", "clip_start": 1e-3}), tmp_path / "run")
    clips = [line["clip"] for line in lines(run.path)]
    assert len(set(clips)) == 3
    kept = train(noisy_tiny({"clip": 0.5}), tmp_path / "kept")
    assert [line["clip"] for line in lines(kept.path)] == [0.5] * 3


def test_without_noise_it_is_the_clipped_sum(tmp_path):
    """`--privacy.noise-multiplier 0` has no shares, whoever would add them."""
    own = {"noise_multiplier": 0.0, "clip": 0.5}
    shared = train(noisy_tiny(own), tmp_path / "shared")
    at_server = train(noisy_tiny(own | {"noise": "server"}), tmp_path / "server")
    assert "model" not in differences(shared.path, at_server.path)


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({"secure_aggregation": False}, "needs --privacy.secure-aggregation"),
        ({"sampling": "poisson"}, "needs --privacy.sampling fixed"),
        ({"noise_multiplier": None}, "give --privacy.epsilon or --privacy.noise-multiplier too"),
        ({"clip": float("inf")}, "give a finite --privacy.clip"),
    ],
)
def test_what_it_needs_is_said(privacy, sentence):
    with pytest.raises(ConfigError, match=sentence):
        from_dict({"privacy": {k: v for k, v in (NOISE | privacy).items() if v is not None}})


def test_a_noise_that_does_not_fit_is_refused_before_anybody_trains(tmp_path, dp):
    with pytest.raises(FedTinyError, match="too many to be rounded within the clip"):
        train(noisy_tiny({"noise_multiplier": 1e6}), tmp_path / "run")


@pytest.mark.parametrize("clip", [1e-30, 0.5, 1e30])
def test_whatever_the_clip_no_vector_is_longer(clip):
    """Losses count as multiples of it, whose squares must not vanish."""
    mechanism = Mechanism(clip, 2.0, 6, 0, 0, 0, shared_by=(40, 0.66))
    pool = pool_arrays(np.ones((50, 1), np.int32))
    request = Request("select", "m", 0, (Losses(),), one_round()[0].sent, pool, mechanism=mechanism)
    encoding = Encoding.planned(request, 6, 1, Bounds())
    told = np.random.default_rng(0).uniform(0, 5, 50).astype(np.float32)
    steps = encoding.numbers(Reply(0, 5, arrays={"losses": told}), 0)[:-1].astype(float)
    middle = encoding.scales.levels / 2
    assert 0.9 * middle < np.linalg.norm(steps - middle) <= middle


@pytest.mark.parametrize("clip", [1e-200, 1e200, 0.0, -1.0, float("nan")])
def test_a_clip_whose_square_vanishes_is_refused(clip):
    with pytest.raises(ConfigError, match="is not in 1e-30 to 1e"):
        Mechanism(clip, 2.0, 6, 0, 0, 0)


def test_noise_follows_from_its_seed_alone(dp):
    theta = one_round()[0].sent
    mechanism = Mechanism(0.5, 2.0, 6, 0, 0, 0, shared_by=(40, 0.66))
    request = Request("train", "fedtiny", 0, (Train(1),), theta, mechanism=mechanism)
    encoding = Encoding.planned(request, 6, 1, Bounds())
    reply = Reply(0, 5, theta, metrics={"loss": 0.0})
    numbers = encoding.numbers(reply, 0)
    one, same, other = (encoding.noisy(numbers, bytes([k]) * 32) for k in (0, 0, 1))
    assert np.array_equal(one, same)
    assert np.mean(one[:-1] == other[:-1]) < 0.01
    assert one[-1] == other[-1] == numbers[-1]
    assert encoding.noise_multiplier == 2.0


def test_all_that_a_device_is_told_is_in_the_question(dp, monkeypatch):
    """Its noise, and whether masks cancel, follow from the hash of it.

    Also if somebody finds two masks of one version, which has 64 bits.
    """
    monkeypatch.setattr(Mask, "version", 7)
    theta, mechanism = one_round()[0].sent, Mechanism(0.5, 2.0, 6, 0, 0, 0, shared_by=(40, 0.66))
    request = Request("train", "fedtiny", 0, (Train(1),), theta, mechanism=mechanism)
    layer, *_ = theta.mask
    moved = {k: theta.mask.indices(k) for k in theta.mask}
    kept = set(moved[layer].tolist())
    other = next(k for k in range(theta.param_spec.sizes[layer]) if k not in kept)
    moved[layer] = np.array(sorted({*list(kept)[1:], other}), np.int32)
    asked = [
        replace(request, theta=Theta(theta.mask, theta.vector + np.float32(1e-3))),
        replace(request, theta=Theta(Mask(theta.param_spec, moved), theta.vector)),
        replace(request, arrays={"array": np.zeros(1, np.float32)}),
        *(replace(request, **one) for one in ({"round": 1}, {"program": (Train(2),)}, {"id": 5})),
        *(
            replace(request, mechanism=replace(mechanism, **one))
            for one in (
                *({"clip": 0.6}, {"noise_multiplier": 2.5}, {"asked": 7}, {"round": 1}),
                *({"number": 1}, {"counts_bits": True}, {"frozen": True}),
                *({"shared_by": (40, 0.7)}, {"shared_by": None}),
            )
        ),
    ]
    found = {context_of("spec", request), context_of("other", request)}
    assert len(found | {context_of("spec", one) for one in asked}) == 2 + len(asked)


def test_terms_that_noise_is_not_scaled_for_are_refused(dp):
    theta = one_round()[0].sent
    mechanism = Mechanism(0.5, 2.0, 6, 0, 0, 0, shared_by=(40, 0.9))
    request = Request("train", "fedtiny", 0, (Train(1),), theta, mechanism=mechanism)
    terms = Terms(bytes(16), 1, 0, request.id, tuple(range(6)), 40, 0.66)
    with pytest.raises(FedTinyError, match="scaled for other terms"):
        Encoding.told(request, terms)


def test_a_run_says_what_its_noise_follows_from():
    (told,) = private.remarks(noisy_tiny(), norms=())
    assert told.startswith("simulated devices draw their noise by --seed")
    assert private.remarks(noisy_tiny({"secret_noise": True}), norms=()) == ()


def test_a_run_says_that_batch_norm_does_not_stand_noise():
    secret = {"secret_noise": True}
    (told,) = private.remarks(noisy_tiny(secret), norms=("bn1",))
    assert "--model lenet5 or resnet18_gn" in told
    assert private.remarks(noisy_tiny({**secret, "noise_multiplier": 0.0}), norms=("bn1",)) == ()
