"""Heads from a file: the layouts that are read, and the one line that says what is wrong with the others."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy.special import softmax

from lib.finite_prompt.head_file import example_heads, heads_from_arrays, load_heads
from lib.notebook.parameter_types import HeadFile

D, E, H = 7, 3, 2
RNG = np.random.default_rng(0)
GAMMA = np.diag(np.arange(1.0, D + 1))
W_Q, W_K, W_V = 0.2 * RNG.normal(size=(3, H, E, D))
W_O = RNG.normal(size=(H, 5, E))
LAYER = {"Gamma": GAMMA, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "head_dim": E}


@pytest.fixture
def save(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "head.npz", **arrays)
        return tmp_path / "head.npz"

    return write


def test_projections_and_matrices_give_the_same_heads(save):
    heads = load_heads(save(**LAYER))
    assert len(heads) == H
    x, z = RNG.normal(size=(2, D))
    for k in range(H):
        assert x @ heads.U[k] @ z == pytest.approx((W_K[k] @ x) @ (W_Q[k] @ z) / np.sqrt(E))
    np.testing.assert_array_equal(heads.V, W_V)
    np.testing.assert_array_equal(heads.query_covariance, GAMMA)
    again = load_heads(save(Gamma=GAMMA, U=heads.U, V=heads.V, Gamma_z=np.eye(D), query=z))
    np.testing.assert_array_equal(again.U, heads.U)
    np.testing.assert_array_equal(again.query_covariance, np.eye(D))
    one = load_heads(save(Gamma=GAMMA, U=heads.U[0], V=heads.V[0]))
    assert one.U.shape == (1, D, D) and one.V.shape == (1, E, D)


def test_heads_below_each_other_as_in_torch(save):
    stacked = {name: array.reshape(H * E, D) for name, array in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V))}
    side_by_side = np.concatenate(list(W_O), axis=1)
    heads = load_heads(save(Gamma=GAMMA, head_dim=E, W_O=side_by_side, **stacked))
    np.testing.assert_allclose(heads.U, load_heads(save(**LAYER)).U)
    np.testing.assert_allclose(heads.V, W_O @ W_V)
    np.testing.assert_allclose(load_heads(save(**LAYER, W_O=W_O)).V, W_O @ W_V)


def test_grouped_queries_share_keys_and_values(save):
    many = np.concatenate([W_Q, 2 * W_Q])
    heads = load_heads(save(**LAYER | {"W_Q": many}))
    assert len(heads) == 2 * H
    np.testing.assert_allclose(heads.U[1], W_K[0].T @ many[1] / np.sqrt(E))
    np.testing.assert_array_equal(heads.V[3], W_V[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"Gamma": np.diag([1.0] * 6 + [-1])},
            r"Gamma of shape \(7, 7\): not positive semidefinite, .* expected a sym",
        ),
        ({"Gamma": np.triu(np.ones((D, D)))}, r"Gamma of shape \(7, 7\): not symmetric"),
        ({"Gamma": np.ones((D, 3))}, r"Gamma of shape \(7, 3\): expected a square matrix"),
        ({"Gamma": np.full((D, D), np.nan)}, r"Gamma of shape \(7, 7\) must hold finite numbers"),
        ({"Gamma_z": np.eye(3)}, r"Gamma_z of shape \(3, 3\): expected shape \(7, 7\)"),
        ({"query": np.ones(3)}, r"query has shape \(3,\), expected \(7,\)"),
        ({"W_Q": W_Q[:, :, :5]}, r"W_Q has shape \(2, 3, 5\), expected \(heads, 3, 7\) or \(heads \* 3, 7\)"),
        ({"W_K": W_K[:, :2]}, r"W_K has shape \(2, 2, 7\), expected \(heads, 3, 7\)"),
        ({"W_V": W_V[0, 0]}, r"W_V has shape \(7,\), expected \(heads, 1, 7\)"),
        ({"W_Q": np.ones((3, E, D))}, "W_K holds 2 heads, expected a divisor of the 3 heads of W_Q"),
        ({"W_O": np.ones((4, 4))}, r"W_O has shape \(4, 4\), expected \(k, 6\) or \(2, k, 3\)"),
        ({"head_dim": 2.5}, "head_dim must be one whole number from 1, received 2.5"),
        ({"head_dim": None}, "the number head_dim is missing"),
        ({"W_K": None}, "give either U and V, or W_Q, W_K, W_V and head_dim; received W_Q, W_V"),
        ({"U": np.eye(D)}, "give either U and V, or W_Q, W_K, W_V and head_dim; received"),
        ({"Gamma": None}, "the array Gamma is missing"),
        ({"gamma": GAMMA}, "unknown array 'gamma'; known: Gamma"),
        ({"W_Q": W_Q.astype(str)}, r"W_Q of shape \(2, 3, 7\) must hold real numbers, received <U"),
    ],
)
def test_bad_arrays_are_named_with_their_shape(save, change, message):
    arrays = {name: array for name, array in (LAYER | change).items() if array is not None}
    path = save(**arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load_heads(path)
    assert str(caught.value).startswith("head.npz: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"U": np.ones((2, D, 4)), "V": np.ones((2, 1, D))}, r"U has shape \(2, 7, 4\), expected \(7, 7\) or \(heads"),
        ({"U": np.ones((2, D, D)), "V": np.ones((2, 1, 4))}, r"V has shape \(2, 1, 4\), expected \(k, 7\) or \(heads"),
        ({"U": np.ones((2, D, D)), "V": np.ones((3, 1, D))}, r"V has shape \(3, 1, 7\), expected as many heads as U"),
    ],
)
def test_bad_matrices(arrays, message):
    with pytest.raises(ValueError, match=message):
        heads_from_arrays(Gamma=GAMMA, **arrays)


def test_files_that_are_missing_or_no_archive(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        load_heads(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"bad.npz cannot be read as an .npz of arrays"):
        load_heads(tmp_path / "bad.npz")


def test_the_parameter_type_reads_the_file_beside_the_parameters(save):
    adapter, path = TypeAdapter(HeadFile), save(**LAYER)
    assert adapter.validate_python("") == ""
    assert adapter.validate_python("head.npz", context={"base": path.parent}) == "head.npz"
    with pytest.raises(ValidationError, match=r"must be empty or name a file that ends in \.npz"):
        adapter.validate_python("head.npy")
    save(**LAYER | {"Gamma": -GAMMA})
    with pytest.raises(ValidationError, match=r"head\.npz: Gamma of shape"):
        adapter.validate_python("head.npz", context={"base": path.parent})


def test_the_example_layer_has_its_gains_and_its_seed():
    quiet, loud = example_heads(3, dim=8, gains=(0.5, 2.0)), example_heads(3, dim=8, gains=(1.0, 1.0))
    np.testing.assert_allclose(quiet.U, loud.U * np.array([0.5, 2.0])[:, None, None], rtol=1e-14)
    np.testing.assert_array_equal(quiet.V, loud.V)
    assert quiet.U.shape == (2, 8, 8) and np.linalg.matrix_rank(quiet.U[0]) == 2
    assert np.all(example_heads(4, dim=8).U != example_heads(3, dim=8).U)


def test_biases_shift_the_query_and_change_nothing_else():
    rng = np.random.default_rng(3)
    b_Q, b_K, b_V = rng.normal(size=(3, H, E))
    tokens, z = rng.normal(size=(2000, D)), rng.normal(size=D)
    arrays = {"tokens": tokens, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "head_dim": E}
    plain, heads = heads_from_arrays(**arrays), heads_from_arrays(**arrays, b_Q=b_Q.ravel(), b_K=b_K, b_V=b_V)
    np.testing.assert_array_equal(heads.U, plain.U)
    for k in range(H):
        scores = (tokens @ W_K[k].T + b_K[k]) @ (W_Q[k] @ z + b_Q[k]) / np.sqrt(E)
        ours = tokens @ heads.U[k] @ (z + heads.shift(k))
        np.testing.assert_allclose(softmax(ours), softmax(scores), rtol=1e-9)
        np.testing.assert_array_equal(heads.queries_of(k), tokens + heads.shift(k))
    assert not plain.shift(0).any()


def test_tokens_give_their_covariance_and_are_their_own_queries():
    tokens, queries = RNG.normal(size=(50, D)), RNG.normal(size=(20, D)) + 1
    layer = {name: array for name, array in LAYER.items() if name != "Gamma"}
    alone, both = heads_from_arrays(tokens=tokens, **layer), heads_from_arrays(tokens=tokens, queries=queries, **layer)
    np.testing.assert_allclose(alone.covariance, np.cov(tokens.T, ddof=0))
    np.testing.assert_array_equal(alone.queries_of(1), tokens)
    np.testing.assert_array_equal(both.queries_of(1), queries)
    tilts = queries @ both.U[1].T
    np.testing.assert_allclose(both.tilt_moment(1), np.mean(tilts[:, :, None] * tilts[:, None], axis=0))
    assert both.score_deviation(1) == pytest.approx(np.sqrt(np.mean(np.vecdot(tilts @ both.covariance, tilts))))


def test_gaussian_queries_have_no_list_unless_a_bias_shifts_them():
    assert heads_from_arrays(**LAYER).queries_of(0) is None
    shifted = heads_from_arrays(**LAYER, b_Q=np.ones((H, E)))
    drawn = shifted.queries_of(1) - shifted.shift(1)
    np.testing.assert_allclose(np.cov(drawn.T), GAMMA, atol=0.2)
    np.testing.assert_array_equal(drawn, shifted.queries_of(1) - shifted.shift(1))
    np.testing.assert_allclose(W_Q[1] @ shifted.shift(1), np.ones(E))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.ones((5, D))}, "give either Gamma or tokens, whose covariance it would be, not both"),
        ({"Gamma": None, "tokens": np.ones((1, D))}, r"tokens has shape \(1, 7\), expected \(n, d\), at least two"),
        ({"queries": np.ones((5, D)), "Gamma_z": GAMMA}, "give either Gamma_z or queries"),
        ({"queries": np.ones((5, 3))}, r"queries has shape \(5, 3\), expected \(n, 7\)"),
        ({"b_Q": np.ones(5)}, r"b_Q has shape \(5,\), expected a number for each row of W_Q"),
        ({"b_V": np.ones((3, E))}, r"b_V has shape \(3, 3\), expected a number for each row of W_V"),
        ({"W_Q": 0 * W_Q, "b_Q": np.ones((H, E))}, "b_Q is not in the range of W_Q"),
        (
            {"W_Q": None, "W_K": None, "W_V": None, "U": np.eye(D), "V": np.eye(D), "b_Q": np.ones(D)},
            "b_Q is a bias of W_Q, which is missing beside it",
        ),
    ],
)
def test_what_does_not_fit_together_is_said(change, message):
    arrays = {name: array for name, array in (LAYER | change).items() if array is not None}
    with pytest.raises(ValueError, match=message):
        heads_from_arrays(**arrays)
