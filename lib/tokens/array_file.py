"""The arrays of a .npy or .npz file, whose size is known before anything is unpacked: a few kilobytes can hold much."""

import zipfile
from pathlib import Path

import numpy as np

LARGEST = 2**28  # bytes of all arrays together


def load_arrays(path: Path | str) -> dict[str, np.ndarray]:
    """The arrays of a file by name; the only one of a .npy has the empty name.

    Raises:
        FileNotFoundError: as usual.
        ValueError: one line for anything that is no such file, holds Python objects, or more than 256 MiB of numbers.

    >>> np.save("a.npy", np.eye(2))  # doctest: +SKIP
    >>> load_arrays("a.npy")[""].shape  # doctest: +SKIP
    (2, 2)
    """
    try:
        if not zipfile.is_zipfile(path):
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            _check_size(mapped.nbytes)
            return {"": np.array(mapped)}
        with zipfile.ZipFile(path) as stored:
            _check_size(sum(member.file_size for member in stored.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a damaged file makes numpy or zipfile raise
        reason = str(error).splitlines() or [type(error).__name__]
        raise ValueError(reason[0][:200]) from None


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"it unpacks to {size / 2**20:,.0f} MiB, at most {LARGEST >> 20} MiB are read")
