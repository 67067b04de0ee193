"""The tensors of a file that ``torch.save`` wrote, as NumPy arrays, without PyTorch and without running what it says.

The file is a zip archive: a pickle, which says how tensors lie in storages, and the storages' bytes. Unpickling can run
any function that the pickle names; this one knows the three names that a dictionary of tensors takes.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"FloatStorage": np.dtype("<f4"), "DoubleStorage": np.dtype("<f8")}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a dictionary, float32 or float64, by name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds anything else, or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if len({name.casefold() for name in archive.namelist()}) != len(archive.namelist()):
                raise ValueError("two files of one name, of which PyTorch may read the other")
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise ValueError("no pickle inside, or several")
            root = names[0].removesuffix("data.pkl")
            if archive.read(root + "byteorder") != b"little":
                raise ValueError("numbers that aren't little-endian")
            with archive.open(names[0]) as file:
                tensors = _Unpickler(file, archive, root + "data/").load()
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged archive or pickle raises
        raise ValueError(f"{path} holds no dictionary of tensors: {error}") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        raise ValueError(f"{path} holds no dictionary of tensors")
    return tensors


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, storages: str) -> None:
        super().__init__(file)
        self.archive, self.storages = archive, storages

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for one of the names that tensors take; any other is an error."""
        if module == "torch" and name in TYPES:
            return TYPES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return dict  # of hooks, empty
        raise ValueError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> np.ndarray:
        """Return a storage."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or not str(key).isdigit():
            raise ValueError(f"it refers to {pid!r}")
        numbers = np.frombuffer(self.archive.read(self.storages + key), dtype)
        if len(numbers) != count:
            raise ValueError(f"storage {key} has {len(numbers)} numbers instead of {count}")
        return numbers


def _tensor(storage: np.ndarray, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> np.ndarray:
    """Return a view of a storage, its strides counted in numbers."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if offset < 0 or min((*stride, 0)) < 0 or (np.prod(shape) and last >= len(storage)):
        raise ValueError("a tensor lies outside of its storage")
    steps = [s * storage.itemsize for s in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
