"""Types of arrays; shapes are in the docstrings."""

from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer]
Bool = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
