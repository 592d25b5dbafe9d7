"""Covariance matrices by name, from nested lists or from a file: checked, and refused with the reason.

    isotropic       the identity
    toeplitz(r)     r^|i-j|, the stationary AR(1) correlation, -1 < r < 1
    condition(k)    diagonal, eigenvalues in geometric progression, the largest k >= 1 times the smallest
    rank(k)         diagonal, k equal eigenvalues, the others zero: singular when k < dim
    spiked(x)       diagonal, the first eigenvalue x >= 1 times each of the others
    power_law(x)    diagonal, the i-th eigenvalue proportional to i^-x, x >= 0
    0.5 * NAME      any of these, scaled

Every named covariance has trace dim before scaling, so the average variance of a coordinate is 1 whatever the name
and the dimension, and curves for different names can be compared. The diagonal ones are diagonal because only their
spectrum matters once the matrices U and V are generic, and because sampling them then needs no matrix product.
A matrix or a file (.npy, or .npz with one array) is taken as it is, whatever its trace.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from pathlib import Path

import numpy as np

from lib.tokens.array_file import load_arrays

LARGEST_CONDITION = 1e10  # beyond it a covariance is singular to the accuracy of the heads that invert it
_TOLERANCE = 1e-8  # relative to the largest entry or eigenvalue; rounding of a float64 product is far below


@dataclass(frozen=True)
class _Named:
    usage: str
    allowed: str  # the condition on the number, in words; empty: it takes none
    accepts: Callable[[float], bool]
    needs: Callable[[float], int]  # the smallest dimension
    build: Callable[[float, int], np.ndarray]


def _diagonal(spectrum: np.ndarray) -> np.ndarray:
    return np.diag(spectrum * (len(spectrum) / spectrum.sum()))


def _geometric(k: float, dim: int) -> np.ndarray:
    return _diagonal(k ** -(np.arange(dim) / max(dim - 1, 1)))


_NAMED = {
    "isotropic": _Named("isotropic", "", lambda x: True, lambda x: 1, lambda x, d: np.eye(d)),
    "toeplitz": _Named(
        "toeplitz(0.5)",
        "a correlation strictly between -1 and 1",
        lambda x: -1 < x < 1,
        lambda x: 1,
        lambda x, d: np.power(x, np.arange(d))[np.abs(np.subtract.outer(np.arange(d), np.arange(d)))],
    ),
    "condition": _Named(
        "condition(100)",
        "a condition number of at least 1",
        lambda x: x >= 1,
        lambda x: 1 if x == 1 else 2,
        _geometric,
    ),
    "rank": _Named(
        "rank(3)",
        "a whole number of at least 1",
        lambda x: x >= 1 and x == int(x),
        int,
        lambda x, d: _diagonal(1.0 * (np.arange(d) < x)),
    ),
    "spiked": _Named(
        "spiked(10)",
        "a ratio of at least 1",
        lambda x: x >= 1,
        lambda x: 1 if x == 1 else 2,
        lambda x, d: _diagonal(np.where(np.arange(d) == 0, x, 1.0)),
    ),
    "power_law": _Named(
        "power_law(1)",
        "an exponent of at least 0",
        lambda x: x >= 0,
        lambda x: 1,
        lambda x, d: _diagonal(np.arange(1.0, d + 1) ** -x),
    ),
}
_USAGE = ", ".join(named.usage for named in _NAMED.values())
_SPEC = re.compile(r"(?:(?P<scale>[^*]*)\*)?\s*(?P<name>\w+)\s*(?:\(\s*(?P<number>[^()]*?)\s*\))?\s*")


@dataclass(frozen=True)
class CovarianceSpec:
    """A checked named covariance: scale * name(number); number is None where the name takes none."""

    name: str
    number: float | None = None
    scale: float = 1.0


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{what}, received {text.strip()!r}") from None
    if not isfinite(number):
        raise ValueError(f"{what}, received {text.strip()!r}")
    return number


def parse_covariance(spec: str) -> CovarianceSpec:
    """Read a named covariance such as 'toeplitz(0.5)' or '2 * rank(3)'; no dimension is needed.

    Raises ValueError, in one line, for an unknown name (with the nearest one), a missing or superfluous number, a
    number out of range, or a scale that is not positive.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or match["name"] not in _NAMED:
        nearest = get_close_matches(match["name"].lower() if match else spec.lower(), _NAMED, n=1)
        hint = f" (did you mean {_NAMED[nearest[0]].usage}?)" if nearest else ""
        raise ValueError(
            f"unknown covariance {spec!r}{hint}; known: {_USAGE}, a matrix, or a file ending in .npy or .npz"
        )
    name, named = match["name"], _NAMED[match["name"]]
    scale = 1.0
    if match["scale"] is not None:
        scale = _number(match["scale"], f"{spec!r}: the scale must be a positive number")
        if scale <= 0:
            raise ValueError(f"{spec!r}: the scale must be a positive number, received {scale:g}")
    if not named.allowed:
        if match["number"] is not None:
            raise ValueError(f"{spec!r}: {name} takes no number; a multiple of it is written 2 * {name}")
        return CovarianceSpec(name, None, scale)
    if not match["number"]:
        raise ValueError(f"{spec!r}: {name} needs {named.allowed}, for example {named.usage}")
    number = _number(match["number"], f"{spec!r}: {name} needs {named.allowed}")
    if not named.accepts(number):
        raise ValueError(f"{spec!r}: {name} needs {named.allowed}, received {number:g}")
    return CovarianceSpec(name, number, scale)


def as_covariance(matrix, dim: int | None = None) -> np.ndarray:
    """A symmetric positive semidefinite matrix as a fresh float64 array, exactly symmetric; singular is fine.

    Args:
        matrix: nested lists or an array, shape (d, d). Entries may differ from their transposes, and eigenvalues be
            negative, by 1e-8 of the largest (1e-6 in single precision).
        dim: the expected d; any if omitted.

    Raises:
        ValueError: naming the reason: not numbers, wrong shape, not finite, not symmetric (with the entry), not
            positive semidefinite (with the eigenvalue).

    Cost: one eigenvalue decomposition, none if diagonal.
    """
    try:
        given = np.asarray(matrix)
    except ValueError:
        raise ValueError("covariance matrix: its rows have different lengths") from None
    if given.dtype.kind not in "iuf":
        raise ValueError("covariance matrix: its entries must be real numbers")
    array = given.astype(float)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"covariance matrix: expected a square matrix, received shape {array.shape}")
    if dim is not None and len(array) != dim:
        raise ValueError(f"covariance matrix: expected shape {(dim, dim)}, received {array.shape}")
    if not np.isfinite(array).all():
        i, j = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(f"covariance matrix: entry ({i}, {j}) is {array[i, j]}, not a finite number")
    tolerance = max(_TOLERANCE, 8 * np.finfo(given.dtype).eps) if given.dtype.kind == "f" else _TOLERANCE
    gap = np.abs(array - array.T)
    if gap.max() > tolerance * np.abs(array).max():
        i, j = np.unravel_index(gap.argmax(), gap.shape)
        entries = f"entry ({i}, {j}) is {array[i, j]:g}, entry ({j}, {i}) is {array[j, i]:g}"
        raise ValueError(f"covariance matrix: not symmetric, {entries}")
    array = (array + array.T) / 2
    eigenvalues = np.diag(array) if is_diagonal(array) else np.linalg.eigvalsh(array)
    if eigenvalues.min() < -tolerance * np.abs(eigenvalues).max():
        smallest = f"its smallest eigenvalue is {eigenvalues.min():.6g}"
        raise ValueError(f"covariance matrix: not positive semidefinite, {smallest}")
    return array


def covariance_matrix(spec, dim: int, base=None) -> np.ndarray:
    """The (dim, dim) float64 matrix of a named covariance, nested lists, an array, or a .npy/.npz file.

    base is the folder that a file name is relative to (the working directory when None). Raises ValueError with the
    reason; see `parse_covariance` and `as_covariance`.
    """
    if not isinstance(spec, str):
        return as_covariance(spec, dim)
    if _is_file(spec):
        return as_covariance(_load(spec, base), dim)
    parsed = parse_covariance(spec)
    named = _NAMED[parsed.name]
    if dim < named.needs(parsed.number):
        raise ValueError(f"{spec!r} needs dimension {named.needs(parsed.number)} or more, received {dim}")
    return parsed.scale * named.build(parsed.number, dim)


def check_covariance_spec(spec, base=None):
    """Return spec unchanged if it describes a covariance in some dimension, else raise ValueError with the reason.

    What depends on the dimension is left to `covariance_matrix`. A file is read only if its folder base is given.
    """
    if not isinstance(spec, str):
        as_covariance(spec)
    elif not _is_file(spec):
        parse_covariance(spec)
    elif base is not None:
        as_covariance(_load(spec, base))
    return spec


def is_diagonal(matrix: np.ndarray) -> bool:
    """Whether every entry off the diagonal of a square matrix is exactly zero."""
    return np.count_nonzero(matrix) == np.count_nonzero(np.diagonal(matrix))


def sqrt_psd(matrix) -> np.ndarray:
    """The symmetric square root R = R^T, R R = matrix, of a positive semidefinite matrix, singular or not.

    Eigenvalues below d * 2.2e-16 of the largest are rounding and taken as zero, so that R has the matrix's rank.
    Args:
        matrix: shape (d, d).

    Returns:
        Shape (d, d).

    Raises:
        ValueError: as :func:`as_covariance`.

    Cost: O(d^3), O(d^2) if diagonal.
    """
    matrix = as_covariance(matrix)
    if is_diagonal(matrix):
        return np.diag(np.sqrt(np.maximum(np.diag(matrix), 0.0)))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    eigenvalues[eigenvalues < len(matrix) * np.finfo(float).eps * eigenvalues[-1]] = 0.0
    root = (vectors * np.sqrt(eigenvalues)) @ vectors.T
    return (root + root.T) / 2


def _is_file(spec: str) -> bool:
    return spec.endswith((".npy", ".npz"))


def covariance_fits(spec, dim: int) -> bool:
    """Whether :func:`covariance_matrix` can make a covariance in a dimension."""
    try:
        covariance_matrix(spec, dim)
    except ValueError:
        return False
    return True


def covariance_is_definite(spec, dim: int) -> bool:
    """Whether it can, and the covariance is positive definite beyond rounding: a condition number of at most 1e10."""
    if not covariance_fits(spec, dim):
        return False
    values = np.linalg.eigvalsh(covariance_matrix(spec, dim))
    return bool(values[0] * LARGEST_CONDITION > values[-1])


def _load(spec: str, base) -> np.ndarray:
    path = Path(base or ".") / spec
    try:
        arrays = load_arrays(path)
        if len(arrays) != 1:
            raise ValueError(f"expected one array, it holds {list(arrays)}")
    except FileNotFoundError:
        raise ValueError(f"covariance file {spec!r} does not exist in {path.parent}") from None
    except ValueError as error:
        raise ValueError(f"covariance file {spec!r} cannot be read: {error}") from None
    return next(iter(arrays.values()))


def check_covariance(name: str, matrix, dim: int | None = None) -> np.ndarray:
    """A covariance matrix, or a ValueError in one line that names the array, its shape and what is expected."""
    try:
        return as_covariance(matrix, dim)
    except ValueError as error:
        reason = str(error).removeprefix("covariance matrix: ")
        if "expected" not in reason:
            size = "d, d" if dim is None else f"{dim}, {dim}"
            reason += f"; expected a symmetric positive semidefinite matrix of shape ({size})"
        raise ValueError(f"{name} of shape {np.shape(matrix)}: {reason}") from None
