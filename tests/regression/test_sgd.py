"""Stochastic training: it follows the exact flow in every parametrization, is reproducible, and can diverge."""

import numpy as np
import pytest
import torch
from scipy import stats
from statistics_checks import assert_mean

from lib.regression.flow import gradient_flow
from lib.regression.head import BlockHead
from lib.regression.head_risk import checkpoint_risks, head_risks, held_out_risks
from lib.regression.hessian import infinite_hessian, stable_step
from lib.regression.predictors import softmax_head
from lib.regression.sgd import (
    TrainingDiverged,
    _parameters,
    _Prompts,
    block_start,
    default_start,
    factored_start,
    full_start,
    train,
)
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Rademacher

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
START = PROBLEM.balanced_init(0.5)


def generators(n, seed=0):
    return [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(n)]


def run(start=None, n_seeds=4, seed=0, length=12, **options):
    options = {"step_size": 0.02, "n_steps": 60, "batch": 16, "n_checkpoints": 6, **options}
    return train(PROBLEM, length, start or block_start(START), rngs=generators(n_seeds, seed), **options)


@pytest.mark.parametrize("make", [block_start, full_start, factored_start])
def test_the_mean_over_seeds_follows_the_exact_flow(make):
    """The mean of log risk lies within 4 % of the flow's, allowing for 5 standard errors: a false alarm in 1e4."""
    training = run(make(START), n_seeds=12, length=40, n_steps=400, batch=64, step_size=0.01)
    risks, _ = checkpoint_risks(PROBLEM, training, rng=np.random.default_rng(0))
    options = {"length": 40, "times": training.time, "factored": make is factored_start}
    for arm, kind in enumerate(training.attention):
        flow = gradient_flow(PROBLEM, kind, START, 4.0, **options)
        ratio = np.log(risks[arm] / flow.risk)
        error = ratio.std(0, ddof=1) / np.sqrt(len(ratio))
        assert np.all(np.abs(ratio.mean(0)) < 0.04 + 5 * error)
        assert np.all(error < 0.06)
        assert flow.risk[-1] < 0.7 * flow.risk[0]
    wrong = gradient_flow(PROBLEM, "linear", START, 4.0, **options)
    assert np.log(risks[0, :, -1] / wrong.risk[-1]).mean() > 0.3  # the check can fail: softmax is not linear


def test_one_gradient_step_is_the_exact_gradient_on_average():
    """Over many seeds, one large batch each: the step of every entry, at a false-alarm rate of 1e-6 for each."""
    training = train(
        PROBLEM, 12, block_start(START), step_size=1.0, n_steps=1, rngs=generators(400), batch=64, n_checkpoints=1
    )
    for arm, kind in enumerate(training.attention):
        gradient = PROBLEM.risk_and_gradient(kind, *START, 12)[1]
        steps = np.diff(training.parameters["A"][arm], axis=1)[:, 0]
        scores = (steps.mean(0) + gradient.A) / (steps.std(0, ddof=1) / 20)
        assert np.abs(scores).max() < stats.norm.isf(5e-7)
        step_b = np.diff(training.parameters["b"][arm], axis=1)[:, 0]
        assert abs(step_b.mean() + gradient.b) < stats.norm.isf(5e-7) * step_b.std(ddof=1) / 20


def test_full_and_block_training_take_the_same_first_step():
    block, full = run(n_steps=1), run(full_start(START), n_steps=1)
    np.testing.assert_allclose(full.parameters["U"][..., :3, :3], block.parameters["A"], rtol=1e-12)
    np.testing.assert_allclose(full.parameters["V"][..., 3, 3], block.parameters["b"], rtol=1e-12)
    np.testing.assert_array_equal(full.parameters["U"][..., 3], 0)  # the query's last entry is zero


def test_factors_multiply_to_the_head_they_start_from():
    general = PROBLEM.balanced_init(0.5, np.random.default_rng(0).normal(size=(3, 3)))
    U, v = run(factored_start(general), n_steps=0).heads()
    np.testing.assert_allclose(U[0, 0, 0], np.pad(general.A, ((0, 1), (0, 0))), atol=1e-12)
    np.testing.assert_allclose(v[0, 0, 0], [0, 0, 0, 0.5], atol=1e-12)


def test_reproducible_and_seeds_are_separate():
    first, again = run(n_seeds=3), run(n_seeds=3)
    np.testing.assert_array_equal(first.parameters["A"], again.parameters["A"])
    more = run(n_seeds=4)
    np.testing.assert_allclose(more.parameters["A"][:, :3], first.parameters["A"], rtol=1e-12)
    alone = run(n_seeds=3, attention=("softmax",))
    np.testing.assert_allclose(alone.parameters["A"][0], first.parameters["A"][0], rtol=1e-12)
    assert np.ptp(first.parameters["b"][0, :, -1]) > 0


def test_checkpoints():
    training = run(n_steps=100, n_checkpoints=5)
    np.testing.assert_array_equal(training.step, [0, 1, 3, 10, 32, 100])
    np.testing.assert_allclose(training.time, 0.02 * training.step)
    assert training.parameters["A"].shape == (2, 4, 6, 3, 3)
    np.testing.assert_array_equal(training.parameters["A"][:, :, 0], np.broadcast_to(START.A, (2, 4, 3, 3)))
    assert len(run(n_steps=0).step) == 1


def test_blocks_of_prompts_train_as_well(monkeypatch):
    whole = run(n_seeds=8, n_steps=200)
    monkeypatch.setattr("lib.regression.sgd.NUMBERS_IN_MEMORY", 300)  # 6 prompts at a time
    split = run(n_seeds=8, n_steps=200)
    ends = [checkpoint_risks(PROBLEM, t)[0][:, :, -1].mean(1) for t in (whole, split)]
    np.testing.assert_allclose(*ends, rtol=0.05)


def test_a_start_for_each_seed():
    rng = np.random.default_rng(0)
    starts = [default_start(3, rng) for _ in range(4)]
    training = run(starts, n_steps=5)
    for seed, start in enumerate(starts):
        np.testing.assert_array_equal(training.parameters["Q"][1, seed, 0], start["Q"])
    assert np.abs(starts[0]["O"]).max() <= 0.5


def test_divergence_keeps_what_was_computed_and_names_a_stable_step():
    with pytest.raises(
        TrainingDiverged, match=r"diverged at step \d+ with step size 3: .* stable for steps below"
    ) as caught:
        run(step_size=3.0, n_steps=400)
    partial = caught.value.partial
    assert 1 <= len(partial.step) < 7
    assert np.all(np.isfinite(partial.parameters["A"]))
    assert f"{stable_step(infinite_hessian(PROBLEM, PROBLEM.optimum())):.3g}" in str(caught.value)


def test_other_tokens_are_trained_on_and_evaluated():
    training = run(n_seeds=6, n_steps=150, step_size=0.05, measure=Rademacher(3))
    risks, errors = held_out_risks(PROBLEM, training, 3000, np.random.default_rng(0), Rademacher(3))
    assert np.all(risks[..., -1].mean(1) < 0.8 * risks[..., 0].mean(1))
    gaussian, _ = checkpoint_risks(PROBLEM, training)
    assert np.all(errors < 0.1 * risks)
    assert abs(risks[0, :, -1].mean() / gaussian[0, :, -1].mean() - 1) > 0.02  # the two laws do differ


def test_held_out_risks_agree_with_the_exact_ones():
    training = run(n_steps=60)
    exact, _ = checkpoint_risks(PROBLEM, training)
    risks, errors = held_out_risks(PROBLEM, training, 20_000, np.random.default_rng(1))
    assert np.abs((risks - exact) / errors).max() < 5  # 56 heads on the same prompts: false alarm below 1e-4


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_risk_of_a_general_head_against_raw_prompts(kind):
    rng = np.random.default_rng(6)
    U, v = 0.4 * rng.normal(size=(4, 3)), rng.normal(size=4)
    tokens, query, target = PROBLEM.sample(200_000, 9, rng)
    scores = np.einsum("nld,nd->nl", tokens, query @ U.T)
    if kind == "softmax":
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
    else:
        weights = scores / 9
    losses = (np.einsum("nl,nld,d->n", weights, tokens, v) - target) ** 2 / 2
    risk, error = head_risks(PROBLEM, kind, U, v, 9, 20_000, rng)
    assert abs(losses.mean() - risk) < 5 * np.hypot(losses.std() / np.sqrt(len(losses)), error)


def test_the_risk_of_a_block_head_needs_no_draws():
    U, v = run(n_steps=0).heads()
    risk, error = head_risks(PROBLEM, "softmax", U[0, 0, 0], v[0, 0, 0], 12, 100, np.random.default_rng(0))
    assert risk == pytest.approx(PROBLEM.softmax_risk(*START, 12).value, rel=1e-9)
    assert error < 1e-12
    tokens, query, _ = PROBLEM.sample(2, 12, np.random.default_rng(0))
    assert softmax_head(*START)(tokens, query).shape == (2,)


def test_bad_input():
    with pytest.raises(ValueError, match="A must have shape"):
        run({"A": np.eye(4), "b": 1.0})
    with pytest.raises(ValueError, match="parameters must be"):
        run({"A": np.eye(3), "c": 1.0})
    with pytest.raises(ValueError, match="start for each of 4 seeds, received 2"):
        run([block_start(START)] * 2)
    with pytest.raises(ValueError, match="attention must name"):
        run(attention=("hard",))
    with pytest.raises(ValueError, match="must be positive"):
        run(step_size=0.0)
    with pytest.raises(ValueError, match="whole and at least 1"):
        train(PROBLEM, 0, block_start(START), step_size=0.1, n_steps=1, rngs=generators(1))
    with pytest.raises(ValueError, match="dimension 3, received 4"):
        run(measure=Rademacher(4))
    with pytest.raises(ValueError, match="give rng"):
        checkpoint_risks(PROBLEM, run(full_start(START), n_steps=1))


SHIFTED = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.7, 1.5, np.diag([2.0, 1.0, 0.3]))


def drawn(problem=PROBLEM, length=12, batch=16, attention=("softmax",), n_seeds=3, seed=0, head=START):
    """The prompts that a training draws, and its parameters, before any step."""
    prompts = _Prompts(problem, length, batch, attention, generators(n_seeds, seed), None)
    return prompts, _parameters(problem, block_start(head), attention, n_seeds)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_the_loss_of_raw_prompts_is_the_exact_risk_on_average(kind):
    """25,600 prompts of three tokens, with noise, a task variance and other queries; a false alarm in 1e6."""
    head = SHIFTED.optimum()
    prompts, start = drawn(SHIFTED, 3, 64, (kind,), n_seeds=400, head=head)
    losses = prompts.losses(*start.effective()).detach().numpy()[0]
    assert_mean(losses, SHIFTED.risk_and_gradient(kind, *head, 3)[0])
    for problem, length in ((SHIFTED, 2), (PROBLEM, 3)):
        with pytest.raises(AssertionError):
            assert_mean(losses, problem.risk_and_gradient(kind, *head, length)[0])


def test_a_step_is_the_step_size_times_the_gradient_of_its_own_batch():
    trained = run(n_seeds=3, n_steps=1, step_size=0.3, attention=("softmax",), n_checkpoints=1)
    prompts, start = drawn()
    gradients = torch.autograd.grad(prompts.losses(*start.effective()).sum(), [start.A, start.b])
    for name, gradient in zip("Ab", gradients, strict=True):
        taken = np.diff(trained.parameters[name], axis=2)[:, :, 0]
        np.testing.assert_allclose(taken, -0.3 * gradient.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("memory", [2**20, 300])
def test_every_seed_and_step_draws_its_own_tokens(monkeypatch, memory):
    """With a score of zero softmax averages the tokens: no two seeds, steps or roots may share such a mean."""
    monkeypatch.setattr("lib.regression.sgd.NUMBERS_IN_MEMORY", memory)
    zero = torch.zeros(1, 3, 16, 4, dtype=torch.float64)
    means = []
    for root in (0, 1):
        prompts, _ = drawn(seed=root)
        for _ in range(2):
            parts = [prompts._reduce(zero[:, k : k + prompts.group], k)[0] for k in range(0, 3, prompts.group)]
            means.append(torch.cat(parts, 1).numpy()[0])
    means = np.concatenate(means).reshape(-1, 16 * 4)
    assert len(np.unique(means.round(9))) == means.size
    assert np.abs(np.corrcoef(means) - np.eye(len(means))).max() < 6 / np.sqrt(means.shape[1])
    assert 12 * means.var() == pytest.approx(1, abs=0.25)  # 768 of variance 1 / L: five standard errors


def test_the_tasks_and_queries_of_a_batch():
    """In dimension 1 and for queries +1 or -1 a head of zero has the loss w^2 / 2: a mean over the batch, each its own.

    400 seeds: the deviation of their losses is within 20 %, six standard errors, of sqrt(1 / 2) / sqrt(batch).
    """
    problem = InContextRegression(np.eye(1), 0.3)
    prompts = _Prompts(problem, 4, 16, ("softmax",), generators(400), Rademacher(1))
    zero = torch.zeros(1, 400, 2, 1, dtype=torch.float64), torch.zeros(1, 400, 2, dtype=torch.float64)
    losses = prompts.losses(*zero).numpy()[0]
    assert_mean(losses, 0.5)
    assert losses.std() == pytest.approx(np.sqrt(0.5 / 16), rel=0.2)
    assert len(np.unique(losses.round(12))) == 400


def test_the_default_start_is_that_of_linear_layers():
    """Uniform on +- 1 / sqrt(D), by a Kolmogorov-Smirnov test of 4096 entries; a false alarm in 1e6."""
    starts = [default_start(3, np.random.default_rng(k)) for k in range(64)]
    entries = np.array([start[name] for start in starts for name in "QKVO"]).ravel()
    assert stats.kstest(2 * entries, stats.uniform(-1, 2).cdf).pvalue > 1e-6
    assert len(np.unique(entries)) == len(entries)


def test_a_loss_that_is_not_a_number_is_a_divergence():
    with pytest.raises(TrainingDiverged, match=r"diverged at step 0 .*; try (\S+)") as caught:
        run({"A": np.full((3, 3), np.nan), "b": 1.0})
    stable = stable_step(infinite_hessian(PROBLEM, PROBLEM.optimum()))
    assert str(caught.value).endswith(f"try {stable / 10:.2g}")


def test_factors_of_a_head_without_symmetry():
    A = np.array([[0.5, 0.2, 0.0], [-0.3, 0.4, 0.1], [0.1, 0.0, 0.2]])
    start = factored_start(BlockHead(A, 0.7))
    np.testing.assert_allclose(start["K"].T @ start["Q"] / 2, np.pad(A, (0, 1)), atol=1e-14)
    np.testing.assert_allclose(start["Q"] @ start["Q"].T, start["K"] @ start["K"].T, atol=1e-14)  # balanced


def test_the_measure_is_that_of_x_and_the_noise_stays_normal():
    """Linear attention's covariance of white tokens: exactly 1 for signs, and not so for the noise."""
    prompts = _Prompts(PROBLEM, 12, 5, ("linear",), generators(2), Rademacher(3))
    covariance = prompts._reduce(torch.zeros(1, 2, 5, 4, dtype=torch.float64), 0)[1].numpy()
    variances = np.diagonal(covariance, axis1=-2, axis2=-1)
    np.testing.assert_allclose(variances[..., :3], 1, rtol=1e-12)
    assert np.all(np.abs(variances[..., 3] - 1) > 1e-4)


def test_a_seed_alone_sees_what_it_sees_among_others(monkeypatch):
    monkeypatch.setattr("lib.regression.sgd.NUMBERS_IN_MEMORY", 300)  # one seed at a time
    options = {"step_size": 0.02, "n_steps": 3, "batch": 16}
    together, alone = (
        train(PROBLEM, 12, block_start(START), rngs=r, **options) for r in (generators(3), generators(3)[2:])
    )
    np.testing.assert_allclose(alone.parameters["A"][:, 0], together.parameters["A"][:, 2], rtol=1e-12)


def test_whitened_directions_have_the_covariance_of_the_tokens():
    """|G' v|^2 = v' G G' v, with the covariance of (x, y) written out; its last entry holds the noise."""
    prompts, _ = drawn(SHIFTED)
    w, v = np.random.default_rng(1).normal(size=(2, 5, 3)), np.random.default_rng(2).normal(size=(2, 5, 4))
    white = prompts._whiten(torch.from_numpy(v), torch.from_numpy(w)).numpy()
    for task, direction, found in zip(w.reshape(-1, 3), v.reshape(-1, 4), white.reshape(-1, 4), strict=True):
        mixed = SHIFTED.covariance @ task
        G = np.block([[SHIFTED.covariance, mixed[:, None]], [mixed[None], task @ mixed + SHIFTED.noise_std**2]])
        assert found @ found == pytest.approx(direction @ G @ direction)
