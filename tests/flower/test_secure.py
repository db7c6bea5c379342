"""Secure aggregation over a grid: the simulator's bits, whoever is killed at whichever stage."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, RecordDict
from safetensors.numpy import load_file

from fedtiny.devices.simulator import Simulator
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.secure import Bounds, Layout
from fedtiny.federation.transport import STRAGGLER
from fedtiny.flower import signing_keys
from fedtiny.flower.node_log import told_to_server
from fedtiny.flower.node_memory import THETA, Memory
from fedtiny.flower.secure_client import Identity
from fedtiny.flower.secure_server import KEY_LOST

from ..runs.tiny import essence, first_of, lines, swaps_of, train
from .federation import Grid, federate, parts
from .secure import secure_grid, secure_tiny, with_keys
from .test_own_data import own_config, write_folder
from .test_resume import without_bytes

GONE = Error(5, "gone")
NO_SELECTION = {"selection": {"kind": "none"}}
ROUNDS = {"rounds": 2, **NO_SELECTION}


def weights(path):
    return load_file(path / "model.safetensors")


def differing(one, other):
    one, other = essence(one), essence(other)
    return [name for name in one if one[name] != other[name]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"device_backend": "native", "pruning": {"growth": "gradient"}, **ROUNDS},
        {"privacy": {"noise_multiplier": 0.5, "clip": "adaptive"}, "rounds": 2},
    ],
)
def test_every_byte_is_that_of_the_simulator(changes, tmp_path):
    if "privacy" in changes:
        pytest.importorskip("dp_accounting")
    config = secure_tiny(**changes)
    grid = secure_grid(tmp_path)
    federated = federate(grid, config, tmp_path / "nodes")
    assert differing(train(config, tmp_path / "simulated").path, federated) == []
    told = json.loads((federated / "result.json").read_text())["secure_aggregation"]
    assert told == {"neighbors": 4, "needed": 3, "cryptography": True}
    asked = [kind for _, kind in grid.log if kind != "query.join"]
    assert "query.reveal" not in asked, "a steady round has one exchange and one unmasking"
    assert asked.count("query.unmask") == len(asked) / 2


def checked_means(monkeypatch):
    """Hold the mean of every exchange against the unrounded one; nodes have as many samples."""
    seen, checked = [], []
    values, follow = Layout.values, Bounds.follow
    monkeypatch.setattr(Layout, "values", lambda *told: seen.append(values(*told)) or seen[-1])

    def following(self, layout, scales, mean):
        assert len(seen) == 5
        error = scales.error(5, mean.weight)
        assert (np.abs(mean.values - np.mean(seen, axis=0)) <= error).all()
        assert not any(mean.clipped)
        checked.append(error.max())
        seen.clear()
        follow(self, layout, scales, mean)

    monkeypatch.setattr(Bounds, "follow", following)
    return checked


def test_the_same_candidate_weights_and_adjustment_as_without(tmp_path, monkeypatch):
    """Beside plain nodes whose growth and bounds are those of a secure run."""
    checked, config = checked_means(monkeypatch), secure_tiny(rounds=1)
    swaps = swaps_of(monkeypatch)
    hidden = federate(secure_grid(tmp_path), config, tmp_path / "secure")
    ours = first_of(swaps)
    plain = secure_tiny(rounds=1, pruning={"growth": "shared"}, robustness={"bound": 0.0})
    beside = federate(Grid(parts(5)), without_masks(plain), tmp_path / "plain")
    theirs = first_of(swaps)
    assert len(ours & theirs) >= 0.99 * max(len(ours), len(theirs))
    ours, theirs = (json.loads((p / "selection.json").read_text()) for p in (hidden, beside))
    assert ours["selection"]["chosen"] == theirs["selection"]["chosen"]
    ours, theirs = weights(hidden), weights(beside)
    assert all(np.allclose(ours[name], theirs[name], atol=1e-4) for name in theirs)
    assert lines(hidden)[0]["mask_change"] == lines(beside)[0]["mask_change"] > 0
    assert len(checked) == 3, "statistics, losses, a round"
    assert checked[-1] < 1e-4


def without_masks(config):
    return replace(config, privacy=replace(config.privacy, secure_aggregation=False))


class Kill:
    """Nodes that die in the second round: before, within or after the masked stage."""

    def __init__(self, **when):
        self.when = {list(parts(8))[int(k[1:])]: stage for k, stage in when.items()}
        self.dead = set()

    def __call__(self, grid, node, message):
        kind, stage = message.metadata.message_type, self.when.get(node)
        second = grid.kinds(node).count("train") == 1
        if kind == "train" and second and stage in ("before", "within"):
            if stage == "within":
                grid.answer(message)  # it has done the work, and nobody hears of it
            self.dead.add(node)
        unmasking = kind in ("query.reveal", "query.unmask")
        if stage == "after" and unmasking and grid.kinds(node).count("train") == 2:
            self.dead.add(node)
        return GONE if node in self.dead else None


def late_in_the_second_round(monkeypatch, devices):
    """The simulator loses the same devices."""

    def trouble(self, device, request):
        return STRAGGLER if request.round == 1 and device in devices else ""

    monkeypatch.setattr(Simulator, "_trouble", trouble)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "when", "lost"),
    [
        (5, {"k3": "before"}, {3}),
        (5, {"k3": "within"}, {3}),
        (5, {"k3": "after"}, set()),
        (8, {"k2": "before", "k6": "after"}, {2, 6}),
        (8, {"k2": "within", "k5": "before"}, {2, 5}),
        (8, {"k1": "after", "k7": "after"}, set()),
    ],
)
def test_the_sum_is_exact_over_survivors(devices, when, lost, tmp_path, monkeypatch):
    config = secure_tiny(devices, fleet={"min_samples": 2}, **ROUNDS)
    grid = secure_grid(tmp_path, devices, Kill(**when))
    path = federate(grid, config, tmp_path / "killed")
    record = lines(path)[1]
    assert record["answered"] == [device for device in range(devices) if device not in lost]
    assert record["failed"] == {str(device): "out of reach" for device in sorted(lost)}
    late_in_the_second_round(monkeypatch, lost)
    simulated = train(config, tmp_path / "simulated").path
    assert differing(simulated, path) in (["metrics", "result"], ["metrics"])
    ours, theirs = lines(path)[1], lines(simulated)[1]
    assert {name for name in ours if ours[name] != theirs[name]} <= {
        *("bytes_down", "bytes_up", "failed"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["before", "within", "after"])
def test_below_the_threshold_a_round_is_refused(stage, tmp_path, capsys):
    """Two of five: each survivor has two neighbors left and needs three."""
    kill = Kill(k1=stage, k3=stage)
    path = federate(secure_grid(tmp_path, 5, kill), secure_tiny(**ROUNDS), tmp_path / "run")
    record = lines(path)[1]
    assert (record["answered"], record["train_loss"], record["mask_change"]) == ([], None, 0)
    assert "too few devices for a secure sum" in record["failed"].values()
    assert "'train' counts for nothing: 2" in capsys.readouterr().out
    whole = federate(secure_grid(tmp_path), secure_tiny(rounds=1, **NO_SELECTION), tmp_path / "one")
    ours, theirs = weights(path), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs), "nothing has moved"


def test_a_silent_node_is_waited_for_as_long_as_a_stage_may_take(tmp_path, capsys):
    def trouble(grid, node, message):
        return (
            "silent" if node == 1007 and message.metadata.message_type == "query.unmask" else None
        )

    config = secure_tiny(rounds=1, **NO_SELECTION)
    path = federate(secure_grid(tmp_path, 5, trouble), config, tmp_path / "run", unmask_timeout=0.3)
    assert lines(path)[0]["answered"] == [0, 1, 2, 3, 4]
    assert "device 1 (laptop-1) does not answer 'unmask': too late" in capsys.readouterr().out


@pytest.mark.slow
def test_a_node_that_was_started_anew_joins_again_with_a_new_key(tmp_path, capsys):
    """Its peers take the new key, and the sums are right again."""
    node = list(parts(5))[2]
    keys = []

    def trouble(grid, asked, message):
        kind = message.metadata.message_type
        if asked == node and kind == "train" and grid.kinds(node).count("train") == 1:
            keys.append(held(grid, node)["device"]["key"])
            grid.contexts[node].state = RecordDict()

    config = secure_tiny(rounds=4, **NO_SELECTION)
    grid = secure_grid(tmp_path, 5, trouble)
    path = federate(grid, config, tmp_path / "run")
    answered = [line["answered"] for line in lines(path)]
    assert answered[:2] == [[0, 1, 2, 3, 4], [0, 1, 3, 4]]
    assert answered[-1] == [0, 1, 2, 3, 4]
    assert lines(path)[1]["failed"] == {"2": KEY_LOST}
    assert grid.kinds(node).count("query.join") == 2
    assert held(grid, node)["device"]["key"] != keys[0]


def test_one_node_lacks_its_key_and_another_its_theta(tmp_path):
    """The second is asked again in the same exchange, with the keys of all who were asked."""
    lost, forgetful = list(parts(5))[2], list(parts(5))[3]

    def trouble(grid, asked, message):
        if message.metadata.message_type == "train" and grid.kinds(asked).count("train") == 1:
            if asked == lost:
                grid.contexts[lost].state = RecordDict()
            elif asked == forgetful:
                grid.contexts[forgetful].state.pop(THETA)

    config = secure_tiny(rounds=2, pruning={"progressive": False}, **NO_SELECTION)
    grid = secure_grid(tmp_path, 5, trouble)
    path = federate(grid, config, tmp_path / "run")
    assert lines(path)[1]["answered"] == [0, 1, 3, 4]
    assert grid.kinds(forgetful).count("train") == 3


def held(grid, node):
    """What a node keeps of secure aggregation."""
    return Memory(grid.contexts[node].state).secure()


def test_no_exchange_outlives_its_unmasking(tmp_path):
    grid = secure_grid(tmp_path)
    federate(grid, secure_tiny(rounds=1, **NO_SELECTION), tmp_path / "run")
    for node in grid.contexts:
        kept = held(grid, node)["device"]
        assert kept["open"] is None
        assert (kept["last"], len(kept["answered"])) == (1, 1)


class KilledError(Exception):
    """The server is gone."""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "fresh"), [("query.unmask", True), ("train", False)])
def test_killed_between_the_stages_it_resumes_to_the_same_bits(fresh, stage, tmp_path):
    """Masked vectors of the round that is played again look anew, and no budget is spent twice."""
    pytest.importorskip("dp_accounting")
    noise = {"noise_multiplier": 0.5, "clip": 0.5, "sampling": "fixed"}
    config = secure_tiny(rounds=3, privacy=noise, **NO_SELECTION)
    whole = federate(secure_grid(tmp_path), config, tmp_path / "whole")
    sent = {}

    class Recorded(Grid):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.message_type == "train":
                node = message.metadata.dst_node_id
                masked = reply.content.array_records["reply"]["data"].data
                sent.setdefault((node, self.kinds(node).count("train")), []).append(masked)
            return reply

    def killed(grid, node, message):
        done = grid.kinds(node).count("train")
        if (
            message.metadata.message_type == stage
            and node == 1014
            and done == 1 + (stage != "train")
        ):
            raise KilledError

    grid = secure_grid(tmp_path, 5, killed, Recorded)
    with pytest.raises(KilledError):
        federate(grid, config, tmp_path / "run")
    grid.trouble, first = lambda *_: None, dict(sent)
    sent.clear()
    again = secure_grid(tmp_path, 5, kind=Recorded) if fresh else grid
    if not fresh:
        grid.sent.clear()
        grid.log.clear()
    federate(again, config, tmp_path / "run", resume=True)
    assert without_bytes(essence(tmp_path / "run")) == without_bytes(essence(whole))
    told = [[line["epsilon"] for line in lines(path)] for path in (tmp_path / "run", whole)]
    assert told[0] == told[1]
    twice = [(first[node, 2][0], sent[node, 1][0]) for node, n in first if n == 2]
    assert len(twice) >= 2
    for one, other in twice:
        one, other = (np.frombuffer(own[-800:], np.uint32) for own in (one, other))
        assert not np.isin(one, other).any()
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))


def test_nodes_without_keys_are_told_what_they_lack(tmp_path, capsys):
    with pytest.raises(FedTinyError, match="0 nodes came"):
        federate(Grid(parts(5)), secure_tiny(), tmp_path / "run")
    assert "this run uses secure aggregation: start nodes with --node-config 'secagg-key=" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("case", ["another place", "not in the list", "unreadable"])
def test_a_node_that_is_not_who_it_says_takes_no_part(case, tmp_path):
    nodes = with_keys(parts(2), tmp_path / "keys")
    own, other = nodes.values()
    signing_keys.make(tmp_path / "others", 1)
    changes = {
        "another place": {"secagg-key": other["secagg-key"]},
        "not in the list": {"secagg-key": str(signing_keys.own_key(tmp_path / "others", 0))},
        "unreadable": {"secagg-key": own["secagg-keys"]},
    }
    said = {
        "another place": "its secagg-key must stand in its list",
        "not in the list": "its secagg-key must stand in its list",
        "unreadable": "settings: this run cannot be played there",
    }
    assert Identity.of(own).device == 0
    with pytest.raises(FedTinyError) as caught:
        Identity.of(own | changes[case])
    told = told_to_server(caught.value)
    assert told.startswith(said[case])
    assert str(tmp_path) not in told, "the server hears of no path"


def test_the_server_turns_away_who_is_not_in_its_own_list(tmp_path, capsys):
    nodes = with_keys(parts(5), tmp_path / "keys")
    strangers = with_keys(parts(5), tmp_path / "others")
    nodes[1007] = strangers[1007]
    config = secure_tiny(rounds=1, **NO_SELECTION)
    keys = str(tmp_path / "keys" / signing_keys.LIST)
    path = federate(Grid(nodes), config, tmp_path / "run", secagg_keys=keys)
    assert lines(path)[0]["answered"] == [0, 2, 3, 4]
    assert "its key is not signed by the node of device 1" in capsys.readouterr().out


def test_a_list_with_a_key_twice_or_of_another_kind_is_refused(tmp_path):
    signing_keys.make(tmp_path / "keys", 2)
    path = tmp_path / "keys" / signing_keys.LIST
    lines = path.read_text().splitlines()
    assert set(signing_keys.read_list(str(path))) == {0, 1}
    for text, said in (
        ("\n".join([*lines, lines[0]]), "has a key twice"),
        ("ssh-rsa AAAA me", "holds a line that is no 'ssh-ed25519 ...'"),
        ("ssh-ed25519", "holds a line that is no 'ssh-ed25519 ...'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            signing_keys.read_list(str(path))


@pytest.mark.slow
def test_noise_of_real_nodes_is_their_own(tmp_path):
    """It follows from a secret of theirs: other nodes have another model, and the same epsilon."""
    pytest.importorskip("dp_accounting")
    noise = {"noise": "devices", "noise_multiplier": 0.5, "clip": 0.5, "sampling": "fixed"}
    config = secure_tiny(privacy=noise, **ROUNDS)
    folders = [tmp_path / "own", tmp_path / "others"]
    paths = [federate(secure_grid(own), config, own / "run") for own in folders]
    paths.append(train(config, tmp_path / "simulated").path)
    assert len({(path / "model.safetensors").read_bytes() for path in paths}) == 3
    told = [[line["epsilon"] for line in lines(path)] for path in paths]
    assert told[0] == told[1] == told[2]
    assert all(line["answered"] == [0, 1, 2, 3, 4] for line in lines(paths[0]))


def test_nodes_that_would_evaluate_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="give the server a test set"):
        federate(secure_grid(tmp_path), secure_tiny(), tmp_path / "run", test="devices")


def test_a_node_with_data_of_its_own_does_not_tell_how_much(tmp_path, monkeypatch):
    """Only a power of two that is no less; the sum has the number of all samples together."""
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))
    config = own_config(tmp_path, 4, rounds=1, **NO_SELECTION)
    counts = (24, 27, 30, 33)
    folders = [write_folder(tmp_path / str(k), count, k) for k, count in enumerate(counts)]
    nodes = {100 + k: {"name": f"ward-{k}", "data": str(own)} for k, own in enumerate(folders)}
    grid = Grid(with_keys(nodes, tmp_path / "keys"))
    secure = replace(config, privacy=replace(config.privacy, secure_aggregation=True))
    path = federate(grid, secure, tmp_path / "run", data="own")
    told = json.loads((path / "nodes.json").read_text())["devices"]
    assert [told[str(k)]["samples"] for k in range(4)] == [32, 32, 32, 64]
    assert lines(path)[0]["answered"] == [0, 1, 2, 3]
    assert lines(path)[0]["train_loss"] > 0


def test_without_cryptography_is_for_the_simulator(tmp_path):
    config = secure_tiny(privacy={"cryptography": False})
    with pytest.raises(ConfigError, match="cryptography = false is for simulated devices"):
        federate(secure_grid(tmp_path), config, tmp_path / "run")
