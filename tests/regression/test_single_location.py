"""Single-location regression: exact risks against prompts, closed forms, optimality, the strength that is needed."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.kernels import LinearAttention, MomentAttention, Softmax
from lib.regression import single_location as retrieval


@pytest.mark.parametrize(("strength", "length"), [(1.0, 2), (2.0, 10), (3.0, 100)])
def test_risks_on_prompts(strength, length):
    """40,000 prompts (or 4 million tokens); false-alarm rate 1e-6."""
    n = min(40_000, 4_000_000 // length)
    tokens, target = retrieval.sample(n, length, 3, strength, np.random.default_rng(0))
    k, v = np.eye(3)[:2]
    softmax = Softmax()(tokens, strength * k, tokens @ v[:, None])[:, 0]
    assert_mean((softmax - target) ** 2, retrieval.softmax_risk(strength, length))
    weights = 1 / (length - 1) + strength * tokens[..., 0] / length
    affine, risk = np.vecdot(weights, tokens[..., 1]), float(retrieval.affine_risk(strength, length))
    assert_mean((risk * affine - target) ** 2, risk)  # the best scale is the risk itself
    for scale, ratio in ((1.2, 1.0), (1.0, 0.5), (1.0, 2.0)):  # no other affine weights do better
        weights = scale * (1 / (length - 1) + ratio * strength * tokens[..., 0] / length)
        other = np.vecdot(risk * weights, tokens[..., 1])
        assert ((other - target) ** 2).mean() > ((risk * affine - target) ** 2).mean()
    with pytest.raises(AssertionError):
        assert_mean((softmax - target) ** 2, risk)


@pytest.mark.parametrize(("strength", "length"), [(1.0, 2), (2.0, 10), (3.0, 100)])
def test_moment_and_linear_attention_on_prompts(strength, length):
    n = min(40_000, 4_000_000 // length)
    tokens, target = retrieval.sample(n, length, 2, strength, np.random.default_rng(3))
    for kernel, risk in ((MomentAttention(), retrieval.moment_risk), (LinearAttention(), retrieval.linear_risk)):
        outputs = kernel(tokens[..., :1], np.array([strength]), tokens[..., 1:])[:, 0]
        b = outputs @ target / (outputs @ outputs)
        assert_mean((b * outputs - target) ** 2, float(risk(strength, length)))
    moment, affine = retrieval.moment_risk(strength, length), retrieval.affine_risk(strength, length)
    assert moment < affine < retrieval.linear_risk(strength, length)  # the mean score is not a token's own


def test_softmax_is_optimal_at_the_strength_itself():
    tokens, target = retrieval.sample(20_000, 30, 2, 2.5, np.random.default_rng(1))
    risks = [
        ((Softmax()(tokens[..., :1], np.array([x]), tokens[..., 1:])[:, 0] - target) ** 2).mean() for x in (2, 2.5, 3)
    ]
    assert min(risks) == risks[1]


def test_the_relevant_token_is_anywhere():
    tokens, target = retrieval.sample(4000, 5, 2, 50.0, np.random.default_rng(0))
    place = tokens[..., 0].argmax(1)
    assert np.bincount(place, minlength=5).min() > 600
    assert np.array_equal(tokens[np.arange(4000), place, 1], target)


def test_closed_forms_and_monotony():
    assert retrieval.softmax_risk(3.0, 1) == 0
    assert retrieval.softmax_risk(0.0, 8) == pytest.approx(7 / 8)
    assert retrieval.softmax_risk(1e-3, 8) == pytest.approx(7 / 8, abs=1e-6)
    assert retrieval.affine_risk(0.0, 8) == pytest.approx(7 / 8)  # the mean of the prompt
    risks = [retrieval.softmax_risk(x, 1000) for x in (0.1, 1, 2, 4, 8, 20)]
    assert np.all(np.diff(risks) < 0)
    assert risks[-1] == pytest.approx(0, abs=1e-9)
    assert np.all(np.diff([retrieval.softmax_risk(3, x) for x in (2, 10, 1e3, 1e6, 1e15)]) > 0)
    for strength in (0.5, 2.0, 5.0):
        assert retrieval.softmax_risk(strength, 100) < retrieval.affine_risk(strength, 100)


def test_two_tokens_by_quadrature():
    """E p_J = E sigmoid(beta (h_J - h)), h_J - h ~ N(beta, 2)."""
    g, weights = np.polynomial.hermite_e.hermegauss(150)
    for beta in (0.3, 1.0, 2.0):
        found = weights @ (1 / (1 + np.exp(-beta * (beta + np.sqrt(2) * g)))) / weights.sum()
        assert retrieval.softmax_risk(beta, 2) == pytest.approx(1 - found, abs=1e-9)


def test_the_result_does_not_depend_on_the_step(monkeypatch):
    before = [retrieval.softmax_risk(*x) for x in ((2, 10), (5, 1e5), (8, 1e12))]
    monkeypatch.setattr(retrieval, "STEP", 0.1)
    assert [retrieval.softmax_risk(*x) for x in ((2, 10), (5, 1e5), (8, 1e12))] == pytest.approx(before, abs=1e-9)


def test_needed_strengths():
    for length in (10, 1e4, 1e15):
        for risk in (0.5, 0.1):
            softmax, affine = retrieval.needed_strength(length, risk)
            assert retrieval.softmax_risk(softmax, length) == pytest.approx(risk, abs=1e-6)
            assert retrieval.affine_risk(affine, length) == pytest.approx(risk, abs=1e-9)
    low, high = (retrieval.needed_strength(x)[0] for x in (1e12, 1e15))
    assert (high**2 - low**2) / np.log(1e3) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: retrieval.softmax_risk(-1, 10), "strength must be nonnegative"),
        (lambda: retrieval.softmax_risk(1, 1e16), r"length in \[1, 1e\+15\]"),
        (lambda: retrieval.affine_risk(1, 1), "needs at least 2 tokens, received 1"),
        (lambda: retrieval.needed_strength(4, 0.8), r"between 0 and 1 - 1/L = 0.75, received 0.8"),
        (lambda: retrieval.sample(1, 2, 1, 1.0, np.random.default_rng(0)), "need dim >= 2, received 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
