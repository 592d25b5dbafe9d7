"""What in-context regression is made of: a head in block form (A, b), and the prompts that it reads."""

from typing import Literal, NamedTuple

import numpy as np

Attention = Literal["infinite", "softmax", "linear"]


class BlockHead(NamedTuple):
    """A head in the block form of the paper's eq. (9), or a gradient with respect to one.

    U = [[A, 0], [0, 0]],  last row of V = (0, b).

    Attributes:
        A: shape (d, d). b: a number.
    """

    A: np.ndarray
    b: float

    def norm(self) -> float:
        """Euclidean norm of (A, b), ``sqrt(|A|_F^2 + b^2)``."""
        return float(np.hypot(np.linalg.norm(self.A), self.b))

    def distance(self, other: "BlockHead") -> float:
        """Euclidean distance of two heads in (A, b)."""
        return BlockHead(self.A - other.A, self.b - other.b).norm()

    def flat(self) -> np.ndarray:
        """(A, b) as one vector of d^2 + 1 entries."""
        return np.append(self.A, self.b)

    @classmethod
    def from_flat(cls, point: np.ndarray) -> "BlockHead":
        """The head whose :meth:`flat` is a point of d^2 + 1 entries."""
        d = round(np.sqrt(len(point) - 1))
        return cls(point[:-1].reshape(d, d), float(point[-1]))

    @classmethod
    def balanced(cls, product: np.ndarray) -> "BlockHead":
        """The head with b A = product, shape (d, d), and |A|_F = b."""
        norm = np.linalg.norm(product)
        return cls(product / np.sqrt(norm), float(np.sqrt(norm)))


class Prompts(NamedTuple):
    """Tokens (x, y), shape (n, L, d + 1); queries x_q, shape (n, d); targets w . x_q, shape (n,)."""

    tokens: np.ndarray
    query: np.ndarray
    target: np.ndarray


def check_length(length) -> np.ndarray:
    """Prompt lengths as an array of floats, or a ValueError if one of them is not whole or below 1."""
    length = np.asarray(length, float)
    if not np.all(np.isfinite(length) & (length >= 1) & (length == np.floor(length))):
        raise ValueError(f"prompt lengths must be whole and at least 1, received {length}")
    return length
