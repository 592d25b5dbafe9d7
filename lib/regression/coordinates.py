"""The free variables of a head: what a flow integrates, and a minimizer varies."""

import numpy as np

from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression


class HeadCoordinates:
    """The free variables of a head whose matrix starts at A and moves along gradients.

    Where A is symmetric and commutes with Sigma and Sigma_q it stays diagonal in their common basis, by symmetry under
    reflections; eigenvalues that start equal, with equal variances, stay equal. Each distinct one is then a variable.
    Otherwise every entry of A is. The last variable is b.

    Attributes:
        multiplicity: how many entries a variable stands for, shape (n,).
    """

    def __init__(self, problem: InContextRegression, A: np.ndarray):
        self._shape = A.shape
        matrices = [problem.covariance, problem.query_covariance, A]
        self._basis = common_eigenbasis(matrices)
        if self._basis is None:
            self.multiplicity = np.ones(A.size + 1)
            return
        spectra = np.stack([np.diag(self._basis.T @ m @ self._basis) / np.linalg.norm(m) for m in matrices], 1)
        _, self._first, self._group, counts = np.unique(
            np.round(spectra, 11), axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        self.multiplicity = np.append(counts, 1.0)

    def head(self, variables: np.ndarray) -> BlockHead:
        if self._basis is None:
            return BlockHead(variables[:-1].reshape(self._shape), variables[-1])
        return BlockHead((self._basis * variables[:-1][self._group]) @ self._basis.T, variables[-1])

    def pack(self, head: BlockHead) -> np.ndarray:
        """The variables of a head, or the entries of a gradient that move them."""
        if self._basis is None:
            return np.append(head.A, head.b)
        diagonal = np.einsum("ik,ij,jk->k", self._basis, head.A, self._basis)
        return np.append(diagonal[self._first], head.b)


def common_eigenbasis(matrices: list[np.ndarray]) -> np.ndarray | None:
    """An orthogonal basis in which every matrix is diagonal to 1e-12 of its norm, or None."""
    scaled = [m / (np.linalg.norm(m) or 1.0) for m in matrices]
    if any(np.abs(m - m.T).max() > 1e-12 for m in scaled):
        return None
    # A combination with unrelated weights has no accidental multiple eigenvalue.
    combination = sum(weight * m for weight, m in zip((1.0, 0.6180339887, 0.2718281828), scaled, strict=True))
    basis = np.linalg.eigh(combination)[1]
    rotated = [basis.T @ m @ basis for m in scaled]
    off = max(np.abs(m - np.diag(np.diag(m))).max() for m in rotated)
    return basis if off < 1e-12 else None
