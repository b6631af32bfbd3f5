"""Types of arrays, by the type of their numbers. Docstrings say their shapes."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Float16Array = npt.NDArray[np.float16]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
FloatArray = npt.NDArray[np.floating]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
IntegerArray = npt.NDArray[np.integer]
UInt16Array = npt.NDArray[np.uint16]
UInt8Array = npt.NDArray[np.uint8]
