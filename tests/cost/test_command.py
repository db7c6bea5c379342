"""fedtiny cost."""

import json
import re

import pytest

from fedtiny.cli.cost import command
from fedtiny.cli.main import dispatch
from fedtiny.errors import ConfigError
from fedtiny.methods import OURS
from fedtiny.privacy.accountant import Release, epsilon

SMALL = ["--model", "small", "--width", "4"]


def printed_json(capsys, *arguments):
    assert command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_all_methods_at_the_papers_densities_by_default(capsys):
    document = printed_json(capsys, "--model", "small")
    rows = document["rows"]
    sparse = [method for method in OURS if method != "fedavg"]
    assert [(row["density"], row["method"]) for row in rows] == [
        (1, "fedavg"),
        *((density, method) for density in (0.01, 0.005, 0.001) for method in sparse),
    ]
    assert document["samples"] == 5000
    assert document["settings"]["train"]["local_epochs"] == 5
    pools = {row["method"]: row["pool_size"] for row in rows[-len(sparse) :]}
    assert (pools["fedtiny"], pools["fedtiny_flow"]) == (100, 0)


def test_the_table(capsys):
    assert command([*SMALL, "--density", "0.05", "--methods", "fedavg", "fedtiny"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith(" fed")] == [
        ["fedavg", "1"],
        ["fedtiny", "0.05"],
    ]
    assert "5000 samples of 3x32x32, 5 epochs, batches of 64, adam" in out
    assert "first compares 2 candidates" in out
    assert "none is added here" in " ".join(out.split())


def test_settings_by_flags(capsys):
    flags = ["--samples", "100", "--local-epochs", "2", "--batch-size", "10", "--optimizer", "sgd"]
    flags += ["--density", "0.1", "--methods", "fedtiny", "--pool-size", "3"]
    document = printed_json(capsys, *SMALL, *flags)
    (row,) = document["rows"]
    macs = row["flops_dense_round"] / 6 / 200
    assert macs == 1024 * 108 + 256 * 8 * 36 + 64 * 16 * 72 + 160
    assert row["pool_size"] == 3
    assert document["settings"]["train"]["optimizer"] == "sgd"


def test_settings_from_a_file_and_flags_that_win(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'model = "small"\nwidth = 4\ndensity = 0.25\n'
        '[data]\nname = "cifar100"\n[train]\nbatch_size = 7\n'
    )
    document = printed_json(capsys, str(file), "--batch-size", "9", "--methods", "snip")
    assert document["classes"] == 100
    assert [row["density"] for row in document["rows"]] == [0.25]
    assert document["settings"]["train"]["batch_size"] == 9


def test_a_budget_from_a_file(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('memory_budget = "3MB"\nmemory_model = "paper"\n[data]\nname = "cifar10"\n')
    (row,) = printed_json(capsys, str(file), "--methods", "snip")["rows"]
    assert row["density"] == pytest.approx(0.01164, abs=1e-5)
    (row,) = printed_json(capsys, str(file), "--methods", "snip", "--density", "0.1")["rows"]
    assert row["density"] == 0.1


@pytest.mark.parametrize(("data", "shape"), [("digits", [1, 8, 8]), ("svhn", [3, 32, 32])])
def test_images_of_a_data_set(capsys, data, shape):
    document = printed_json(capsys, *SMALL, "--data", data, "--methods", "fedavg")
    assert (document["shape"], document["classes"]) == (shape, 10)


def test_images_of_ones_own(capsys):
    flags = ["--data", "folder", "--shape", "1", "20", "24", "--classes", "7"]
    document = printed_json(capsys, *SMALL, *flags, "--methods", "fedavg")
    assert (document["shape"], document["classes"]) == ([1, 20, 24], 7)


def test_flops_by_layer(capsys):
    flags = ["--density", "0.5", "--methods", "fedtiny", "--layers"]
    document = printed_json(capsys, *SMALL, *flags)
    first, second, *_ = document["layers"]
    assert first["forward"] == first["dense"] == 2 * 1024 * 108
    assert (second["kept"], second["dense"]) == (144, 2 * 256 * 288)
    assert second["forward"] == 2 * 256 * 144
    command([*SMALL, *flags])
    assert "FLOPs by layer" in capsys.readouterr().out


PAPER = ["--memory-model", "paper"]


def test_a_budget_gives_the_largest_density(capsys):
    rows = printed_json(capsys, "--model", "resnet18", "--memory-budget", "3MB", *PAPER)["rows"]
    fedtiny = next(row for row in rows if row["method"] == "fedtiny")
    assert fedtiny["density"] == pytest.approx(0.01164, abs=1e-5)
    assert fedtiny["memory_paper"] <= 3_000_000
    lacking = {row["method"]: row["least_memory"] for row in rows if row["density"] is None}
    assert set(lacking) == {"fedavg", "ssfl", "prunefl", "lotteryfl"}
    assert lacking["fedavg"] == 89_391_696


def test_a_budget_of_what_a_device_needs(capsys):
    flags = ["--memory-budget", "310MB", "--methods", "fedtiny"]
    assert command(flags) == 0
    assert "0.036003" in capsys.readouterr().out


def test_both_budgets_and_what_they_chose_are_printed(capsys):
    flags = ["--memory-budget", "64MB", "--flops-budget", "2%", "--methods", "fl_pqsu"]
    (row,) = printed_json(capsys, *flags)["rows"]
    assert row["memory_device"] <= 64_000_000
    assert row["flops_plain"] <= 0.02 * row["flops_dense_round"]
    assert (row["batch_size"], row["budgets"], row["flow_beta"]) == (12, "uniform", None)
    command(flags)
    said = " ".join(capsys.readouterr().out.split())
    assert "fl_pqsu at density 0.016859: 1.67E12 FLOPs in a plain round (2.00%), batches of" in said


@pytest.mark.parametrize(("budgets", "ratio"), [("uniform", 0.0132), ("erk", 0.0281)])
def test_layer_budgets_cost_operations(capsys, budgets, ratio):
    flags = ["--budgets", budgets, "--density", "0.01", "--methods", "fl_pqsu"]
    (row,) = printed_json(capsys, *flags)["rows"]
    assert row["kept_weights"] == 111_575
    assert row["flops_ratio"] == pytest.approx(ratio, abs=5e-5)


def test_each_method_has_its_own_layer_budgets_unless_some_are_asked_for(capsys):
    flags, both = [*SMALL, "--density", "0.2"], ["fedtiny", "fedtiny_flow"]
    names, estimated = ("uniform", "erk"), [False, True]
    rows = printed_json(capsys, *flags, "--methods", *both)["rows"]
    assert tuple(row["budgets"] for row in rows) == names
    assert [any("estimated by ERK's" in note for note in row["notes"]) for row in rows] == estimated
    budget = str(rows[0]["flops_plain"])
    walked = printed_json(capsys, *flags, "--methods", *both, "--flops-budget", budget)["rows"]
    assert [row["budgets"] for row in walked] == ["uniform", "flow"]
    assert all(row["flops_plain"] <= int(budget) for row in walked)
    for budgets in (*names, "flow"):
        rows = printed_json(capsys, *flags, "--methods", *both, "--budgets", budgets)["rows"]
        assert [row["budgets"] for row in rows] == [budgets] * 2
        assert rows[0]["flops_plain"] == rows[1]["flops_plain"]


def test_a_method_of_one_threshold_is_left_out_of_a_budget_of_flops(capsys):
    rows = printed_json(capsys, *SMALL, "--density", "0.2", "--flops-budget", "70%")["rows"]
    assert [row["method"] for row in rows if row.get("left_out")] == ["ssfl"]
    assert len(rows) == len(OURS)
    with pytest.raises(ConfigError, match="ssfl sets one threshold"):
        command([*SMALL, "--methods", "ssfl", "--flops-budget", "70%"])


def test_flow_is_measured_where_it_is_asked_about(capsys):
    flags = [*SMALL, "--density", "0.2", "--methods", "fedtiny_flow"]
    asked = (["--flow-beta", "0"], ["--flow-floor", "0.5"], ["--flow-normalize", "never"])
    for more in asked:
        (row,) = printed_json(capsys, *flags, *more)["rows"]
        assert row["budgets"] == "flow"
    estimate = printed_json(capsys, *flags, "--layers")
    assert estimate["settings"]["pruning"]["budgets"] == "erk"
    assert sum(layer["kept"] for layer in estimate["layers"]) > estimate["rows"][0]["kept_weights"]
    with pytest.raises(ConfigError) as error:
        command([*SMALL, "--methods", "fedtiny_flow", "--memory-budget", "10"])
    assert "estimated" not in str(error.value)


def test_one_method_alone_is_costed_with_its_own_recipe(capsys):
    flags = [*SMALL, "--density", "0.2", "--methods"]
    alone = printed_json(capsys, *flags, "fedtiny_flow")["settings"]["train"]["optimizer"]
    beside = printed_json(capsys, *flags, "fedtiny", "fedtiny_flow")["settings"]["train"]
    assert (alone, beside["optimizer"]) == ("sgd", "adam")


def test_flow_budgets_of_a_small_network(capsys):
    flags = [*SMALL, "--density", "0.2", "--methods", "fl_pqsu", "--budgets", "flow"]
    lavish, frugal = (
        printed_json(capsys, *flags, "--flow-beta", beta)["rows"][0] for beta in ("0", "2")
    )
    assert lavish["kept_weights"] == frugal["kept_weights"]
    assert lavish["flops_plain"] > frugal["flops_plain"]
    between = (lavish["flops_plain"] + frugal["flops_plain"]) // 2
    (row,) = printed_json(capsys, *flags, "--flops-budget", str(between))["rows"]
    assert row["flops_plain"] <= between
    assert 0 < row["flow_beta"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "fedtyni"], "did you mean 'fedtiny'"),
        (["--model", "resnet"], "did you mean 'resnet"),
        (["--data", "cifar"], "did you mean 'cifar10'"),
        (["--data", "folder"], "give --shape and --classes"),
        (["--density", "2"], "must lie in"),
        (["--density", "1e-9"], "choose at least"),
        (["--samples", "1"], "--samples must be at least 2"),
        (["--memory-budget", "3XB"], "is not a size"),
        (["--memory-budget", "3MB", "--density", "0.1"], "not both"),
        (["--flops-budget", "0.02"], "write a share of the dense network's, as 2%"),
        (["--flops-budget", "0.1%", "--methods", "snip"], "at least .* FLOPs in a plain round"),
        (["--memory-budget", "1MB", "--methods", "fedavg", *PAPER], "at least 89,391,696 bytes"),
        (
            ["--memory-budget", "1kB", *PAPER],
            "no method fits, .* is this: small_model .* at least 1,448",
        ),
    ],
)
def test_mistakes_are_told(arguments, message):
    with pytest.raises(ConfigError, match=message):
        command(arguments)


def test_a_network_that_cannot_be_had_leaves_the_other_methods_their_rows(capsys):
    flags = ["--model", "resnet18", "--width", "4", "--density", "0.001"]
    rows = {row["method"]: row for row in printed_json(capsys, *flags)["rows"]}
    assert rows["small_model"]["density"] is None
    assert "the small model has at least 181 parameters" in rows["small_model"]["notes"][0]
    assert rows["fedtiny"]["density"] == 0.001


def test_the_command_is_known(capsys):
    assert dispatch(["cost", *SMALL, "--density", "0.05", "--methods", "snip"]) == 0
    assert "snip" in capsys.readouterr().out


def test_a_method_whose_network_reads_other_data_is_left_out(capsys):
    asked = ["--model", "cnn1d", "--width", "4", "--shape", "6", "16", "--density", "0.1"]
    assert command(asked) == 0
    out = capsys.readouterr().out
    shown = [line.split()[0] for line in out.splitlines() if line.startswith(" ") and line.strip()]
    assert "small_model" not in shown
    assert "fedtiny" in shown
    assert "left out: small_model trains 'small', which reads images, but the data are" in out
    assert "cnn1d: 5000 samples of 6x16" in out
    with pytest.raises(ConfigError, match=r"^small_model trains 'small', which reads images"):
        command([*asked, "--methods", "small_model"])


@pytest.mark.parametrize(("model", "example"), [("cnn1d", "6 128"), ("mlp", "64")])
def test_networks_of_sequences_and_tables_need_a_shape(model, example):
    with pytest.raises(
        ConfigError, match=f"^{model} reads .*; give --shape, such as .* {example}$"
    ):
        command(["--model", model])


PRIVATE = ["--density", "0.1", "--devices", "20", "--rounds", "4"]


def test_epsilon_of_the_planned_rounds(capsys):
    pytest.importorskip("dp_accounting")
    methods = ["--methods", "fedavg", "fedtiny", "feddst"]
    document = printed_json(capsys, *SMALL, *PRIVATE, *methods, "--noise-multiplier", "2")
    told = [row.get("privacy") for row in document["rows"]]
    assert [own and own["releases"] for own in told] == [4, 5, None]  # a selection more
    assert told[0]["epsilon"] == pytest.approx(
        epsilon([(Release(2.0, "poisson", 1.0, 20), 4)], 20**-1.1)
    )
    assert "devices of method 'feddst' send masks" in document["rows"][2]["notes"][0]
    document = printed_json(capsys, *SMALL, *PRIVATE, "--methods", "snip", "--epsilon", "6")
    assert 5.9 < document["rows"][0]["privacy"]["epsilon"] <= 6


def test_without_noise_there_is_no_epsilon(capsys):
    flags = [*SMALL, *PRIVATE, "--methods", "snip", "--noise-multiplier", "0"]
    assert printed_json(capsys, *flags)["rows"][0]["privacy"]["epsilon"] is None
    assert command(flags) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "epsilon inf at delta 0.037 after 4 questions to devices, noise multiplier 0" in said


def test_methods_that_ask_equally_often_share_a_sentence_on_epsilon(capsys):
    pytest.importorskip("dp_accounting")

    def said(*methods):
        assert command([*SMALL, *PRIVATE, "--noise-multiplier", "2", "--methods", *methods]) == 0
        text = " ".join(capsys.readouterr().out.split())
        return re.findall(
            r"of a device([^:]*): epsilon \S+ at delta \S+ after (\d) questions", text
        )

    assert said("snip", "fedtiny", "fedavg") == [(" by snip, fedavg", "4"), (" by fedtiny", "5")]
    assert said("snip", "fedavg") == [("", "4")]


def test_secure_aggregation_says_what_it_adds(capsys):
    flags = [*SMALL, *PRIVATE, "--methods", "fedtiny", "--growth", "gradient"]
    plain, hidden = (
        printed_json(capsys, *flags, *more)["rows"][0] for more in ([], ["--secure-aggregation"])
    )
    told = hidden["secure_aggregation"]
    assert hidden["bytes_up"] - plain["bytes_up"] == told["extra_bytes_up"]
    assert hidden["bytes_down"] - plain["bytes_down"] == told["extra_bytes_down"]
    assert (told["devices"], told["neighbors"], told["masks"]) == (20, 19, 20)
    assert told["table_bytes"] < hidden["bytes_adjusting_up"]
    assert command([*flags, "--secure-aggregation"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "20 devices with 19 neighbors each: fedtiny at density 0.1 takes" in said
    assert "the largest gradients travel in a table of" in said
