"""Covariances by name, matrix and file: what they are, and every reason for refusing one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.tokens.covariances import (
    CovarianceSpec,
    as_covariance,
    check_covariance_spec,
    covariance_matrix,
    is_diagonal,
    parse_covariance,
    sqrt_psd,
)

NAMED = ["isotropic", "toeplitz(0.5)", "toeplitz(-0.9)", "condition(100)", "rank(3)", "spiked(10)", "power_law(1.5)"]


def rotated(spec, dim, seed=0):
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]
    matrix = rotation @ covariance_matrix(spec, dim) @ rotation.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("spec", NAMED)
@pytest.mark.parametrize("dim", [3, 5, 7, 11, 128])
def test_named_covariances_are_psd_with_trace_dim(spec, dim):
    matrix = covariance_matrix(spec, dim)
    assert matrix.shape == (dim, dim)
    assert matrix.dtype == float
    assert np.array_equal(matrix, matrix.T)
    assert np.trace(matrix) == pytest.approx(dim, rel=1e-13)
    assert np.linalg.eigvalsh(matrix).min() > -1e-14


def test_closed_forms():
    assert np.array_equal(covariance_matrix("isotropic", 5), np.eye(5))
    assert covariance_matrix("toeplitz(0.5)", 4)[0] == pytest.approx([1, 0.5, 0.25, 0.125], abs=0)
    spectrum = np.diag(covariance_matrix("condition(100)", 3))
    assert spectrum / spectrum[0] == pytest.approx([1, 0.1, 0.01])
    assert np.diag(covariance_matrix("rank(2)", 5)) == pytest.approx([2.5, 2.5, 0, 0, 0], abs=0)
    assert np.diag(covariance_matrix("spiked(3)", 4)) == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    spectrum = np.diag(covariance_matrix("power_law(2)", 3))
    assert spectrum / spectrum[0] == pytest.approx([1, 1 / 4, 1 / 9])
    # AR(1): the inverse of a Toeplitz correlation is tridiagonal
    inverse = np.linalg.inv(covariance_matrix("toeplitz(0.9)", 7))
    assert np.triu(inverse, 2) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dim", [5, 7, 11])
@pytest.mark.parametrize(("spec", "rank"), [("rank(3)", 3), ("rank(5)", 5), ("condition(1e6)", None)])
def test_rank_and_condition_number(spec, rank, dim):
    eigenvalues = np.linalg.eigvalsh(covariance_matrix(spec, dim))
    if rank:
        assert np.count_nonzero(eigenvalues > 1e-12) == rank
    else:
        assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(1e6, rel=1e-9)


def test_numbers_at_the_ends_of_their_ranges_and_dimension_one():
    for spec in ["toeplitz(0)", "condition(1)", "spiked(1)", "power_law(0)", "rank(5)"]:
        assert np.array_equal(covariance_matrix(spec, 5), np.eye(5)), spec
    for spec in ["isotropic", "toeplitz(0.5)", "condition(1)", "rank(1)", "spiked(1)", "power_law(3)"]:
        assert covariance_matrix(spec, 1) == pytest.approx(1), spec


def test_a_scale_multiplies():
    assert np.array_equal(covariance_matrix("0.5 * toeplitz(0.5)", 5), 0.5 * covariance_matrix("toeplitz(0.5)", 5))
    assert parse_covariance(" 1e-3*rank( 3 ) ") == CovarianceSpec("rank", 3.0, 1e-3)


@pytest.mark.parametrize("spec", [*NAMED, "2 * condition(10)", [[2.0, 1], [1, 2]], "gamma.npy", "sub/gamma.npz"])
def test_the_check_without_a_dimension_returns_the_spec(spec):
    assert check_covariance_spec(spec) is spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("topelitz(0.5)", r"unknown covariance 'topelitz\(0.5\)' \(did you mean toeplitz\(0.5\)\?\); known: isotropic"),
        ("Isotropic", r"did you mean isotropic\?"),
        ("toeplitz(0.5", r"unknown covariance .*did you mean toeplitz\(0.5\)\?"),
        ("wishart", r"unknown covariance 'wishart'; known: .* a matrix, or a file ending in .npy or .npz"),
        ("", "unknown covariance ''"),
        ("toeplitz", r"toeplitz needs a correlation strictly between -1 and 1, for example toeplitz\(0.5\)"),
        ("toeplitz()", "toeplitz needs a correlation"),
        ("toeplitz(1)", "needs a correlation strictly between -1 and 1, received 1"),
        ("toeplitz(half)", "needs a correlation strictly between -1 and 1, received 'half'"),
        ("toeplitz(nan)", "received 'nan'"),
        ("condition(0.5)", "condition needs a condition number of at least 1, received 0.5"),
        ("condition(inf)", "received 'inf'"),
        ("rank(2.5)", "rank needs a whole number of at least 1, received 2.5"),
        ("rank(0)", "rank needs a whole number of at least 1, received 0"),
        ("spiked(0.5)", "spiked needs a ratio of at least 1"),
        ("power_law(-1)", "power_law needs an exponent of at least 0"),
        ("isotropic(2)", r"isotropic takes no number; a multiple of it is written 2 \* isotropic"),
        ("0 * isotropic", "the scale must be a positive number, received 0"),
        ("x * isotropic", "the scale must be a positive number, received 'x'"),
        ([[1.0, 2.0], [2.0, 1.0]], "not positive semidefinite, its smallest eigenvalue is -1"),
        ([[1.0, 0.0], [0.0, -3.0]], "not positive semidefinite, its smallest eigenvalue is -3"),
        ([[1.0, 0.5], [0.4, 1.0]], r"not symmetric, entry \(0, 1\) is 0.5, entry \(1, 0\) is 0.4"),
        ([[1.0, float("nan")], [0.0, 1.0]], r"entry \(0, 1\) is nan, not a finite number"),
        ([[1.0, float("inf")], [0.0, 1.0]], r"entry \(0, 1\) is inf, not a finite number"),
        ([[1.0, 0.0]], r"expected a square matrix, received shape \(1, 2\)"),
        ([1.0, 2.0], r"expected a square matrix, received shape \(2,\)"),
        ([], "expected a square matrix"),
        ([[1.0, 0.0], [1.0]], "its rows have different lengths"),
        ([["1", "0"], ["0", "1"]], "its entries must be real numbers"),
        ([[1.0, None], [None, 1.0]], "its entries must be real numbers"),
        ([[True, False], [False, True]], "its entries must be real numbers"),
        (3.0, r"expected a square matrix, received shape \(\)"),
    ],
)
def test_refused_with_the_reason_in_one_line(spec, message):
    with pytest.raises(ValueError, match=message) as refusal:
        check_covariance_spec(spec)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("spec", "dim", "message"),
    [
        ("rank(7)", 5, r"'rank\(7\)' needs dimension 7 or more, received 5"),
        ("condition(10)", 1, "needs dimension 2 or more, received 1"),
        ("spiked(10)", 1, "needs dimension 2 or more, received 1"),
        ([[1.0, 0.0], [0.0, 1.0]], 5, r"expected shape \(5, 5\), received \(2, 2\)"),
    ],
)
def test_refused_in_this_dimension(spec, dim, message):
    with pytest.raises(ValueError, match=message):
        covariance_matrix(spec, dim)


def test_rounding_is_forgiven_and_removed():
    matrix = rotated("rank(3)", 7)
    noisy = matrix + 1e-12 * np.random.default_rng(1).standard_normal((7, 7))
    clean = as_covariance(noisy)
    assert np.array_equal(clean, clean.T)
    assert clean == pytest.approx(matrix, abs=1e-11)
    single = rotated("rank(3)", 7).astype(np.float32)  # its smallest eigenvalue is about -1e-7
    assert as_covariance(single).dtype == float
    with pytest.raises(ValueError, match="not symmetric"):
        as_covariance(matrix + 1e-4 * np.random.default_rng(1).standard_normal((7, 7)))


def test_files(tmp_path):
    matrix = rotated("toeplitz(0.5)", 5)
    np.save(tmp_path / "gamma.npy", matrix)
    np.savez(tmp_path / "one.npz", covariance=matrix)
    np.savez(tmp_path / "two.npz", first=matrix, second=matrix)
    np.save(tmp_path / "bad.npy", -matrix)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("gamma.npy", "one.npz"):
        assert np.array_equal(covariance_matrix(name, 5, base=tmp_path), matrix)
        assert check_covariance_spec(name, base=tmp_path) == name
    for name, message in [
        ("missing.npy", "covariance file 'missing.npy' does not exist"),
        ("two.npz", r"'two.npz' cannot be read: expected one array, it holds \['first', 'second'\]"),
        ("bad.npy", "not positive semidefinite"),
        ("objects.npy", "'objects.npy' cannot be read"),
        ("text.npz", "'text.npz' cannot be read"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_covariance_spec(name, base=tmp_path)
    with pytest.raises(ValueError, match=r"expected shape \(7, 7\), received \(5, 5\)"):
        covariance_matrix("gamma.npy", 7, base=tmp_path)


@pytest.mark.parametrize("dim", [5, 7, 11])
@pytest.mark.parametrize("spec", NAMED)
def test_the_square_root_of_a_singular_matrix_too(spec, dim):
    for matrix in (covariance_matrix(spec, dim), rotated(spec, dim)):
        root = sqrt_psd(matrix)
        assert np.array_equal(root, root.T)
        assert root @ root == pytest.approx(matrix, abs=1e-13)
        assert np.linalg.eigvalsh(root).min() > -1e-13


def test_the_square_root_has_the_rank_of_the_matrix():
    root = sqrt_psd(rotated("rank(3)", 11))
    assert np.sort(np.abs(np.linalg.eigvalsh(root)))[:8].max() < 1e-14  # 1e-8 without the cut of rounding
    assert np.array_equal(sqrt_psd(np.zeros((5, 5))), np.zeros((5, 5)))
    tiny = np.diag([1.0, 1e-30])  # a diagonal matrix keeps even this
    assert sqrt_psd(tiny)[1, 1] == pytest.approx(1e-15)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_every_gram_matrix_is_accepted_and_the_same_with_a_negative_direction_refused(dim, rank, seed):
    factor = np.random.default_rng(seed).standard_normal((dim, rank))
    gram = factor @ factor.T
    root = sqrt_psd(as_covariance(gram.tolist()))
    assert root @ root == pytest.approx(gram, abs=1e-12 * np.abs(gram).max())
    direction = factor[:, 0] / np.linalg.norm(factor[:, 0])
    with pytest.raises(ValueError, match="not positive semidefinite"):
        as_covariance(gram - 2 * np.trace(gram) * np.outer(direction, direction))


def test_diagonal_or_not():
    assert is_diagonal(np.diag([1.0, 0.0, 2.0]))
    assert is_diagonal(np.zeros((3, 3)))
    assert not is_diagonal(covariance_matrix("toeplitz(0.1)", 3))
