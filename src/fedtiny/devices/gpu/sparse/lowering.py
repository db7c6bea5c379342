"""A network as the few fused steps that the sparse kernels have, forward and backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Pair
from fedtiny.graph.operations import beyond_plain

TAIL = (Kind.FLATTEN, Kind.LINEAR, Kind.RELU, Kind.DROPOUT)
POOLS = (Kind.MAX_POOL, Kind.MEAN_POOL, Kind.ADAPTIVE_POOL)
KINDS = (Kind.CONVOLUTION, Kind.BATCH_NORM, Kind.RELU, Kind.ADD, *POOLS)
NORMS = 2  # whose sums a kernel computes beside a gradient


class UnsupportedNetworkError(ModelError):
    """A network that the sparse kernels cannot compute; says what stands in the way."""


def _named(kind: Kind) -> str:
    """An operation in words."""
    return kind.name.lower().replace("_", " ")


@dataclass(eq=False)
class Buffer:
    """A tensor in memory, of every image: activations or their gradient."""

    channels: int
    size: Pair


@dataclass(eq=False)
class Value:
    """Some channels of a buffer, and how they are read: batch norm or bias, then ReLU.

    `relu_stored`: what is stored is after the ReLU already.
    """

    buffer: Buffer
    channels: int
    first: int = 0
    norm: Node | None = None
    bias: str = ""
    relu: bool = False
    relu_stored: bool = False
    maker: "Step | None" = None
    readers: int = 0
    gradient: Buffer | None = None

    @property
    def shifted(self) -> bool:
        """Whether it is read through coefficients."""
        return self.norm is not None or bool(self.bias) or (self.relu and not self.relu_stored)


@dataclass(eq=False)
class Convolution:
    """One convolution or several that read the same: the filters of each follow those before."""

    nodes: tuple[Node, ...]
    source: Value
    outs: tuple[Value, ...]

    @property
    def sources(self) -> tuple[Value, ...]:
        """What it reads."""
        return (self.source,)

    @property
    def buffer(self) -> Buffer:
        """What it writes."""
        return self.outs[0].buffer

    @property
    def normed(self) -> bool:
        """Whether batch norm follows."""
        return self.outs[0].norm is not None


@dataclass(eq=False)
class Elementwise:
    """A sum, a copy or a pool."""

    kind: Kind
    sources: tuple[Value, ...]
    out: Value
    node: Node

    @property
    def outs(self) -> tuple[Value, ...]:
        """What it writes."""
        return (self.out,)


Step = Convolution | Elementwise


@dataclass(frozen=True)
class Forward:
    """The steps of a network up to the values that its head reads, and the nodes of the head."""

    image: Value
    steps: tuple[Step, ...]
    features: Value
    mean: bool
    """Whether the head reads the mean over all positions."""
    head: tuple[Node, ...]


Merges = Callable[[Sequence[Node], Value], bool]


def lower(graph: Graph, merges: Merges = lambda nodes, source: True) -> Forward:
    """The steps of a graph; `merges` says whether some convolutions may become one step."""
    return _Lowering(graph, merges).forward()


class _Lowering:
    def __init__(self, graph: Graph, merges: Merges) -> None:
        self.graph = graph
        self.merges = merges
        channels, *size = graph.shapes[0]
        self.image = Value(Buffer(channels, (size[0], size[1])), channels)
        self.values = {0: self.image}
        self.steps: list[Step] = []

    def forward(self) -> Forward:
        head = _head(self.graph)
        for number, node in enumerate(self.graph.nodes[: head[0]]):
            if number not in self.values:
                self.values[number] = self._value(number, node)
        features = self._read(self.graph.nodes[head[0]].inputs[0])
        nodes = [self.graph.nodes[number] for number in head]
        mean = nodes[0].kind == Kind.ADAPTIVE_POOL
        return Forward(self.image, tuple(self.steps), features, mean, tuple(nodes[mean:]))

    def _read(self, number: int) -> Value:
        value = self.values[number]
        value.readers += 1
        return value

    def _value(self, number: int, node: Node) -> Value:
        if node.kind not in KINDS:
            raise UnsupportedNetworkError(f"it has a {_named(node.kind)} between its convolutions")
        if more := beyond_plain(node):
            raise UnsupportedNetworkError(f"it has a {_named(node.kind)} with {more}")
        if node.kind == Kind.CONVOLUTION:
            return self._convolution(number)
        if node.kind == Kind.BATCH_NORM:
            return self._norm(node)
        if node.kind == Kind.RELU:
            return self._relu(node)
        return self._elementwise(node, self.graph.shapes[number])

    def _alone(self, number: int) -> bool:
        """Whether one node at most reads this one."""
        return len(self.graph.readers[number]) == 1

    def _convolution(self, number: int) -> Value:
        source = self._read(self.graph.nodes[number].inputs[0])
        numbers = self._companions(number, source)
        nodes = [self.graph.nodes[n] for n in numbers]
        for node in nodes:
            if node.stride[0] != node.stride[1]:
                raise UnsupportedNetworkError(f"'{node.name}' has different strides by axis")
        buffer = Buffer(sum(n.channels for n in nodes), self.graph.shapes[number][1:])
        first, outs = 0, []
        for n, node in zip(numbers, nodes, strict=True):
            bias = f"{node.name}.bias" if node.bias else ""
            outs.append(Value(buffer, node.channels, first, bias=bias))
            self.values[n] = outs[-1]
            first += node.channels
        self._add(Convolution(tuple(nodes), source, tuple(outs)))
        return outs[0]

    def _companions(self, number: int, source: Value) -> list[int]:
        """This convolution and those that may be computed with it."""

        def alike(other: int) -> bool:
            node = self.graph.nodes[other]
            mine = self.graph.nodes[number]
            return (
                node.kind == Kind.CONVOLUTION
                and node.inputs == mine.inputs
                and node.stride == mine.stride
                and self.graph.shapes[other][1:] == self.graph.shapes[number][1:]
                and self._is_normed(other)
            )

        others = [n for n in range(number + 1, len(self.graph.nodes)) if alike(n)]
        found = [number, *others[:1]]
        if self._is_normed(number) and self.merges([self.graph.nodes[n] for n in found], source):
            return found
        return [number]

    def _is_normed(self, number: int) -> bool:
        readers = self.graph.readers[number]
        return len(readers) == 1 and self.graph.nodes[readers[0]].kind == Kind.BATCH_NORM

    def _norm(self, node: Node) -> Value:
        (number,) = node.inputs
        value = self.values[number]
        convolved = isinstance(value.maker, Convolution) and value.norm is None and not value.relu
        if not (convolved and self._alone(number)):
            value = self._copy(number, node)
        value.norm = node
        return value

    def _relu(self, node: Node) -> Value:
        (number,) = node.inputs
        value = self.values[number]
        if value.relu and not value.readers and self._alone(number):
            return value
        if value.relu or not self._alone(number) or value is self.image:
            value = self._copy(number, node)
        value.relu_stored = isinstance(value.maker, Elementwise) and not value.shifted
        value.relu = True
        return value

    def _copy(self, number: int, node: Node) -> Value:
        """A value of its own for what other nodes read too, or read otherwise."""
        source = self._read(number)
        out = Value(Buffer(source.channels, source.buffer.size), source.channels)
        return self._add(Elementwise(Kind.ADD, (source,), out, node))

    def _elementwise(self, node: Node, shape: tuple[int, int, int]) -> Value:
        sources = tuple(self._read(i) for i in node.inputs)
        out = Value(Buffer(shape[0], shape[1:]), shape[0])
        return self._add(Elementwise(node.kind, sources, out, node))

    def _add(self, step: Step) -> Value:
        self.steps.append(step)
        for out in step.outs:
            out.maker = step
        return step.outs[0]


def _head(graph: Graph) -> list[int]:
    """The numbers of the nodes behind the last convolution: a chain that flattens.

    It begins with the flattening, or with the pool to one value a channel that comes before it.
    """
    chain: list[int] = []
    number = len(graph.nodes) - 1
    while graph.nodes[number].kind in TAIL:
        chain.insert(0, number)
        if graph.nodes[number].kind == Kind.FLATTEN:
            break
        (number,) = graph.nodes[number].inputs
    if not chain or [graph.nodes[chain[i]].kind for i in (0, -1)] != [Kind.FLATTEN, Kind.LINEAR]:
        raise UnsupportedNetworkError("its head is no chain of flatten and linear layers")
    (number,) = graph.nodes[chain[0]].inputs
    before = graph.nodes[number]
    if before.kind == Kind.ADAPTIVE_POOL and before.size == (1, 1):
        chain.insert(0, number)
    if any(len(graph.readers[n]) != 1 for n in chain[:-1]):
        raise UnsupportedNetworkError("a layer of its head is read more than once")
    if not any(n.kind == Kind.CONVOLUTION for n in graph.nodes[: chain[0]]):
        raise UnsupportedNetworkError("it has no convolution")
    return chain


@dataclass(eq=False)
class Collect:
    """The gradient of a value from what is not a convolution: pool, head, or other gradients."""

    kind: str
    value: Value
    out: Buffer
    more: Buffer | None
    gradient: Buffer | None = None
    step: Elementwise | None = None
    final: bool = True
    norms: tuple[Value, ...] = ()


@dataclass(eq=False)
class ConvolutionGradient:
    """Gradients of a convolution's weights and, but for the image's, of what it read."""

    step: Convolution
    out: Buffer | None
    more: Buffer | None = None
    final: bool = False
    norms: tuple[Value, ...] = ()


@dataclass(frozen=True)
class NormGradient:
    """Of a batch norm or bias: its parameters' gradients, and coefficients for what lies before."""

    value: Value
    after: Collect | ConvolutionGradient
    which: int


Backward = Collect | ConvolutionGradient | NormGradient


@dataclass
class _Gradients:
    """The backward steps of a network, built from its end."""

    forward: Forward
    steps: list[Backward] = field(default_factory=list)
    pending: dict[Value, list[Collect | ConvolutionGradient | Buffer]] = field(default_factory=dict)

    def built(self) -> list[Backward]:
        features = self.forward.features
        self._pend(features, Collect("features", features, _like(features), None))
        for step in reversed(self.forward.steps):
            for out in step.outs:
                self._finish(out)
            self._hand_on(step)
        return self.steps

    def _pend(self, value: Value, part: Collect | ConvolutionGradient | Buffer) -> None:
        self.pending.setdefault(value, []).append(part)

    def _hand_on(self, step: Step) -> None:
        """Give the gradient of what a step made to what it read."""
        if isinstance(step, Convolution):
            if step.source is self.forward.image:
                self.steps.append(ConvolutionGradient(step, None))
            else:
                self._pend(step.source, ConvolutionGradient(step, _like(step.source)))
            return
        gradient = step.out.gradient
        assert gradient is not None
        if step.out.norm is not None:
            before = _like(step.out)
            self.steps.append(Collect("norm", step.out, before, None, gradient, final=False))
            gradient = before
        for source in step.sources:
            if source is self.forward.image:
                continue
            if step.kind in POOLS:
                self._pend(source, Collect("pool", source, _like(source), None, gradient, step))
            elif self._shares(source, step):
                source.gradient = gradient
            else:
                self._pend(source, gradient)

    def _shares(self, source: Value, step: Step) -> bool:
        """Whether a value's gradient is just that of the sum it goes into.

        One that is a sum itself has a gradient of its own if batch norms before it need its sums.
        """
        return (
            isinstance(step, Elementwise)
            and step.kind == Kind.ADD
            and step.out.norm is None
            and source.readers == 1
            and not source.relu
            and not self._summed_for(source)
        )

    def _summed_for(self, value: Value) -> list[Value]:
        """The values before a sum whose batch norm or bias needs sums of the sum's gradient."""
        maker = value.maker
        if not isinstance(maker, Elementwise):
            return []
        return [v for v in maker.sources if v.shifted and self._shares(v, maker)]

    def _finish(self, value: Value) -> None:
        """Add up all that a value's readers give, in a fixed order."""
        if value.gradient is not None:
            return
        parts = self.pending.pop(value, [])
        if not parts:
            raise UnsupportedNetworkError("one of its layers does not lead to the result")
        more = [p for p in parts if isinstance(p, Buffer)]
        work: list[Collect | ConvolutionGradient] = [p for p in parts if not isinstance(p, Buffer)]
        while len(more) > 1 or (more and not work):
            last = not work and len(more) <= 2
            if len(more) == 1 and not (value.relu or self._normed(value)):
                value.gradient = more[0]
                return
            other = more[1] if len(more) > 1 else None
            step = Collect("add", value, _like(value), other, more[0], final=last)
            if last:
                work.append(step)
                more = []
            else:
                self.steps.append(step)
                more = [step.out, *more[2:]]
        before = more[0] if more else None
        for part in work:
            if not isinstance(part, Collect) or part.kind != "add":
                part.more = before
            part.final = part is work[-1]
            before = part.out
            self.steps.append(part)
        value.gradient = before
        self._norms(value, work[-1])

    def _normed(self, value: Value) -> list[Value]:
        """The values whose batch norm or bias needs sums of this value's gradient."""
        return [*([value] if value.shifted else []), *self._summed_for(value)]

    def _norms(self, value: Value, last: Collect | ConvolutionGradient) -> None:
        found = self._normed(value)
        assert len(found) <= NORMS, "a sum has two sources"
        last.norms = tuple(found)
        self.steps += [NormGradient(v, last, which) for which, v in enumerate(found, 1)]


def gradients(forward: Forward) -> list[Backward]:
    """The steps of the backward pass, the first one reading the gradient of the features."""
    return _Gradients(forward).built()


def _like(value: Value) -> Buffer:
    return Buffer(value.channels, value.buffer.size)
