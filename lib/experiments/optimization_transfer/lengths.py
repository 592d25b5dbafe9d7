"""Which prompt length to train at: heads of one length used at another, exactly."""

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.step_rules import long_prompt
from lib.regression.task import InContextRegression

LONG = 200  # tokens from which on the head for infinite L is judged
REACH_ERROR = 1e-3  # of the slope, from the tolerance in log L


def recalibrated(problem: InContextRegression, A, length) -> BlockHead:
    """The head with the b that is best at a prompt length, A given: the exact risk is quadratic in b."""
    at_zero, gradient = problem.risk_and_gradient("softmax", A, 0.0, length)
    slope = gradient.b
    square = problem.risk_and_gradient("softmax", A, 1.0, length)[0] - at_zero - slope
    return BlockHead(np.asarray(A, float), -slope / (2 * square))


def transfer(
    *, problems: dict[str, InContextRegression], trained_lengths: list[int], used_lengths: list[int]
) -> Comparison:
    """Risk of the best softmax head of L1 used at L2, over the best risk at L2: exact.

    Args:
        problems: tasks by the name of their covariance, "isotropic" among them.
        trained_lengths: L1, where a head is trained.
        used_lengths: L2, where it is used.

    Returns:
        A row a covariance, head and L2: ``trained at`` (a length, "limit", the head for L to infinity in closed form,
        or "(A*, b*)"), ``used at``, ``penalty`` as trained, ``recalibrated`` with the b that is best at L2, covariance.
        Parts: "limit head", the worst penalty of the limit from LONG tokens on (control: of (A*, b*)); "recalibrate",
        the worst recalibrated one of trained heads, isotropic (control: anisotropic).
    """
    table = pd.concat(
        [_transfer(p, trained_lengths, used_lengths).assign(covariance=name) for name, p in problems.items()],
        ignore_index=True,
    )
    used = table[table["used at"] >= LONG].groupby("trained at")["penalty"].max()
    repaired = table[table["trained at"].str.startswith("L")].groupby("covariance")["recalibrated"].max()
    pairs = {
        "limit head": (used["limit"], used["(A*, b*)"]),
        "recalibrate": (repaired["isotropic"], repaired.drop("isotropic").max()),
    }
    return Comparison(table, parts={k: Comparison(table, *map(Estimate.exact, pair)) for k, pair in pairs.items()})


def _transfer(problem: InContextRegression, trained_lengths, used_lengths) -> pd.DataFrame:
    heads = {f"L₁ = {x:,.0f}": best_softmax(problem, x) for x in trained_lengths}
    heads |= {"limit": long_prompt(problem).head, "(A*, b*)": problem.optimum()}
    rows = []
    for used in used_lengths:
        best = _risk(problem, best_softmax(problem, used), used)
        for name, head in heads.items():
            adapted = _risk(problem, recalibrated(problem, head.A, used), used)
            row = {"trained at": name, "used at": used, "penalty": _risk(problem, head, used) / best}
            rows.append(row | {"recalibrated": adapted / best})
    return pd.DataFrame(rows)


def reach(*, problem: InContextRegression, trained_lengths: list[float], penalty: float) -> Comparison:
    """The largest L2 up to which a head trained at L1 costs at most the penalty, with its slope to the next L1.

    Solved in log L2 to 0.1 %, around C / (infinite-prompt risk of the head), where it is to leading order.

    Args:
        problem: the task.
        trained_lengths: L1, increasing: two short ones and two long ones.
        penalty: risk over the best risk, above 1.

    Returns:
        A row an L1: ``trained at``, reach, slope. measured: the last slope. control: the first.
    """
    found, limit = [], long_prompt(problem)
    for trained in trained_lengths:
        head = best_softmax(problem, trained)
        guess = np.log(limit.constant / ((penalty - 1) * problem.infinite_risk(*head)))

        def excess(log_length, head=head):
            used = float(round(np.exp(log_length)))
            # the head for infinite L is within 1e-3 of the best risk from 1e5 tokens on, and costs nothing
            best = limit.head if used > 1e5 else best_softmax(problem, used)
            return np.log(_risk(problem, head, used) / _risk(problem, best, used) / penalty)

        found.append(np.exp(brentq(excess, guess - 1.5, guess + 1.0, xtol=1e-3)))
    slopes = np.append(np.diff(np.log(found)) / np.diff(np.log(trained_lengths)), np.nan)
    table = pd.DataFrame({"trained at": trained_lengths, "reach": found, "slope": slopes})
    return Comparison(table, Estimate.exact(slopes[-2], REACH_ERROR), Estimate.exact(slopes[0]))


def _risk(problem: InContextRegression, head: BlockHead, length) -> float:
    return problem.risk_and_gradient("softmax", *head, length)[0]
