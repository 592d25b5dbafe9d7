r"""Risks of heads that are not in block form, and of all checkpoints of a training run.

Given w and the query, the tokens are Gaussian, with covariance
G = [[Sigma, Sigma w], [w' Sigma, w' Sigma w + sigma_eps^2]], and the finite-prompt theory gives the risk of any
head (U, v), v the last row of V. With a = U x_q, c = v' G a and s^2 = a' G a it is

    softmax   1/2 { (c - t)^2 + W c^2 + 2 eta c t + eta v' G v },      W = (zeta - eta) / s^2 - 2 eta
    linear    1/2 { (c - t)^2 + (s^2 v' G v + c^2) / L },              t = w . x_q

What is left is the average over w and the query, 2 d numbers: by Monte Carlo, with the head's block part, whose risk is
exact, as control variate. No prompt is drawn.
"""

import numpy as np
from scipy.special import softmax

from lib.finite_prompt.weight_table import weights_excess
from lib.prompts.batches import batches
from lib.regression.head import Attention
from lib.regression.predictors import NUMBERS_IN_MEMORY
from lib.regression.sgd import Training
from lib.regression.task import InContextRegression

DIFFERENCE = 1e-3  # in s: eta and W are even and smooth, so that a difference over it is off by 1e-7


def head_risks(
    problem: InContextRegression, attention: Attention, U, v, length, n_draws: int, rng
) -> tuple[np.ndarray, np.ndarray]:
    """Risks of heads given by U and the last row of V, at one prompt length.

    Args:
        attention: "softmax" or "linear".
        U: what the query's x is multiplied with, its image a tilt of the whole token, shape (..., d + 1, d).
        v: last row of V, shape (..., d + 1).
        n_draws, rng: pairs of w and query averaged over (the same for every head), and their numpy Generator.

    Returns:
        Risks and standard errors, shape (...); the nearer to block form, the smaller.

    Cost: about 4 ms a head for 4096 draws at d = 5.
    """
    w = np.sqrt(problem.task_variance) * rng.standard_normal((n_draws, problem.dimension))
    query = rng.standard_normal((n_draws, problem.dimension)) @ problem.query_root
    risks, errors = np.empty(v.shape[:-1]), np.empty(v.shape[:-1])
    for index in np.ndindex(risks.shape):
        A, b = U[index][:-1], v[index][-1]
        losses = _losses(problem, attention, U[index], v[index], length, w, query)
        in_block = _losses(
            problem, attention, np.pad(A, ((0, 1), (0, 0))), np.append(0 * v[index][:-1], b), length, w, query
        )
        spread = in_block.var()
        slope = np.cov(losses, in_block, ddof=0)[0, 1] / spread if spread > 0 else 0.0
        exact = problem.risk_and_gradient(attention, A, b, length)[0]
        corrected = losses - slope * (in_block - exact)
        risks[index], errors[index] = corrected.mean(), corrected.std(ddof=1) / np.sqrt(n_draws)
    return risks, errors


def softmax_losses(problem: InContextRegression, U, v, length, w, query) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The softmax risk of a head given each w and query, averaged over the prompt, and the gradient of its mean.

    Args:
        U, v: one head, as for :func:`head_risks`, shapes (d + 1, d) and (d + 1,).
        w, query: the same for every head that is to be compared, shape (n, d) each.

    Returns:
        Shapes (n,), (d + 1, d) and (d + 1,). The derivatives of eta and W by s are differences, good to 1e-7.

    Cost: about 6 ms for 4096 draws at d = 5.
    """
    a, target = query @ U.T, np.vecdot(query, w)
    through = _times_covariance(problem, a, w)  # G a
    image = _times_covariance(problem, np.broadcast_to(v, a.shape), w)  # G v
    s, c, spread = np.sqrt(np.vecdot(a, through)), through @ v, image @ v
    s = np.maximum(s, DIFFERENCE / 10)
    eta, W = _weights(length, s)
    by_s2 = [
        (after - before) / (4 * DIFFERENCE * s)
        for after, before in zip(_weights(length, s + DIFFERENCE), _weights(length, abs(s - DIFFERENCE)), strict=True)
    ]
    losses = ((c - target) ** 2 + W * c**2 + 2 * eta * c * target + eta * spread) / 2
    by_c = c - target + W * c + eta * target
    through_s2 = by_s2[1] * c**2 + 2 * by_s2[0] * c * target + by_s2[0] * spread  # 2 dR/ds^2, and d s^2 = 2 G a da
    by_a = by_c[:, None] * image + through_s2[:, None] * through
    return losses, by_a.T @ query / len(w), (by_c @ through + eta @ image) / len(w)


def _weights(length, s) -> tuple[np.ndarray, np.ndarray]:
    eta, W = (part[:, 0] for part in weights_excess((float(length),), s))
    return eta + 1 / length, W - 1 / length


def _losses(problem, attention, U, v, length, w, query) -> np.ndarray:
    """The risk given each w and query, averaged over the prompt: shape (n,)."""
    a, target = query @ U.T, np.vecdot(query, w)
    through = _times_covariance(problem, a, w)  # G a
    s2, c = np.vecdot(a, through), through @ v
    spread = _times_covariance(problem, np.broadcast_to(v, a.shape), w) @ v
    if attention == "linear":
        return ((c - target) ** 2 + (s2 * spread + c**2) / length) / 2
    eta, W = (part[:, 0] for part in weights_excess((float(length),), np.maximum(np.sqrt(s2), 1e-12)))
    eta, W = eta + 1 / length, W - 1 / length
    return ((c - target) ** 2 + W * c**2 + 2 * eta * c * target + eta * spread) / 2


def _times_covariance(problem, a, w) -> np.ndarray:
    """G a, for each w: the tokens' covariance given w."""
    x = (a[..., :-1] + w * a[..., -1:]) @ problem.covariance
    return np.concatenate([x, np.vecdot(x, w)[..., None] + problem.noise_std**2 * a[..., -1:]], -1)


def checkpoint_risks(
    problem: InContextRegression, training: Training, *, length: int | None = None, n_draws: int = 4096, rng=None
) -> tuple[np.ndarray, np.ndarray]:
    """Population risks on Gaussian prompts of every arm, seed and checkpoint of a training run.

    Args:
        problem: the task, possibly another than that of the training.
        length: prompt length, that of the training if omitted.
        n_draws, rng: see :func:`head_risks`; needed for heads that are not in block form.

    Returns:
        Risks, shape (n_arms, n_seeds, n_checkpoints), and their standard errors, zero for heads in block form.

    Cost: 1 ms a head in block form at d = 5, else about 4 ms.
    """
    length = training.length if length is None else length
    if training.in_block:
        A, b = training.parameters["A"], training.parameters["b"]
        risks = np.empty(b.shape)
        for index in np.ndindex(b.shape):
            risks[index] = problem.risk_and_gradient(training.attention[index[0]], A[index], b[index], length)[0]
        return risks, np.zeros_like(risks)
    if rng is None:
        raise ValueError("risks of heads that are not in block form are averages over draws: give rng")
    U, v = training.heads()
    seed = rng.integers(2**63)  # the same draws in every arm
    arms = [
        head_risks(problem, kind, U[arm], v[arm], length, n_draws, np.random.default_rng(seed))
        for arm, kind in enumerate(training.attention)
    ]
    risks, errors = (np.stack(parts) for parts in zip(*arms, strict=True))
    return risks, errors


def held_out_risks(
    problem: InContextRegression, training: Training, n_prompts: int, rng, measure=None
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`checkpoint_risks`, from held-out raw prompts, the same for all heads: for tokens that are not Gaussian.

    Cost: n_prompts * length exponentials a head, in blocks of bounded memory.
    """
    U, v = training.heads()
    sums, squares = np.zeros(v.shape[:-1]), np.zeros(v.shape[:-1])
    for part in batches(n_prompts, training.length * sums[0].size, NUMBERS_IN_MEMORY):
        tokens, query, target = problem.sample(part.stop - part.start, training.length, rng, measure)
        for arm, kind in enumerate(training.attention):
            tilts = np.einsum("...ij,nj->n...i", U[arm], query)
            scores = tilts.reshape(len(query), -1, tilts.shape[-1]) @ tokens.mT
            if kind == "softmax":
                scores = softmax(scores, axis=-1)
            else:
                scores /= training.length
            means = (scores @ tokens).reshape(len(query), *v[arm].shape)
            losses = (np.vecdot(means, v[arm]) - target[:, None, None]) ** 2 / 2
            sums[arm] += losses.sum(0)
            squares[arm] += (losses**2).sum(0)
    risks = sums / n_prompts
    return risks, np.sqrt(np.maximum(squares / n_prompts - risks**2, 0) / (n_prompts - 1))
