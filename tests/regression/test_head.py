"""A head in block form: flat and back, norm and distance."""

import numpy as np
import pytest

from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))
PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


def test_flat_and_unflat_are_inverse():
    head = BlockHead.from_flat(GENERAL.flat())
    np.testing.assert_array_equal(head.A, GENERAL.A)
    assert head.b == GENERAL.b


def test_norm_and_distance_are_euclidean_in_all_entries():
    assert GENERAL.norm() == pytest.approx(np.linalg.norm(GENERAL.flat()))
    other = BlockHead(np.eye(3), -0.4)
    assert GENERAL.distance(other) == pytest.approx(np.linalg.norm(GENERAL.flat() - other.flat()))
    assert GENERAL.distance(GENERAL) == 0


def test_a_balanced_head_has_the_product_asked_for():
    head = BlockHead.balanced(GENERAL.A)
    np.testing.assert_allclose(head.b * head.A, GENERAL.A)
    assert np.linalg.norm(head.A) == pytest.approx(head.b)
