"""Operations as operators of ONNX, opset 17."""

from math import prod

import numpy as np

from fedtiny.export.onnx_steps import INPUT, Attributes, Form, Steps, of_two, on_images, plain
from fedtiny.graph.arrays import Floats
from fedtiny.graph.ir import Kind, Node
from fedtiny.graph.windows import adaptively_pooled, counted


def _window(node: Node) -> Attributes:
    return {
        "kernel_shape": list(node.kernel),
        "strides": list(node.stride),
        "pads": [*node.padding, *node.ends],
    }


def _convolution(node: Node) -> Attributes:
    found = _window(node)
    if node.dilation != (1, 1):
        found["dilations"] = list(node.dilation)
    if node.groups != 1:
        found["group"] = node.groups
    if node.output_padding != (0, 0):
        found["output_padding"] = list(node.output_padding)
    return found


def _mean_pool(node: Node) -> Attributes:
    return {"count_include_pad": int(node.count_padding), **_window(node)}


def max_pool(s: Steps, number: int, read: list[str], out: str) -> str:
    """In ceil mode, which ONNX means otherwise, with as much padding as the last windows need."""
    node = s.node(number)
    window = _window(node)
    if node.ceil:
        window["pads"] = [*node.padding, *_ends(s, number)]
    return s.add("MaxPool", [s.image(read[0])], out, **window)


def mean_pool(s: Steps, number: int, read: list[str], out: str) -> str:
    """In ceil mode, where runtimes differ in what they divide by, of zeros around times shares."""
    node = s.node(number)
    if not node.ceil:
        return on_images("AveragePool", _mean_pool)(s, number, read, out)
    pads = s.numbers(f"{out}.pads", 0, 0, *node.padding, 0, 0, *_ends(s, number))
    padded = s.add("Pad", [s.image(read[0]), pads], f"{out}.padded")
    window = {"kernel_shape": list(node.kernel), "strides": list(node.stride)}
    s.add("AveragePool", [padded], f"{out}.whole", **window)
    _, *size = s.net.graph.shapes[node.inputs[0]]
    shares = prod(node.kernel) / counted(np.ones((1, 1, *size), np.float32), node)
    return s.add("Mul", [f"{out}.whole", s.array(f"{out}.shares", shares)], out)


def _ends(s: Steps, number: int) -> list[int]:
    """How far the last windows of a pool reach beyond what it reads, by axis."""
    node, (_, *places) = s.node(number), s.net.graph.shapes[number]
    _, *size = s.net.graph.shapes[node.inputs[0]]
    sides = zip(places, node.stride, node.kernel, size, node.padding, strict=True)
    return [max(0, (n - 1) * step + k - side - p) for n, step, k, side, p in sides]


def linear(s: Steps, number: int, read: list[str], out: str) -> str:
    """A product of rows; over images a pointwise convolution."""
    if s.net.graph.shapes[number][1:] != (1, 1):
        return s.add("Conv", [s.image(read[0]), *read[1:]], out, kernel_shape=[1, 1])
    s.rows.add(out)
    return s.add("Gemm", [s.row(read[0]), *read[1:]], out, transB=1)


def transposed(s: Steps, number: int, read: list[str], out: str) -> str:
    """Output padding from the stride on, which runtimes refuse, by zeros that are read."""
    node, window = s.node(number), _convolution(s.node(number))
    sides = list(zip(node.output_padding, node.stride, node.ends, strict=True))
    images = [s.image(read[0]), *read[1:]]
    if any(more >= stride for more, stride, _ in sides):
        zeros = [max(0, -(-(more - end) // stride)) for more, stride, end in sides]
        pads = s.numbers(f"{out}.pads", *[0] * 6, *zeros)
        images[0] = s.add("Pad", [images[0], pads], f"{out}.padded")
        del window["output_padding"]
        cut = (e + n * step - more for (more, step, e), n in zip(sides, zeros, strict=True))
        window["pads"] = [*node.padding, *cut]
    return s.add("ConvTranspose", images, out, **window)


def batch_norm(s: Steps, number: int, read: list[str], out: str) -> str:
    """With running statistics."""
    node = s.node(number)
    named = zip(("scale", "bias", "mean", "variance"), s.net.norms[node.name].parts, strict=True)
    arrays = [s.array(f"{node.name}.{part}", values) for part, values in named]
    s.like(out, read[0])
    return s.add("BatchNormalization", [*read, *arrays], out, epsilon=node.epsilon)


def group_norm(s: Steps, number: int, read: list[str], out: str) -> str:
    """An instance norm of groups, then the scale and shift of each channel."""
    node, shape = s.node(number), s.net.graph.shapes[number]
    norm = s.net.norms[node.name]
    ones, zeros = (np.full(node.groups, n, dtype=np.float32) for n in (1, 0))
    groups = s.numbers(f"{out}.groups", 0, node.groups, -1)
    apart = s.add("Reshape", [s.image(read[0]), groups], f"{out}.apart")
    unit = [s.array(f"{out}.ones", ones), s.array(f"{out}.zeros", zeros)]
    s.add("InstanceNormalization", [apart, *unit], f"{out}.normed", epsilon=node.epsilon)
    s.add("Reshape", [f"{out}.normed", s.numbers(f"{out}.shape", 0, *shape)], f"{out}.joined")
    gamma = s.array(f"{node.name}.scale", norm.gamma.reshape(-1, 1, 1))
    s.add("Mul", [f"{out}.joined", gamma], f"{out}.scaled")
    return s.add(
        "Add", [f"{out}.scaled", s.array(f"{node.name}.bias", norm.beta.reshape(-1, 1, 1))], out
    )


def layer_norm(s: Steps, number: int, read: list[str], out: str) -> str:
    """Over the channels, which ONNX wants last."""
    node = s.node(number)
    norm = s.net.norms[node.name]
    arrays = [s.array(f"{node.name}.scale", norm.gamma), s.array(f"{node.name}.bias", norm.beta)]
    s.add("Transpose", [s.image(read[0])], f"{out}.turned", perm=[0, 2, 3, 1])
    turned = [f"{out}.turned", *arrays]
    s.add("LayerNormalization", turned, f"{out}.normed", axis=-1, epsilon=node.epsilon)
    return s.add("Transpose", [f"{out}.normed"], out, perm=[0, 3, 1, 2])


def adaptive_pool(s: Steps, number: int, read: list[str], out: str) -> str:
    """The mean of all, or means over several windows by products with matrices of shares."""
    node = s.node(number)
    if node.size == (1, 1):
        return s.add("GlobalAveragePool", [s.image(read[0])], out)
    _, *sides = s.net.graph.shapes[node.inputs[0]]
    rows, columns = (_shares(*pair) for pair in zip(sides, node.size, strict=True))
    across = s.array(f"{out}.columns", columns.T.copy())
    s.add("MatMul", [s.image(read[0]), across], f"{out}.across")
    return s.add("MatMul", [s.array(f"{out}.rows", rows), f"{out}.across"], out)


def _shares(side: int, parts: int) -> Floats:
    """The matrix [parts, side] that takes the means of one line of pixels."""
    line = np.eye(side, dtype=np.float32).reshape(side, 1, side, 1)
    return adaptively_pooled(line, (parts, 1)).reshape(side, parts).T.copy()


def flatten(s: Steps, number: int, read: list[str], out: str) -> str:
    """To two axes."""
    s.rows.add(out)
    return s.add("Flatten", read, out, axis=1)


def relu6(s: Steps, number: int, read: list[str], out: str) -> str:
    """A clip."""
    return s.like(s.add("Clip", [*read, s.number(0.0), s.number(6.0)], out), read[0])


def silu(s: Steps, number: int, read: list[str], out: str) -> str:
    """x sigmoid(x)."""
    s.add("Sigmoid", read, f"{out}.share")
    return s.like(s.add("Mul", [read[0], f"{out}.share"], out), read[0])


def gelu(s: Steps, number: int, read: list[str], out: str) -> str:
    """x (1 + erf(x / sqrt 2)) / 2, or the same by tanh."""
    (x,) = read
    if s.node(number).approximate:
        s.add("Mul", [x, x], f"{out}.square")
        s.add("Mul", [f"{out}.square", s.number(0.044715)], f"{out}.part")
        s.add("Add", [f"{out}.part", s.number(1.0)], f"{out}.more")
        s.add("Mul", [x, f"{out}.more"], f"{out}.bent")
        s.add("Mul", [f"{out}.bent", s.number((2 / np.pi) ** 0.5)], f"{out}.inner")
        s.add("Tanh", [f"{out}.inner"], f"{out}.share")
    else:
        s.add("Mul", [x, s.number(0.5**0.5)], f"{out}.inner")
        s.add("Erf", [f"{out}.inner"], f"{out}.share")
    s.add("Add", [f"{out}.share", s.number(1.0)], f"{out}.both")
    s.add("Mul", [x, f"{out}.both"], f"{out}.double")
    return s.like(s.add("Mul", [f"{out}.double", s.number(0.5)], out), x)


def reshape(s: Steps, number: int, read: list[str], out: str) -> str:
    """The values of each image in another shape."""
    shape = s.numbers(f"{out}.shape", 0, *s.net.graph.shapes[number])
    return s.add("Reshape", [s.image(read[0]), shape], out)


def upsample(s: Steps, number: int, read: list[str], out: str) -> str:
    """Nearest values by whole factors."""
    before, after = (s.net.graph.shapes[n] for n in (s.node(number).inputs[0], number))
    factors = [1, *(new / old for new, old in zip(after, before, strict=True))]
    scales = s.array(f"{out}.scales", np.array(factors, dtype=np.float32))
    modes = {"mode": "nearest", "nearest_mode": "floor"}
    modes["coordinate_transformation_mode"] = "asymmetric"
    return s.add("Resize", [s.image(read[0]), "", scales], out, **modes)


def parameter(s: Steps, number: int, read: list[str], out: str) -> str:
    """A learned tensor, for every image."""
    node, shape = s.node(number), s.net.graph.shapes[number]
    values = s.array(f"{node.name}.values", s.net.parameters[node.name].reshape(1, *shape))
    s.add("Shape", [INPUT], f"{out}.images", start=0, end=1)
    sides = s.numbers(f"{out}.sides", *shape)
    s.add("Concat", [f"{out}.images", sides], f"{out}.shape", axis=0)
    return s.add("Expand", [values, f"{out}.shape"], out)


def slice(s: Steps, number: int, read: list[str], out: str) -> str:
    """A part along an axis."""
    node = s.node(number)
    bounds = {"starts": node.start, "ends": node.start + node.channels, "axes": 1 + node.axis}
    named = [s.numbers(f"{out}.{name}", value) for name, value in bounds.items()]
    return s.add("Slice", [s.image(read[0]), *named], out)


def scale(s: Steps, number: int, read: list[str], out: str) -> str:
    """A number times all values, plus another."""
    node = s.node(number)
    s.add("Mul", [read[0], s.number(node.factor)], f"{out}.product")
    return s.like(s.add("Add", [f"{out}.product", s.number(node.offset)], out), read[0])


FORMS: dict[Kind, Form] = {
    Kind.INPUT: plain("Sub"),
    Kind.CONVOLUTION: on_images("Conv", _convolution),
    Kind.LINEAR: linear,
    Kind.BATCH_NORM: batch_norm,
    Kind.RELU: plain("Relu"),
    Kind.ADD: of_two("Add"),
    Kind.MAX_POOL: max_pool,
    Kind.MEAN_POOL: mean_pool,
    Kind.ADAPTIVE_POOL: adaptive_pool,
    Kind.FLATTEN: flatten,
    Kind.DROPOUT: plain("Identity"),
    Kind.TRANSPOSED_CONVOLUTION: transposed,
    Kind.GROUP_NORM: group_norm,
    Kind.LAYER_NORM: layer_norm,
    Kind.RELU6: relu6,
    Kind.LEAKY_RELU: plain("LeakyRelu", lambda node: {"alpha": node.slope}),
    Kind.SILU: silu,
    Kind.HARD_SWISH: plain("HardSwish"),
    Kind.HARD_SIGMOID: plain("HardSigmoid", lambda node: {"alpha": 1 / 6, "beta": 0.5}),
    Kind.SIGMOID: plain("Sigmoid"),
    Kind.TANH: plain("Tanh"),
    Kind.GELU: gelu,
    Kind.SOFTMAX: on_images("Softmax", lambda node: {"axis": 1 + node.axis}),
    Kind.MULTIPLY: of_two("Mul"),
    Kind.CONCAT: on_images("Concat", lambda node: {"axis": 1 + node.axis}),
    Kind.RESHAPE: reshape,
    Kind.PERMUTE: on_images("Transpose", lambda node: {"perm": [0, *(1 + a for a in node.order)]}),
    Kind.UPSAMPLE: upsample,
    Kind.MATMUL: on_images("MatMul"),
    Kind.PARAMETER: parameter,
    Kind.SLICE: slice,
    Kind.SCALE: scale,
}
"""ONNX's operators for each operation."""
