r"""Exact finite-prompt error for dependent tokens: Markov prompts over a list of states, and Gaussian AR(1) prompts.

As for independent tokens (:mod:`lib.finite_prompt.empirical`), 1 / Z^2 = int t e^{-tZ} dt turns the error into an
integral over tau = log t. Along the prompt the sums under it are carried by a recursion in the last state. With the
transition matrix P, scores s_j, D = diag(e^{-q}), q_j = e^{tau + s_j}, and marks c_j in R^k, the row vectors

    f0 <- D P' f0,    f1 <- D (r P' f1 + q c P' f0),    f2 <- D (P' f2 + 2 q r c . P' f1 + q^2 |c|^2 P' f0)

started at pi D, pi D q c, pi D q^2 |c|^2, give ``E sum_ij p_i p_j r^|i-j| c_i . c_j = int sum f2 dtau`` for the weights
p of a prompt of L tokens: with r = 1 and c = V x - T that is E|T_L - T|^2.

For a stationary Gaussian prompt with Cov(X_0, X_k) = r^k Gamma the standardized scores are a scalar AR(1) process, and
what is across them an independent one with the same correlations. With c_i = g_i - s along the scores (r = 1 in the
recursion) and c = 1 across them,

    E|T_L - T|^2 = zeta_r |V Gamma a|^2 / s^2 + eta_r ( tr(V Gamma V') - |V Gamma a|^2 / s^2 ),

the recursion running over the nodes of a trapezoid rule for the scalar process.
"""

import numpy as np

from lib.finite_prompt.empirical import ScoredValues, checked_lengths, tau_grid
from lib.finite_prompt.one_query import check_head, checked, score_deviation
from lib.finite_prompt.weight_moments import TAU_STEP
from lib.prompts.batches import MEMORY, batches

LONGEST_PROMPT = 10**6  # beyond, rounding in the sums over pairs of tokens shows
NODE_STEP = 0.4  # of the trapezoid rule, in units of the narrowest Gaussian under the integral
STEPS_A_PRODUCT = 2  # of the recursion, a state, that cost as much as the matrix products of one squaring
REACH = 9.5  # standard deviations on either side


def markov_output_error(states, transition, query, U, V, length, *, target=None) -> np.ndarray:
    """``E|T_L(z) - target|^2`` on Markov prompts over a list of tokens, exactly; the first token is stationary.

    Args:
        states: the tokens x_1 .. x_N, shape (N, d).
        transition: P, shape (N, N), P[i, j] the probability of state j after state i; rows sum to 1, and the
            stationary law must be unique.
        query: z, shape (d,). U: shape (d, d). V: shape (k, d).
        length: prompt length L, whole, from 1 to 1e6; a number or shape (n,).
        target: T, shape (k,); the limit of the stationary law if omitted.

    Returns:
        The shape of length. Relative accuracy 1e-11, and 1e-16 L for long prompts.

    Raises:
        ValueError: if shapes do not fit, a row is no probability, the stationary law is not unique, or a length is out
            of range.

    Cost: a few hundred values of tau, each log2(L) products of k + 2 matrices of size N, or L N^2 k if that is less.
    Source: exact here; derived in this module's first lines.
    """
    P, law = _chain(states, transition, query, U, V)
    target = law.limit if target is None else np.asarray(target, float)
    lengths, scores = checked_lengths(length, LONGEST_PROMPT), law.scores - law.scores.max()
    tau = tau_grid(scores[law.weights > 0].min(), float(np.log(law.tilted.sum())), lengths.max())
    found = _pair_sums(scores, P, law.weights, law.means - target, 1.0, tau, lengths.ravel())
    return found.reshape(lengths.shape)[()]


def ar1_output_error(covariance, correlation: float, query, U, V, length) -> np.ndarray:
    """``E|T_L(z) - T(z)|^2`` on stationary Gaussian AR(1) prompts, Cov(X_0, X_k) = r^k Gamma, exactly.

    Args:
        covariance: Gamma, shape (d, d). correlation: r, strictly between -1 and 1; 0 is the independent case.
        query: z, shape (d,). U: shape (d, d). V: shape (k, d).
        length: prompt length L, whole, from 1 to 1e6; a number or shape (n,).

    Returns:
        The shape of length. Relative accuracy 1e-9 for |r| up to 0.95, where the scores' deviation is at most 4.

    Raises:
        ValueError: if shapes do not fit, or the correlation or a length is out of range.

    Cost: that of :func:`markov_output_error` with N = 50 max(1, s) / sqrt(1 - r^2) states. Source: exact here.
    """
    covariance, query, U, V, _ = checked(covariance, query, U, V, 1)
    if not -1 < correlation < 1:
        raise ValueError(f"correlation must be strictly between -1 and 1, received {correlation:g}")
    lengths = checked_lengths(length, LONGEST_PROMPT)
    s, total = float(score_deviation(covariance, query, U)), float(np.trace(V @ covariance @ V.T))
    along = float(((query @ U.T @ covariance @ V.T) ** 2).sum()) / s**2 if s > 0 else 0.0
    width = np.sqrt(1 - correlation**2)
    step = NODE_STEP * min(width, 1 / max(1.0, s))
    g = np.arange(-REACH, 2 * s + REACH + step, step)
    P = np.exp(-((g - correlation * g[:, None]) ** 2) / (2 * width**2)) * step / (width * np.sqrt(2 * np.pi))
    start = np.exp(-(g**2) / 2) * step / np.sqrt(2 * np.pi)
    tau = tau_grid(s * g[0], s**2 / 2, lengths.max())
    zeta = _pair_sums(s * g, P, start, (g - s)[:, None], 1.0, tau, lengths.ravel())
    eta = _pair_sums(s * g, P, start, np.ones((len(g), 1)), correlation, tau, lengths.ravel())
    return (zeta * along + eta * (total - along)).reshape(lengths.shape)[()]


def long_run_error(covariance, correlations, query, U, V) -> np.ndarray:
    """The squared error of a long stationary Gaussian prompt, Cov(X_0, X_k) = r_k Gamma, to leading order in 1 / L.

        (1 / L^2) sum_ij e^{s^2 r} ( r tr(V Gamma V') + r^2 |V Gamma a|^2 ),   r = r_|i-j|:

    the variance of the weighted mean by the delta method. For r_k that fall faster than 1 / k it is a constant over L,
    with independent tokens that of :func:`lib.finite_prompt.sharp_constant`; for r_k ~ k^-b, b < 1, it falls like L^-b.

    Args:
        covariance, U, V: as for :func:`ar1_output_error`. query: z, shape (d,).
        correlations: r_0 = 1, r_1 ... r_{L-1} of the prompt, shape (L,).

    Source: exact here to leading order, notebook 08; it holds once L >> e^{3 s^2 / 2} times the memory.
    """
    covariance, query, U, V, _ = checked(covariance, query, U, V, 1)
    r = np.asarray(correlations, float)
    total, shift = np.trace(V @ covariance @ V.T), query @ U.T @ covariance @ V.T
    terms = np.exp(score_deviation(covariance, query, U) ** 2 * r) * (r * total + r**2 * (shift @ shift))
    pairs = 2.0 * np.arange(len(r), 0, -1)
    pairs[0] /= 2
    return (pairs @ terms) / len(r) ** 2


def markov_long_run_error(states, transition, query, U, V) -> float:
    """Limit of L times the squared error of Markov prompts: the long-run variance of e^s (V x - T) / E e^s.

    With f that function of the state, pi the stationary law, W = (I - P + 1 pi')^{-1}: sum_j pi_j f_j . (2 W f - f)_j.
    Arguments as for :func:`markov_output_error`. Source: the central limit theorem of Markov chains.
    """
    P, law = _chain(states, transition, query, U, V)
    growth = np.exp(law.scores - law.scores.max())
    f = (growth / law.tilted.sum())[:, None] * (law.means - law.limit)
    summed = np.linalg.solve(np.eye(len(P)) - P + law.weights, f)
    return float(law.weights @ np.vecdot(f, 2 * summed - f))


def _chain(states, transition, query, U, V) -> tuple[np.ndarray, ScoredValues]:
    """The transition matrix, and the stationary law as a head sees it, once everything fits."""
    states, P, query, U, V = (np.asarray(x, float) for x in (states, transition, query, U, V))
    if states.ndim != 2 or P.shape != (len(states), len(states)):
        raise ValueError(f"transition: expected shape (N, N) for states {states.shape}, received {P.shape}")
    if not (np.isfinite(states).all() and np.all(P >= 0) and np.allclose(P.sum(1), 1, atol=1e-10)):
        raise ValueError("states must be finite, and each row of the transition nonnegative with sum 1")
    check_head("states", states.shape[1], query, U, V)
    return P, ScoredValues(states @ (U @ query), stationary_law(P), states @ V.T)


def stationary_law(transition) -> np.ndarray:
    """The stationary law of a transition matrix, shape (N,). Raises ValueError if there is more than one."""
    P = np.asarray(transition, float)
    system = np.vstack([P.T - np.eye(len(P)), np.ones(len(P))])
    if np.linalg.matrix_rank(system, tol=1e-11) < len(P):
        raise ValueError("the transition has more than one stationary law: not all states lead to the same ones")
    law = np.linalg.lstsq(system, np.append(np.zeros(len(P)), 1.0), rcond=None)[0]
    law = np.where(law > 1e-14, law, 0.0)
    return law / law.sum()


def bigram_transition(sequence, n_states: int, smoothing: float = 1.0) -> np.ndarray:
    """The transition matrix of a sequence of states, from its bigrams, each row smoothed towards their frequencies.

    P[i, j] = (count of i then j + smoothing f_j) / (count of i + smoothing), f_j the frequency of state j, itself with
    one count added to each state.

    Args:
        sequence: whole numbers from 0 to n_states - 1, shape (n,). smoothing: positive.

    Returns:
        Shape (n_states, n_states).
    """
    sequence = np.asarray(sequence)
    if not smoothing > 0:
        raise ValueError(f"smoothing must be positive, received {smoothing:g}")
    frequency = np.bincount(sequence, minlength=n_states) + 1.0
    counts = np.zeros((n_states, n_states))
    np.add.at(counts, (sequence[:-1], sequence[1:]), 1.0)
    return (counts + smoothing * frequency / frequency.sum()) / (counts.sum(1, keepdims=True) + smoothing)


def _pair_sums(scores, P, start, marks, decay: float, tau, lengths) -> np.ndarray:
    """``E sum_ij p_i p_j r^|i-j| c_i . c_j`` over prompts of some lengths: the recursion of this module's first lines.

    Short prompts are stages of one recursion, for all tau at once. Long ones go by powers of a step.
    """
    by_powers = np.array([STEPS_A_PRODUCT * int(n).bit_length() * len(marks) < n for n in lengths])
    totals = np.zeros(len(lengths))
    q = np.exp(np.minimum(tau[:, None] + scores, 7.0))
    q = q[np.exp(-q).max(1) > 0]
    for part in batches(len(q), len(marks) * (marks.shape[1] + 4), MEMORY):
        totals += _by_steps(q[part], P, start, marks, decay, np.where(by_powers, 0, lengths))
    squares = (marks**2).sum(1)
    for k in np.flatnonzero(by_powers):
        for x in q:
            D, one, two = np.exp(-x), x[:, None] * marks, x**2 * squares
            state = start * D, (start * D)[:, None] * one, start * D * two
            totals[k] += _by_powers(P.T, D, one, two, decay, state, int(lengths[k]) - 1).sum()
    return totals * TAU_STEP


def _by_steps(q, P, start, marks, decay: float, lengths) -> np.ndarray:
    """Sums of f2 over the states and over the rows of q, (n_tau, N), at each length; none at length 0."""
    D, one, two = np.exp(-q), q[:, :, None] * marks, q**2 * (marks**2).sum(1)
    f0 = start * D
    f1, f2, totals = f0[:, :, None] * one, f0 * two, np.zeros(len(lengths))
    for length in range(1, int(lengths.max()) + 1):
        if length > 1:
            g0, g1 = f0 @ P, decay * (P.T @ f1)
            f2 = D * (f2 @ P + 2 * np.vecdot(one, g1) + two * g0)
            f1 = D[:, :, None] * (g1 + one * g0[:, :, None])
            f0 = D * g0
        if length in lengths:
            totals += np.where(lengths == length, f2.sum(), 0.0)
    return totals


def _by_powers(PT, D, one, two, decay, state, steps: int) -> np.ndarray:
    """f2 after many steps, from powers of the one-step operator by repeated squaring.

    An operator is the triple of matrices (A0, A1, A2) that takes f0 to f0, to each component of f1, and to f2; f1 goes
    to f1 by decay^steps A0 and to f2 by 2 B1, B1 the components that meet it.
    """
    A0 = D[:, None] * PT
    # f1 <- r A0 f1 + A1 f0,  f2 <- A0 f2 + sum_k B1_k f1_k + A2 f0
    A1, B1 = one.T[:, :, None] * A0, 2 * decay * one.T[:, :, None] * A0
    A2, r = two[:, None] * A0, decay
    f0, f1, f2 = state
    while steps:
        if steps & 1:
            f2 = A0 @ f2 + np.einsum("kij,jk->i", B1, f1) + A2 @ f0
            f1 = r * (A0 @ f1) + (A1 @ f0).T
            f0 = A0 @ f0
        steps >>= 1
        if steps:
            A2 = A0 @ A2 + (B1 @ A1).sum(0) + A2 @ A0
            B1 = A0 @ B1 + r * (B1 @ A0)
            A1 = r * (A0 @ A1) + A1 @ A0
            A0, r = A0 @ A0, r * r
    return f2
