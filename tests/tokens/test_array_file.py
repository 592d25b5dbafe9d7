"""Files of arrays: what is one, and that nothing large is unpacked."""

import zipfile

import numpy as np
import pytest

from lib.tokens.array_file import LARGEST, load_arrays


def test_arrays_by_name(tmp_path):
    np.save(tmp_path / "one.npy", np.eye(2))
    np.savez_compressed(tmp_path / "two.npz", a=np.eye(3), b=1.5)
    assert np.array_equal(load_arrays(tmp_path / "one.npy")[""], np.eye(2))
    assert {name: array.shape for name, array in load_arrays(tmp_path / "two.npz").items()} == {"a": (3, 3), "b": ()}


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(LARGEST + 1))


def sparse(path):
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(LARGEST + 1,)).flush()


def boastful(path):
    """A header that promises more than there is."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})


def boastful_archive(path):
    boastful(path.with_suffix(".npy"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".npy"), "a.npy")


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (bomb, "a.npz", "it unpacks to 256 MiB, at most 256 MiB are read"),
        (sparse, "a.npy", "it unpacks to 256 MiB, at most 256 MiB are read"),
        (boastful, "a.npy", ""),
        (boastful_archive, "a.npz", ""),
        (lambda path: path.write_bytes(b""), "a.npy", ""),
        (lambda path: path.mkdir(), "a.npy", ""),
    ],
)
def test_what_is_too_large_or_no_array_file_is_refused_in_one_line(tmp_path, make, name, said):
    make(tmp_path / name)
    with pytest.raises(ValueError) as caught:
        load_arrays(tmp_path / name)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(said)
