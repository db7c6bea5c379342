"""How a convolution is cut into tiles that fit into a block's shared memory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

GUARD = 32  # words before the first plane and behind the last (cuda/words.cuh)
LANES = 32
DEPTHS = (8, 4, 2, 1)
WORD = 4  # bytes
SPARE = 1024  # bytes of a block's shared memory that CUDA keeps to itself

Pair = tuple[int, int]


@dataclass(frozen=True)
class Reach:
    """A convolution as the kernels see it: where each position reads.

    `low` and `high` are the least and the largest offset (rows, columns) that a weight has from
    the `step` times position. `source` and `grid` are rows and columns of what is read and of the
    positions.
    """

    channels: int
    source: Pair
    grid: Pair
    step: int
    low: Pair
    high: Pair
    images: int


@dataclass(frozen=True)
class Tile:
    """See `Tile` in cuda/tiles.cuh."""

    reach: Reach
    columns: int
    rows: int
    depth: int
    images: int
    top: int
    left: int
    held: int
    pitch: int
    height: int
    tail: int
    gap: int = 0

    @property
    def plane(self) -> int:
        """Words of a stored plane."""
        return self.pitch * self.height

    @property
    def tiles_x(self) -> int:
        """Tiles over the columns."""
        return -(-self.reach.grid[1] // self.columns)

    @property
    def tiles_y(self) -> int:
        """Tiles over the rows."""
        return -(-self.reach.grid[0] // self.rows)

    @property
    def tiles(self) -> int:
        """Tiles of a device."""
        return self.tiles_x * self.tiles_y * -(-self.reach.images // self.images)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        planes = self.images * self.reach.channels * self.plane + (self.images - 1) * self.gap
        return WORD * (2 * GUARD + planes + self.tail * self.pitch)

    @property
    def chunk(self) -> int:
        """Words of a row that are read at a time."""
        return 1 if self.left or self.held % 4 else 4

    @property
    def exact(self) -> bool:
        """Whether every lane's positions lie inside."""
        lanes = self.images * self.columns * (self.rows // self.depth)
        (rows, columns), images = self.reach.grid, self.reach.images
        divisible = rows % self.rows == columns % self.columns == images % self.images == 0
        return divisible and lanes == LANES

    @cached_property
    def conflicts(self) -> int:
        """Most lanes of a warp that read from one bank."""
        found = []
        lanes = self.columns * (self.rows // self.depth)
        for lane in range(self.images * lanes):
            image, place = divmod(lane, lanes)
            row, column = divmod(place, self.columns)
            start = image * (self.reach.channels * self.plane + self.gap)
            step = self.reach.step
            found.append(start + step * row * self.depth * self.pitch + step * column)
        return max(Counter(word % LANES for word in found).values())

    def offset(self, channel: int, row: int, column: int) -> int:
        """Words from a position to what a weight reads."""
        return channel * self.plane + row * self.pitch + column

    def cpp(self, word: str) -> str:
        """The type in cuda/tiles.cuh."""
        sizes = (self.columns, self.rows, self.depth, self.images, self.reach.step, self.top)
        stored = (self.left, self.held, self.pitch, self.height, self.tail, self.gap, self.chunk)
        numbers = ", ".join(map(str, (*sizes, *stored)))
        return f"Tile<{word}, {numbers}, {str(self.exact).lower()}>"


def choose(reach: Reach, limit: int) -> Tile | None:
    """The tile for a convolution if a block may have this much shared memory, or none fits.

    Two blocks on a multiprocessor hide each other's waits, so tiles that leave room for a second
    come first; then those with the most positions a lane, since a weight is loaded once for all.
    """
    half = limit // 2 - SPARE
    for most in (half, limit):
        for depth in DEPTHS:
            fitting = [tile for tile in _tiles(reach, depth) if tile.shared <= most]
            if fitting:
                return min(fitting, key=_cost)
    return None


def _cost(tile: Tile) -> tuple[int, bool, int]:
    aligned = tile.chunk == 4 and tile.pitch % 4 == 0 and tile.gap % 4 == 0
    return tile.conflicts, not aligned, tile.shared


def _tiles(reach: Reach, depth: int) -> Iterator[Tile]:
    """Every tile of so many rows a lane, by how its planes are stored."""
    plain = _tile(reach, depth)
    if plain is None:
        return
    for pitch in range(plain.pitch, plain.pitch + (1 if plain.left else 8)):
        wide = replace(plain, pitch=pitch)
        for gap in range(LANES) if plain.images > 1 else (0,):
            yield replace(wide, gap=gap)


def _tile(reach: Reach, depth: int) -> Tile | None:
    (rows, columns), step = reach.grid, reach.step
    across = min(columns, LANES)
    groups = max(1, min(LANES // across, -(-rows // depth)))
    if depth > 1 and depth * groups > rows:
        return None
    high = depth * groups
    images = max(1, min(LANES // (across * groups), reach.images))
    top, bottom = max(0, -reach.low[0]), max(0, reach.high[0])
    before, behind = max(0, -reach.low[1]), max(0, reach.high[1])
    if columns > LANES:
        left = max(1, before)  # by which kernels know a tile that holds parts of rows
        pitch = held = left + step * (across - 1) + 1 + behind
    else:
        if before > GUARD:
            return None
        held, left = reach.source[1], 0
        pitch = max(held + before, step * (across - 1) + 1 + behind)
    height = top + step * (high - 1) + 1 + bottom
    tail = 1
    if high == rows and columns <= LANES:  # zeros above a plane serve as those below the one before
        last = step * (rows - 1) + bottom
        zeros = max(0, last - reach.source[0] + 1)
        height = top + min(reach.source[0], last + 1) + max(0, zeros - top)
        tail = max(1, min(top, zeros))
    return Tile(reach, across, high, depth, images, top, left, held, pitch, height, tail)
