r"""Stochastic softmax training with tokens that are not Gaussian, whose limit is not linear.

For x and queries of random signs, Sigma = I, the symmetries keep A = omega I along exact descent, and the risk is exact
at every prompt length: whatever the query, the law of the prompt's error is that for x_q = (1, ..., 1), where the
tokens are 2^d sign vectors of equal weights, and :func:`lib.finite_prompt.tokens_error` gives, for m = sum p_i x_i,

    R_L(omega I, b) = 1/2 { b^2 E|m|^2 - 2 b E m . x_q + d + b^2 sigma_eps^2 E sum p_i^2 }.

Its limit is 1/2 d (b tanh(omega) - 1)^2: a softmax head without any error as the prompt grows, although tanh is not
linear. (Found by notebook 03.)
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline

from lib.experiments.settings import UNIT_UNIFORM
from lib.experiments.stochastic_training import compared_speeds, flat_blocks, over_seeds, speeds
from lib.finite_prompt import tokens_error
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import NORMAL
from lib.prompts.streams import stream
from lib.regression.flow import gradient_flow
from lib.regression.head_risk import held_out_risks
from lib.regression.sgd import block_start, train
from lib.regression.task import InContextRegression
from lib.tokens.families import Rademacher, Uniform

CHECKPOINTS = 14
OMEGAS = np.linspace(0.0, 2.0, 81)  # where the moments of the prompt are computed; splines in between
SIGNS = "Rademacher"
LARGER = 1.1  # steps of the near miss


class SignRisk:
    """The exact softmax risk of heads (omega I, b) on prompts of random signs with covariance I, and its descent."""

    def __init__(self, dim: int, noise_std: float, length: int):
        self.dim, self.noise = dim, noise_std**2
        signs, query = np.array(list(product([-1.0, 1.0], repeat=dim))), np.ones(dim)
        moments = []
        for omega in OMEGAS:
            found = tokens_error(signs, query, omega * np.eye(dim), np.eye(dim), length, target=np.zeros(dim))
            moments.append((found.mean[0] @ query, found.squared_error[0], found.inverse_participation[0]))
        self.moments = CubicSpline(OMEGAS, moments)
        self.slopes = self.moments.derivative()

    def risk(self, omega, b):
        """Shape of omega and b, which broadcast; omega from 0 to 2."""
        first, second, plain = np.moveaxis(self.moments(omega), -1, 0)
        return (b**2 * (second + self.noise * plain) - 2 * b * first + self.dim) / 2

    def descent(self, alpha: float, step_size: float, steps: np.ndarray) -> np.ndarray:
        """Heads (A, b), flat, of gradient descent of (A, b) from the balanced start, at so many steps: (n, d^2 + 1)."""
        omega, b, path = alpha / np.sqrt(self.dim), alpha, []
        for _ in range(steps[-1] + 1):
            path.append((omega, b))
            (first, second, plain), slopes = self.moments(omega), self.slopes(omega)
            by_omega = (b**2 * (slopes[1] + self.noise * slopes[2]) - 2 * b * slopes[0]) / 2  # of all d entries
            by_b = b * (second + self.noise * plain) - first
            omega, b = omega - step_size * by_omega / self.dim, b - step_size * by_b
        omega, b = np.array(path)[steps].T
        return np.concatenate([omega[:, None] * np.eye(self.dim).ravel(), b[:, None]], 1)


def other_tokens(
    *,
    dim: int,
    noise_std: float,
    lengths: Sequence[int],
    alpha: float,
    step_size: float,
    n_steps: int,
    seeds: int,
    batch: int,
    held_out: int,
    seed: int,
) -> Comparison:
    """Softmax training with x of random signs, and uniform, of covariance I; for signs against exact descent.

    Args:
        dim: dimension d of x.
        noise_std: standard deviation of the label noise.
        lengths: prompt lengths L, in tokens, increasing.
        alpha: size of the balanced start.
        step_size: flow time a step.
        n_steps: steps of each training.
        seeds: independent trainings, at least 2 for intervals.
        batch: prompts a step and seed.
        held_out: prompts on which trained heads are tested.
        seed: root of the random draws.

    Returns:
        Columns tokens, length ("L = 50"), time, measured (mean risk over the seeds on held-out prompts), low, high
        (95 % each: Student's over the seeds, and that of the prompts, the same for all of them), exact, for signs the
        risk of exact descent, and Gaussian, that of the exact flow on Gaussian tokens.
        measured: the mean speed on signs, over all lengths, relative to exact descent with the same steps, see
        :func:`lib.experiments.stochastic_training.speeds`. near miss: to steps that are 10 % larger. control: to the
        exact flow on Gaussian tokens of the same covariance. One part, "speed": the table of the speeds.
    """
    problem, tables, clocks = InContextRegression(np.eye(dim), noise_std), [], []
    start = problem.balanced_init(alpha)
    for length in lengths:
        signs = SignRisk(dim, noise_std, length)
        for name, measure in {SIGNS: Rademacher(dim), "uniform": Uniform(dim, UNIT_UNIFORM)}.items():
            rngs = [stream(seed, "tokens", name, length, k) for k in range(seeds)]
            settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch, "measure": measure}
            run = train(
                problem, length, block_start(start), attention=("softmax",), n_checkpoints=CHECKPOINTS, **settings
            )
            (risks,), (errors,) = held_out_risks(
                problem, run, held_out, stream(seed, "held out", name, length), measure
            )
            gaussian = gradient_flow(problem, "softmax", start, run.time[-1], length=length, times=run.time)
            exact = signs.descent(alpha, step_size, run.step)
            risk = signs.risk(exact[:, 0], exact[:, -1]) if name == SIGNS else np.full(len(run.time), np.nan)
            columns = {"tokens": name, "length": f"L = {length}", "time": run.time, "Gaussian": gaussian.risk}
            tables.append(_with_test_error(over_seeds(risks, risk, together=1), errors.mean(0)).assign(**columns))
            if name == SIGNS:
                faster = signs.descent(alpha, LARGER * step_size, run.step)
                wrong = np.concatenate([gaussian.A.reshape(len(run.time), -1), gaussian.b[:, None]], 1)
                heads = {"speed": exact, "larger steps": faster, "Gaussian": wrong}
                found = {key: speeds(flat_blocks(run)[0], path, run.time) for key, path in heads.items()}
                clocks.append(pd.DataFrame(found).assign(tokens=name, length=f"L = {length}", seed=range(seeds)))
    clocks = pd.concat(clocks, ignore_index=True)
    speed = compared_speeds(clocks, "tokens", near="larger steps", control="Gaussian")
    table = pd.concat(tables, ignore_index=True)
    return Comparison(table, speed.measured, speed.control, {"speed": speed}, speed.near_miss)


def _with_test_error(frame: pd.DataFrame, errors: np.ndarray) -> pd.DataFrame:
    """Intervals over the seeds, widened by the standard errors of the prompts on which all seeds were tested."""
    low, high = (np.hypot(frame["measured"] - frame[end], NORMAL * errors) for end in ("low", "high"))
    return frame.assign(low=frame["measured"] - low, high=frame["measured"] + high)
