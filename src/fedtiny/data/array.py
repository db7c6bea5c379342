"""The type of a NumPy array of any dtype."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
