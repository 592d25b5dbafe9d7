"""Stochastic softmax training with tokens that are not Gaussian, whose limit is not linear."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.settings import UNIT_UNIFORM
from lib.experiments.stochastic_training import over_seeds
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.head_risk import held_out_risks
from lib.regression.sgd import block_start, train
from lib.regression.task import InContextRegression
from lib.tokens.families import Rademacher, Uniform

CHECKPOINTS = 8


def other_tokens(
    *,
    problem: InContextRegression,
    lengths: Sequence[int],
    alpha: float,
    step_size: float,
    n_steps: int,
    seeds: int,
    batch: int,
    held_out: int,
    seed: int,
) -> Comparison:
    """Softmax training with Gaussian, Rademacher and uniform x of the same covariance: risk on held-out prompts.

    Args:
        problem: the task.
        lengths: prompt lengths L, in tokens, increasing.
        alpha: size of the balanced start.
        step_size: flow time a step.
        n_steps: steps of each training.
        seeds: independent trainings, at least 2 for intervals.
        batch: prompts a step and seed.
        held_out: prompts on which trained heads are tested.
        seed: root of the random draws.

    Returns:
        Columns tokens, length ("L = 50"), L, time, measured (mean risk over the seeds), low, high (Student's
        intervals, which hold at all checkpoints of a training at once with 95 % confidence).
        measured: of the tokens that are not Gaussian, the largest ratio of the risk at the longest prompt to that at
        the shortest, after training. control: the smallest such ratio before.
    """
    d, tables = problem.dimension, []
    measures = {"Gaussian": None, "Rademacher": Rademacher(d), "uniform": Uniform(d, UNIT_UNIFORM)}
    for name, measure in measures.items():
        for length in lengths:
            rngs = [stream(seed, "tokens", name, length, k) for k in range(seeds)]
            settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch, "measure": measure}
            start = block_start(problem.balanced_init(alpha))
            run = train(problem, length, start, attention=("softmax",), n_checkpoints=CHECKPOINTS, **settings)
            risks, _ = held_out_risks(problem, run, held_out, stream(seed, "held out", name, length), measure)
            frame = over_seeds(risks[0], np.full(len(run.time), np.nan))
            tables.append(frame.assign(tokens=name, length=f"L = {length}", L=length, time=run.time))
    table = pd.concat(tables, ignore_index=True)
    others = table[table["tokens"] != "Gaussian"].groupby(["tokens", "L"])["measured"]
    trained, untrained = _gain_from_length(others.last()), _gain_from_length(others.first())
    return Comparison(table, Intervals.exact(trained), Estimate.exact(min(untrained)))


def _gain_from_length(risks: pd.Series) -> list[float]:
    """Risk at the longest prompt over that at the shortest, for each kind of tokens; risks by tokens and L."""
    return [by_length.iloc[-1] / by_length.iloc[0] for _, by_length in risks.groupby(level="tokens")]
