"""Token measures against closed forms, quadrature that knows no formula, finite differences, and their own samples."""

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from lib.tokens.bessel import bessel_ratio, log_sphere_mgf
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, GaussianMixture, Rademacher, Sphere, TokenMeasure, Uniform


def rotation(dim, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]


def gaussian(dim, spec="toeplitz(0.5)"):
    turn = rotation(dim)
    return Gaussian(np.linspace(-1, 1, dim), turn @ covariance_matrix(spec, dim) @ turn.T)


def mixture(dim):
    covariances = [covariance_matrix(spec, dim) for spec in ("0.5 * toeplitz(0.5)", "rank(2)", "isotropic")]
    means = np.random.default_rng(3).standard_normal((3, dim))
    return GaussianMixture([0.5, 0.2, 0.3], means, covariances)


MEASURES = [
    pytest.param(build, id=name)
    for name, build in {
        "gaussian": gaussian,
        "singular": lambda d: gaussian(d, "rank(3)"),
        "isotropic": lambda d: Gaussian(np.zeros(d), 2 * np.eye(d)),
        "mixture": mixture,
        "rademacher": lambda d: Rademacher(d, 0.8),
        "uniform": lambda d: Uniform(d, 1.5),
        "sphere": lambda d: Sphere(d, 2.0),
    }.items()
]
NOT_GAUSSIAN = MEASURES[3:]
every_measure = pytest.mark.parametrize("build", MEASURES)
DIMS = pytest.mark.parametrize("dim", [5, 7, 11])


def directions(dim, n=6, seed=1):
    a = np.random.default_rng(seed).standard_normal((n, dim))
    return a / np.linalg.norm(a, axis=1, keepdims=True)


@DIMS
@every_measure
def test_no_tilt_is_the_measure_itself(build, dim):
    measure = build(dim)
    assert isinstance(measure, TokenMeasure)
    assert measure.dim == dim
    assert measure.log_mgf(np.zeros(dim)) == pytest.approx(0, abs=1e-15)
    assert measure.tilted_mean(np.zeros(dim)) == pytest.approx(measure.mean, abs=1e-15)
    assert measure.tilted_covariance(np.zeros(dim)) == pytest.approx(measure.covariance, abs=1e-15)


@DIMS
@every_measure
def test_leading_axes_are_batch_axes(build, dim):
    measure = build(dim)
    a = 2 * directions(dim, 6).reshape(2, 3, dim)
    assert measure.log_mgf(a).shape == (2, 3)
    assert measure.tilted_mean(a).shape == (2, 3, dim)
    assert measure.tilted_covariance(a).shape == (2, 3, dim, dim)
    for method in (measure.log_mgf, measure.tilted_mean, measure.tilted_covariance):
        assert method(a)[1, 2] == pytest.approx(method(a[1, 2]), rel=1e-13)
        assert method(np.zeros((0, dim))).shape[0] == 0


def central_difference(f, a, step):
    """Derivative of f along each axis, last axis of the result; error O(step^4)."""
    shifts = step * np.eye(a.shape[-1])
    columns = [(8 * (f(a + e) - f(a - e)) - (f(a + 2 * e) - f(a - 2 * e))) / (12 * step) for e in shifts]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("size", [0.0, 1e-3, 0.3, 1.0, 3.0, 20.0])
@DIMS
@every_measure
def test_tilted_mean_is_the_gradient_and_tilted_covariance_the_hessian(build, dim, size):
    measure, a = build(dim), size * directions(dim, 3)
    gradient = central_difference(measure.log_mgf, a, 2e-3 / max(1, size))
    hessian = central_difference(measure.tilted_mean, a, 2e-3 / max(1, size))
    assert measure.tilted_mean(a) == pytest.approx(gradient, abs=1e-8)
    assert measure.tilted_covariance(a) == pytest.approx(hessian, abs=1e-8)


# Quadrature: moments of exp(a.x) mu(dx) by nodes and weights of mu alone.
def tilted_moments(points, weights, a):
    scores = points @ a
    tilted = weights * np.exp(scores - scores.max())
    mean = tilted @ points / tilted.sum()
    covariance = (tilted * (points - mean).T) @ (points - mean) / tilted.sum()
    return np.log(tilted.sum() / weights.sum()) + scores.max(), mean, covariance


def product_rule(nodes, weights, dim):
    grids = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    return grids, np.prod(np.stack(np.meshgrid(*[weights] * dim, indexing="ij"), axis=-1), axis=-1).ravel()


def gaussian_rule(measure, reach=14.0, n=141):
    """Trapezoid rule on the density itself, in a box around the mean."""
    grid, weights = product_rule(np.linspace(-reach, reach, n), np.ones(n), measure.dim)
    density = np.exp(-np.einsum("ni,ij,nj->n", grid, np.linalg.inv(measure.covariance), grid) / 2)
    density /= density.sum()
    return grid + measure.mean, weights * density


def quadrature(kind):
    if kind == "gaussian":
        measure = gaussian(2)
        return measure, *gaussian_rule(measure)
    if kind == "mixture":
        covariances = [[[1.0, 0.3], [0.3, 0.5]], 0.4 * np.eye(2)]
        measure = GaussianMixture([0.3, 0.7], [[1.0, -1.0], [-0.5, 2.0]], covariances)
        rules = [gaussian_rule(part) for part in measure.components]
        points = np.concatenate([points for points, _ in rules])
        return measure, points, np.concatenate([w * rule[1] for w, rule in zip((0.3, 0.7), rules, strict=True)])
    if kind == "rademacher":
        return Rademacher(5, 0.8), np.array(list(product([-0.8, 0.8], repeat=5))), np.full(32, 1 / 32)
    if kind == "uniform":
        nodes, weights = np.polynomial.legendre.leggauss(30)
        return Uniform(3, 1.5), *product_rule(1.5 * nodes, weights / 2, 3)
    angles = 2 * np.pi * np.arange(64) / 64  # the sphere in R^3: heights by Gauss-Legendre, longitudes evenly
    nodes, weights = np.polynomial.legendre.leggauss(40)
    ring = np.sqrt(1 - nodes**2)[:, None]
    height = np.broadcast_to(nodes[:, None], (40, 64))
    points = 2.0 * np.stack([ring * np.cos(angles), ring * np.sin(angles), height], axis=-1).reshape(-1, 3)
    return Sphere(3, 2.0), points, np.repeat(weights / 2, 64) / 64


@pytest.mark.parametrize("size", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("kind", ["gaussian", "mixture", "rademacher", "uniform", "sphere"])
def test_tilts_against_quadrature_that_knows_no_formula(kind, size):
    measure, points, weights = quadrature(kind)
    for a in size * directions(measure.dim, 4):
        log_mgf, mean, covariance = tilted_moments(points, weights, a)
        assert measure.log_mgf(a) == pytest.approx(log_mgf, abs=1e-12)
        assert measure.tilted_mean(a) == pytest.approx(mean, abs=1e-12)
        assert measure.tilted_covariance(a) == pytest.approx(covariance, abs=1e-12)


@pytest.mark.parametrize("size", [0.1, 1.0, 12.0])
@pytest.mark.parametrize("dim", [2, 4, 5, 7, 11, 64, 128])
def test_sphere_against_quadrature_over_the_angle(dim, size):
    """The angle to a has density sin^(d-2) on (0, pi); the trapezoid rule, after theta = (pi/2)(1 + tanh u)."""
    u = np.linspace(-25, 25, 4001)
    theta = np.pi / 2 * (1 + np.tanh(u))
    sine = np.sin(np.pi / (1 + np.exp(2 * np.abs(u))))
    weight = sine ** (dim - 2) / np.cosh(u) ** 2
    log_mgf, mean, variance = tilted_moments(3.0 * np.cos(theta)[:, None], weight, np.array([size]))
    measure, e = Sphere(dim, 3.0), directions(dim, 1)[0]
    covariance = measure.tilted_covariance(size * e)
    assert measure.log_mgf(size * e) == pytest.approx(log_mgf, rel=1e-11)
    assert measure.tilted_mean(size * e) == pytest.approx(mean[0] * e, abs=1e-12)
    assert e @ covariance @ e == pytest.approx(variance[0, 0], rel=1e-10)
    assert np.trace(covariance) == pytest.approx(9 - mean[0] ** 2, rel=1e-12)  # |X| = 3


@pytest.mark.parametrize("x", [1e-8, 1e-3, 0.5, 3.0, 6.4, 30.0, 51.0, 1e3, 1e4])
@pytest.mark.parametrize("dim", [2, 3, 5, 11, 64, 128])
def test_bessel_functions_against_fifty_digits(dim, x):
    with mpmath.workdps(50):
        below, order = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(dim) / 2
        value, t = mpmath.besseli(below, x), mpmath.mpf(x)
        ratio = mpmath.besseli(order, x) / value
        slope = 1 - ratio**2 - (dim - 1) * ratio / t
        log_mgf = mpmath.log(mpmath.gamma(order) * (2 / t) ** below * value)
        expected = [float(ratio / t), float(slope), float(log_mgf)]
    ratio, slope = bessel_ratio(dim / 2, np.array(x))
    assert float(ratio) == pytest.approx(expected[0], rel=1e-14)
    assert float(slope) == pytest.approx(expected[1], rel=1e-14 * max(1, x))
    assert float(log_sphere_mgf(dim, x)) == pytest.approx(expected[2], rel=1e-14)


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-160, 1e-8, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("dim", [5, 128])
@every_measure
def test_nothing_overflows_or_divides_zero_by_zero(build, dim, size):
    measure, a = build(dim), size * directions(dim, 4)
    with np.errstate(all="raise", under="ignore"):
        log_mgf, mean, covariance = measure.log_mgf(a), measure.tilted_mean(a), measure.tilted_covariance(a)
    assert np.isfinite(log_mgf).all()
    assert np.isfinite(mean).all()
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    if isinstance(measure, Rademacher | Uniform | Sphere):
        bound = next(v for k, v in vars(measure).items() if k in ("scale", "half_width", "radius"))
        assert np.abs(mean).max() <= bound
        assert np.all(np.einsum("ni,ni->n", a, mean) >= log_mgf * (1 - 1e-14))  # kappa is convex, kappa(0) = 0
    if size <= 1e-8:
        assert mean == pytest.approx(measure.mean + a @ measure.covariance, rel=1e-7, abs=1e-14)


@pytest.mark.parametrize("build", MEASURES[4:])
def test_small_tilts_keep_their_relative_accuracy(build):
    measure, a = build(7), 1e-6 * directions(7, 4)
    assert measure.log_mgf(a) == pytest.approx(np.einsum("ni,ij,nj->n", a, measure.covariance, a) / 2, rel=1e-10)
    assert measure.tilted_mean(a) == pytest.approx(a @ measure.covariance, rel=1e-10)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([5, 7, 11]), st.integers(0, 2**32 - 1), st.floats(0.0, 5.0))
def test_rotating_the_space_rotates_the_tilts(dim, seed, size):
    turn, a = rotation(dim, seed), size * directions(dim, 2, seed)
    plain = mixture(dim)
    turned = GaussianMixture(plain.weights, plain.means @ turn.T, turn @ plain.covariances @ turn.T)
    for before, after in ((plain, turned), (Sphere(dim, 2.0), Sphere(dim, 2.0))):
        assert after.log_mgf(a @ turn.T) == pytest.approx(before.log_mgf(a), rel=1e-10, abs=1e-12)
        assert after.tilted_mean(a @ turn.T) == pytest.approx(before.tilted_mean(a) @ turn.T, abs=1e-10)
        expected = turn @ before.tilted_covariance(a) @ turn.T
        assert after.tilted_covariance(a @ turn.T) == pytest.approx(expected, abs=1e-10)


def affine_defect(measure, a):
    """Second difference of the tilted mean along a; 0 if it is affine."""
    return np.linalg.norm(measure.tilted_mean(a) + measure.tilted_mean(-a) - 2 * measure.mean, axis=-1), np.linalg.norm(
        measure.tilted_mean(2 * a) - 2 * measure.tilted_mean(a) + measure.mean, axis=-1
    )


@every_measure
def test_only_the_gaussian_is_affine(build):
    measure, a = build(7), 2 * directions(7, 5)
    odd, defect = affine_defect(measure, a)
    if isinstance(measure, Gaussian):
        assert max(odd.max(), defect.max()) < 1e-12
    else:
        assert defect.min() > 0.1


def test_a_mixture_of_one_is_its_component_and_one_of_copies_too():
    part = gaussian(7)
    a = 3 * directions(7)
    for weights in ([1.0], [0.25, 0.75]):
        n = len(weights)
        copies = GaussianMixture(weights, [part.mean] * n, [part.covariance] * n)
        for name in ("log_mgf", "tilted_mean", "tilted_covariance"):
            assert getattr(copies, name)(a) == pytest.approx(getattr(part, name)(a), abs=1e-12)


# A family of z-scores passes if the largest is below the Bonferroni threshold of a false-alarm rate of 1e-6.
def assert_within_noise(estimates, standard_errors, expected):
    z = np.abs(estimates - expected) / standard_errors
    assert z.max() < norm.isf(1e-6 / (2 * z.size)), z.max()


@DIMS
@every_measure
def test_samples_have_the_mean_covariance_and_generating_function(build, dim):
    """20,000 tokens; each test has a false-alarm rate of 1e-6 (seeded)."""
    measure = build(dim)
    tokens = measure.sample(200, 100, np.random.default_rng(5))
    assert tokens.shape == (200, 100, dim)
    assert tokens.dtype == float
    tokens = tokens.reshape(-1, dim)
    n, spread = len(tokens), 1e-12  # standard errors of constants are 0
    assert_within_noise(tokens.mean(0), tokens.std(0) / np.sqrt(n) + spread, measure.mean)
    centered = tokens - measure.mean
    products = centered[:, :, None] * centered[:, None, :]
    assert_within_noise(products.mean(0), products.std(0) / np.sqrt(n) + spread, measure.covariance)
    exponentials = np.exp(tokens @ (0.5 * directions(dim)).T)
    expected = np.exp(measure.log_mgf(0.5 * directions(dim)))
    assert_within_noise(exponentials.mean(0), exponentials.std(0) / np.sqrt(n), expected)


def test_the_check_of_samples_can_fail():
    """Negative control: the sphere has the covariance of its Gaussian, not its generating function."""
    tokens = Sphere(5, np.sqrt(5)).sample(200, 100, np.random.default_rng(5)).reshape(-1, 5)
    exponentials = np.exp(tokens @ (2 * directions(5)).T)
    wrong = np.exp(Gaussian(np.zeros(5), np.eye(5)).log_mgf(2 * directions(5)))
    with pytest.raises(AssertionError):
        assert_within_noise(exponentials.mean(0), exponentials.std(0) / np.sqrt(20_000), wrong)


def test_samples_stay_in_the_support():
    rng = np.random.default_rng(2)
    assert set(np.unique(Rademacher(5, 0.8).sample(10, 50, rng))) == {-0.8, 0.8}
    assert np.abs(Uniform(5, 1.5).sample(10, 50, rng)).max() <= 1.5
    assert np.linalg.norm(Sphere(5, 2.0).sample(10, 50, rng), axis=-1) == pytest.approx(2.0)
    assert not Gaussian(np.zeros(7), covariance_matrix("rank(3)", 7)).sample(10, 50, rng)[..., 3:].any()
    singular = gaussian(7, "rank(3)")
    null = np.linalg.svd(singular.covariance)[0][:, 3:]
    assert (singular.sample(10, 50, rng) - singular.mean) @ null == pytest.approx(0, abs=1e-13)


@every_measure
def test_samples_depend_on_the_generator_alone(build):
    measure = build(7)
    first, second, other = (measure.sample(3, 11, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_isotropic_or_diagonal_gaussian_is_scaled_noise_without_a_matrix_product():
    noise = np.random.default_rng(1).standard_normal((3, 4, 7))
    spectrum = np.arange(1.0, 8.0)
    for covariance, expected in ((4 * np.eye(7), 2 * noise), (np.diag(spectrum), np.sqrt(spectrum) * noise)):
        drawn = Gaussian(np.zeros(7), covariance).sample(3, 4, np.random.default_rng(1))
        assert np.array_equal(drawn, expected)


@every_measure
def test_measures_are_immutable(build):
    measure = build(5)
    with pytest.raises(AttributeError):
        measure.dim = 3
    for array in (measure.mean, measure.covariance):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_a_measure_does_not_change_with_the_arrays_it_was_made_from():
    mean, covariance = np.zeros(5), np.eye(5)
    measure = Gaussian(mean, covariance)
    mean[0], covariance[0, 0] = 9.0, 9.0
    assert measure.tilted_mean(np.eye(5)[0])[0] == 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian([[0.0]], [[1.0]]), r"Gaussian: mean must be a vector of finite numbers.* \(1, 1\)"),
        (lambda: Gaussian([np.nan, 0.0], np.eye(2)), "Gaussian: mean must be a vector of finite numbers"),
        (lambda: Gaussian(np.zeros(5), np.eye(7)), r"expected shape \(5, 5\), received \(7, 7\)"),
        (lambda: Gaussian(np.zeros(2), [[1.0, 2.0], [2.0, 1.0]]), "its smallest eigenvalue is -1"),
        (lambda: GaussianMixture([0.5, 0.4], np.zeros((2, 3)), [np.eye(3)] * 2), "must be positive and sum to 1"),
        (lambda: GaussianMixture([1.5, -0.5], np.zeros((2, 3)), [np.eye(3)] * 2), "must be positive and sum to 1"),
        (lambda: GaussianMixture([1.0], np.zeros((2, 3)), [np.eye(3)] * 2), r"weights \(1,\), means \(2, 3\)"),
        (lambda: GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(3)]), r"expected shape \(2, 2\), received \(3, 3\)"),
        (lambda: Rademacher(0), "Rademacher: dim must be an integer >= 1, received 0"),
        (lambda: Rademacher(3, 0.0), "Rademacher: scale must be a positive number, received 0.0"),
        (lambda: Uniform(2.5, 1.0), "Uniform: dim must be an integer >= 1, received 2.5"),
        (lambda: Uniform(2, np.inf), "Uniform: half_width must be a positive number"),
        (lambda: Sphere(1, 1.0), "Sphere: dim must be an integer >= 2, received 1"),
        (lambda: Sphere(3, np.nan), "Sphere: radius must be a positive number"),
        (lambda: Sphere(5, 1.0).tilted_mean(np.zeros((2, 7))), r"expected shape \(..., 5\), received \(2, 7\)"),
        (lambda: gaussian(5).log_mgf(3.0), r"expected shape \(..., 5\), received \(\)"),
        (lambda: Uniform(2, 1.0).tilted_mean([np.nan, 0.0]), "tilt: its entries must be finite"),
        (lambda: Sphere(3000, 1.0).log_mgf(np.full(3000, 5.0)), "dim = 3000 is too large here"),
    ],
)
def test_bad_input_is_refused_with_the_reason(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_centered_gaussian_is_the_one_of_mean_zero():
    made = Gaussian.centered(np.diag([2.0, 1.0]))
    np.testing.assert_array_equal(made.mean, [0, 0])
    np.testing.assert_array_equal(made.covariance, np.diag([2.0, 1.0]))


def test_tokens_of_one_prompt_come_from_all_components():
    means = np.array([[5.0], [-5.0]])
    mixture = GaussianMixture(np.array([0.5, 0.5]), means, np.full((2, 1, 1), 0.01))
    signs = np.sign(mixture.sample(20, 40, np.random.default_rng(0))[..., 0]).mean(1)
    assert np.abs(signs).max() < 1  # all 40 alike: a chance of 2e-12 a prompt


def test_a_tilt_of_one_entry_is_not_stretched():
    with pytest.raises(ValueError, match="tilt: expected shape"):
        Rademacher(3).tilted_mean(np.ones(1))


def test_the_generating_function_of_a_sphere_keeps_its_digits_near_zero():
    """log E exp(x e.S) = x^2 / (2 d) - ..., far below 1."""
    for dim in (2, 3, 7):
        assert log_sphere_mgf(dim, 1e-6) == pytest.approx(1e-12 / (2 * dim), rel=1e-11)
