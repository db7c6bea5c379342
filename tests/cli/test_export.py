"""fedtiny export, predict and inspect of a packed model, as a user meets them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from safetensors.numpy import load_file

from fedtiny import models
from fedtiny.cli.predict import shares_of
from fedtiny.data import digits
from fedtiny.export import numpy_model, packed
from fedtiny.export.numpy_model import read_image
from fedtiny.export.source import pack_run

from ..bare import bare_python
from ..export.nets import assert_close, measured, tiny_model
from ..runs.tiny import FLAGS, assert_one_sentence, own_data, tiny, train


@pytest.fixture
def shipped(finished):
    """The folder of a finished run with its packed model."""
    pack_run(finished)
    return finished


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Ten digits as files: as they are, larger and in colours, and of other formats."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, image in enumerate(digits().test.images[:10, 0]):
        picture = Image.fromarray(image)
        if number % 2:
            picture = picture.resize((40, 40)).convert("RGBA")
        picture.save(folder / f"{number}.png")
    return sorted(folder.iterdir())


# Export


def test_a_run_names_its_packed_model_and_its_report(fedtiny, tmp_path):
    said = fedtiny("run", *FLAGS, "--rounds", "1", "--out", tmp_path / "run")
    named, report = said.out.splitlines()[-2:]
    path = tmp_path / "run" / "model.packed"
    assert re.match(rf"packed model: {path} \([\d.]+ kB, [\d.]+% of dense\); classify with", named)
    assert report == f"report: {tmp_path / 'run' / 'report.html'}"
    assert packed.read(path).card["method"] == "fedtiny"


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ["model.packed"]),
        (["--values", "int8"], ["model.int8.packed"]),
        (["--values", "fp16", "--no-fold"], ["model.fp16.unfolded.packed"]),
        (["--format", "onnx"], ["model.onnx"]),
        (["--format", "onnx", "--plain"], ["model.plain.onnx"]),
        (["--format", "torch"], ["model.torch.safetensors", "model.torch.json"]),
        (["--format", "c"], ["model_c/model.c", "model_c/model.h"]),
        (["--format", "c", "--values", "fp32"], ["model_c/model.c", "model_c/model.h"]),
        (["--format", "cmake"], ["model_cmake/model.c", "model_cmake/CMakeLists.txt"]),
        (
            ["--format", "platformio", "--prefix", "digits"],
            ["model_platformio/src/digits.c", "model_platformio/platformio.ini"],
        ),
        (
            ["--format", "zephyr", "--activations", "int8"],
            ["model_int8_zephyr/src/classify.c", "model_int8_zephyr/prj.conf"],
        ),
    ],
)
def test_every_format_is_written_and_told(fedtiny, shipped, flags, names):
    said = fedtiny("export", shipped, *flags)
    assert (said.code, said.err) == (0, "")
    for name in names:
        assert f"wrote {shipped / name} (" in said.out
        assert (shipped / name).stat().st_size > 100
    for format in ("dense", "onnx", "packed --values int8", "c --values int8"):
        assert re.search(rf"{format}.* [\d.]+ k?B +[\d.]+%", said.out), format


def test_a_packed_model_can_be_exported_again(fedtiny, shipped, tmp_path):
    out = tmp_path / "elsewhere" / "tiny.packed"
    assert fedtiny("export", shipped / "model.packed", "--values", "int8", "--out", out).code == 0
    assert packed.read(out).held == "int8"
    assert fedtiny("export", out, "--format", "onnx").code == 0
    assert (tmp_path / "elsewhere" / "tiny.onnx").exists()


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--format", "onnx", "--values", "int8"], ["--values int8 is for packed and c"]),
        (["--plain"], ["--plain is for --format onnx"]),
        (["--format", "c", "--values", "fp16"], ["fp16"]),
    ],
)
def test_what_does_not_go_together_is_told(fedtiny, shipped, flags, parts):
    before = sorted(shipped.iterdir())
    said = fedtiny("export", shipped, *flags)
    assert_one_sentence(said.code, said.err, *parts)
    assert sorted(shipped.iterdir()) == before


def test_nothing_that_exists_is_written_over(fedtiny, shipped, tmp_path):
    (tmp_path / "thesis.tex").write_text("my work")
    said = fedtiny("export", shipped, "--out", tmp_path / "thesis.tex")
    assert_one_sentence(said.code, said.err, "exists already; choose another --out")
    assert (tmp_path / "thesis.tex").read_text() == "my work"


def test_neither_file_of_a_torch_export_is_written_over(fedtiny, shipped, tmp_path):
    order = ["export", shipped, "--format", "torch", "--out"]
    (tmp_path / "w.json").write_text("precious")
    said = fedtiny(*order, tmp_path / "w.safetensors")
    assert_one_sentence(said.code, said.err, "w.json exists already; choose another --out")
    assert (tmp_path / "w.json").read_text() == "precious"
    said = fedtiny(*order, tmp_path / "m.json")
    assert_one_sentence(said.code, said.err, "choose an --out that ends in .safetensors")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["w.json"]
    assert fedtiny(*order, tmp_path / "good.safetensors").code == 0
    assert "1.running_mean" in load_file(tmp_path / "good.safetensors")


@pytest.mark.parametrize("format", ["packed", "onnx", "torch", "c", "zephyr"])
@pytest.mark.parametrize("below", ["x", "deep/er/x"])
def test_a_place_below_a_file_is_told(fedtiny, shipped, tmp_path, format, below):
    (tmp_path / "file").write_text("my work")
    said = fedtiny("export", shipped, "--format", format, "--out", tmp_path / "file" / below)
    assert_one_sentence(said.code, said.err, "cannot make the folder", "choose another place")
    assert (tmp_path / "file").read_text() == "my work"


def test_a_file_where_the_folder_of_c_code_goes_is_told(fedtiny, shipped):
    (shipped / "model_c").write_text("my work")
    said = fedtiny("export", shipped, "--format", "c")
    assert_one_sentence(said.code, said.err, "cannot make the folder", "model_c")
    assert (shipped / "model_c").read_text() == "my work"


def test_runs_that_have_no_model_yet(fedtiny, stopped, tmp_path):
    said = fedtiny("export", stopped)
    assert_one_sentence(said.code, said.err, "is not finished", f"fedtiny resume {stopped}")
    said = fedtiny("export", tmp_path / "nowhere")
    assert_one_sentence(said.code, said.err, "there is no ", "give the folder of a run")


@pytest.mark.parametrize("flags", [["--format", "torch"], ["--no-fold"]])
def test_what_a_packed_model_no_longer_has_needs_the_run(fedtiny, shipped, flags):
    said = fedtiny("export", shipped / "model.packed", *flags)
    assert_one_sentence(said.code, said.err, " ".join(flags), "needs the run folder")


def test_a_damaged_packed_model_is_told_by_every_command(fedtiny, shipped, pictures):
    path = shipped / "model.packed"
    path.write_bytes(path.read_bytes()[:-10])
    for order in (["export", path], ["inspect", path], ["predict", path, pictures[0]]):
        said = fedtiny(*order)
        assert_one_sentence(said.code, said.err, str(path), "not a packed model")
    said = fedtiny("inspect", shipped)
    assert said.code == 0, "what the run did can still be seen"
    assert "not a packed model" in said.out.replace("\n", " ")


@pytest.mark.parametrize("format", ["packed", "onnx", "torch", "c"])
@pytest.mark.parametrize("damage", [lambda data: data[:500], lambda data: data[:-9] + bytes(9)])
def test_a_run_folder_with_a_damaged_packed_model_is_exported_whole(
    fedtiny, shipped, format, damage
):
    path = shipped / "model.packed"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    said = fedtiny("export", shipped, "--format", format)
    assert (said.code, said.err) == (0, "")
    if format == "packed":
        assert path.read_bytes() == whole


# Inspect


def test_inspect_draws_a_packed_model(fedtiny, shipped):
    fedtiny("export", shipped, "--values", "int8")
    said = fedtiny("inspect", shipped / "model.int8.packed")
    assert (said.code, said.err) == (0, "")
    assert "(int8)" in said.out
    assert "method fedtiny, model small, data digits" in said.out
    assert "takes samples 1x8x8, gives 10 classes: 0, 1, 2" in said.out
    for name, weights in packed.read(shipped / "model.int8.packed").net.weights.items():
        shape = "x".join(map(str, weights.shape))
        assert re.search(rf"{name} +{shape} +{len(weights.values)} +\d\.\d+ +\d+ B +█", said.out)


def test_inspect_of_a_run_shows_its_packed_layers(fedtiny, shipped):
    said = fedtiny("inspect", shipped)
    assert "Packed layers" in said.out
    assert "Density by layer" in said.out


# Predict


def test_predict_says_what_the_model_says(fedtiny, shipped, pictures):
    said = fedtiny("predict", shipped, *pictures, "--top", "2")
    assert (said.code, said.err) == (0, "")
    *lines, memory = said.out.splitlines()
    assert re.fullmatch(r"resident memory [\d.]+ [MG]B at most", memory)
    model = numpy_model.load(shipped / "model.packed")
    shares = shares_of(model(digits().test.images[:1])[0])
    best, second = np.argsort(-shares)[:2]
    found = re.fullmatch(rf"{pictures[0]}: (\d) ([\d.]+)%  (\d) ([\d.]+)%  [\d.]+ ms", lines[0])
    assert found.group(1, 3) == (str(best), str(second))
    assert float(found.group(2)) == pytest.approx(100 * shares[best], abs=0.06)
    assert len(lines) == len(pictures)


def test_an_image_of_any_size_and_colours_is_taken(shipped, tmp_path):
    Image.new("CMYK", (300, 20), (0, 0, 0, 0)).save(tmp_path / "wide.jpg")
    for shape in ((1, 8, 8), (3, 32, 16), (4, 5, 5)):
        image = read_image(tmp_path / "wide.jpg", shape)
        assert image.shape == shape
        assert image.dtype == np.uint8
        assert image.min() > 250, "white stays white"


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep.pgm"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, name):
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(values).save(tmp_path / name)
    expected = np.rint(values / 257)
    np.testing.assert_array_equal(read_image(tmp_path / name, (1, 256, 256))[0], expected)
    small = read_image(tmp_path / name, (3, 8, 8))
    assert small.mean() == pytest.approx(127.5, abs=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_numbers_without_a_range_are_told(fedtiny, shipped, tmp_path, dtype):
    Image.fromarray(np.ones((8, 8), dtype)).save(tmp_path / "a.tif")
    said = fedtiny("predict", shipped, tmp_path / "a.tif")
    assert_one_sentence(said.code, said.err, "a.tif does not say how bright", "8 or 16 bits")


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_what_is_no_image_is_told(fedtiny, shipped, tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    said = fedtiny("predict", shipped, tmp_path / "a.png")
    assert_one_sentence(said.code, said.err, "a.png cannot be read as an image")


def test_one_bad_image_does_not_cost_the_others(fedtiny, shipped, pictures, tmp_path):
    said = fedtiny("predict", shipped, pictures[0], tmp_path / "none.png", pictures[1])
    assert_one_sentence(said.code, said.err, "No such file")
    assert [line.partition(": ")[0] for line in said.out.splitlines()[:2]] == [
        *map(str, pictures[:2])
    ]


def test_predict_without_what_it_needs(fedtiny, shipped, pictures, tmp_path):
    said = fedtiny("predict", shipped)
    assert_one_sentence(said.code, said.err, "name at least one image")
    said = fedtiny("predict", shipped, pictures[0], "--top", "0")
    assert_one_sentence(said.code, said.err, "--top must be 1 or more")
    said = fedtiny("predict", shipped, tmp_path / "none.png")
    assert_one_sentence(said.code, said.err, "No such file")
    said = fedtiny("predict", tmp_path / "none.packed", pictures[0])
    assert_one_sentence(said.code, said.err, "none.packed: No such file")


def timeless(text):
    """What predict says, without milliseconds and memory."""
    return re.sub(r"[\d.]+ ms|memory .*", "", text)


def test_predict_makes_up_for_a_packed_model_that_is_damaged_or_gone(fedtiny, shipped, pictures):
    whole = timeless(fedtiny("predict", shipped, *pictures).out)
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[:500]), Path.unlink):
        spoil(shipped / "model.packed")
        said = fedtiny("predict", shipped, *pictures)
        assert (said.code, said.err, timeless(said.out)) == (0, "", whole)


def test_predict_gives_the_last_advice_at_once(fedtiny, stopped, pictures, tmp_path):
    said = fedtiny("predict", stopped, pictures[0])
    assert_one_sentence(said.code, said.err, "is not finished", f"fedtiny resume {stopped}")
    own = train(tiny(rounds=1), tmp_path / "own", data=own_data()).path
    said = fedtiny("predict", own, pictures[0])
    assert_one_sentence(said.code, said.err, "of your own; in Python, pass them", "load_run")


NEEDED = ("numpy", "numpy.libs", "PIL", "pillow.libs", "safetensors", "rich", "pygments")
NEEDED += ("markdown_it", "mdurl", "tyro", "docstring_parser", "typeguard", "typing_extensions.py")


@pytest.fixture(scope="module", name="bare_python")
def bare_python_(tmp_path_factory):
    """A Python environment with NumPy, Pillow and what the command line takes; no torch."""
    return bare_python(tmp_path_factory.mktemp("bare"), NEEDED)


def test_predict_works_where_there_is_no_torch(
    fedtiny, bare_python, shipped, pictures, monkeypatch
):
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def say(*arguments):
        order = [bare_python, "-W", "error", *map(str, arguments)]
        return subprocess.run(order, capture_output=True, text=True, check=False)

    assert "No module named 'torch'" in say("-c", "import torch").stderr
    assert "No module named 'sklearn'" in say("-c", "import sklearn").stderr
    bare = say("-m", "fedtiny", "predict", shipped / "model.packed", *pictures)
    assert (bare.returncode, bare.stderr) == (0, "")
    here = fedtiny("predict", shipped / "model.packed", *pictures).out
    assert timeless(bare.stdout) == timeless(here)
    seen = say("-m", "fedtiny", "inspect", shipped / "model.packed")
    assert (seen.returncode, seen.stderr) == (0, "")
    small = shipped.parent / "small.packed"
    made = say("-m", "fedtiny", "export", shipped, "--values", "int8", "--out", small)
    assert (made.returncode, made.stderr) == (0, "")
    assert "onnx is not installed" in " ".join(made.stdout.split())
    assert packed.read(small).held == "int8"
    told = say("-c", f"import fedtiny; fedtiny.load({str(shipped / 'model.packed')!r})")
    assert "it comes with: pip install 'fedtiny[torch]'" in told.stderr


def test_predict_loads_no_torch_even_where_it_is(shipped, pictures):
    code = (
        "import sys; from fedtiny.cli.main import dispatch; "
        f"dispatch(['predict', {str(shipped)!r}, {str(pictures[0])!r}]); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True
    )
    modules = json.loads(run.stdout.splitlines()[-1])
    assert not {"torch", "onnx", "sklearn", "pyarrow"} & set(modules)
    assert "fedtiny.export.numpy_model" in modules


# int8 activations


def test_int8_activations_tell_the_accuracy_of_what_is_exported(fedtiny, shipped, tmp_path):
    said = fedtiny("export", shipped, "--activations", "int8").out
    file = shipped / "model.int8_activations.packed"
    model = numpy_model.load(file)
    told = re.search(r"accuracy ([\d.]+) with float32 activations, ([\d.]+) with int8, on", said)
    found = json.loads((shipped / "result.json").read_text())["accuracy"]
    assert abs(float(told[1]) - found) < 1e-4
    assert abs(float(told[2]) - model.model.card["accuracy"]) < 1e-4
    assert "accuracy_measured_on" in model.model.card
    said = fedtiny("export", file, "--format", "c", "--out", tmp_path / "c", "--prefix", "mine").out
    assert "flash" in said
    header = (tmp_path / "c" / "mine.h").read_text()
    assert "float_accuracy" in header
    fedtiny("export", shipped, "--activations", "int8", "--format", "onnx")
    session = onnxruntime.InferenceSession(shipped / "model.int8_activations.onnx")
    images = digits().test.images[:100]
    (logits,) = session.run(None, {"image": images.astype(np.float32) / 255})
    assert (logits.argmax(axis=1) == model(images).argmax(axis=1)).mean() > 0.97
    assert "int mine_run(const uint8_t *image, float *logits);" in header


def test_a_packed_model_is_calibrated_on_images_that_are_named(fedtiny, shipped, tmp_path):
    images, labels = digits().train.images[:50], digits().train.labels[:50]
    np.savez(tmp_path / "some.npz", x=images, y=labels)
    place = ["--format", "c", "--activations", "int8", "--out", tmp_path / "c"]
    said = fedtiny("export", shipped / "model.packed", *place, "--calibrate", tmp_path / "some.npz")
    assert "on 50 calibration images" in said.out


def test_int8_of_a_small_transformer(fedtiny, tmp_path):
    made = measured(models.build("vit_tiny", (1, 8, 8), 10, width=12), (1, 8, 8), 0.3)
    source, file = tmp_path / "vit.packed", tmp_path / "int8.packed"
    source.write_bytes(packed.packed(tiny_model(made)))
    images, labels = digits().train.images[:12], digits().train.labels[:12]
    np.savez(tmp_path / "some.npz", x=images, y=labels)
    calibrated = ["--activations", "int8", "--calibrate", tmp_path / "some.npz"]
    assert fedtiny("export", source, *calibrated, "--out", file).code == 0
    floats, integers = (numpy_model.load(path)(images) for path in (source, file))
    assert_close(integers, floats, 0.05)
    place = tmp_path / "c"
    assert fedtiny("export", source, *calibrated, "--format", "c", "--out", place).code == 0
    text = (place / "model.c").read_text()
    assert all(f"    {name}(" in text for name in ("layer_norm", "softmax", "multiply_matrices"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--activations", "int8"], "holds no images to calibrate"),
        (["--activations", "int8", "--format", "onnx", "--plain"], "no --plain"),
        (["--activations", "int8", "--values", "fp16"], "has int8 weights, not --values fp16"),
        (["--calibrate", "images"], "--calibrate is for --activations int8"),
        (["--target", "x86"], "--target is for C code"),
        (["--target", "x86", "--format", "c"], "--target is for C code with --activations int8"),
        (["--format", "c", "--prefix", "a-b"], "--prefix is a word of small letters"),
        (["--prefix", "mine"], "--prefix is for C code"),
        (["--bands", "off"], "--bands is for C code"),
    ],
)
def test_settings_of_int8_that_do_not_fit(fedtiny, shipped, tmp_path, flags, sentence):
    place = ["--out", tmp_path / "out"]
    said = fedtiny("export", shipped / "model.packed", *place, *flags)
    assert_one_sentence(said.code, said.err, sentence)
