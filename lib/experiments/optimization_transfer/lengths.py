"""Which prompt length to train at: heads of one length used at another, exactly, and the laws that say how far."""

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from lib.experiments.optimization_transfer.leading_order import Law, judged_by_law, law_of, risk_at, without_noise
from lib.notebook.comparison import Comparison
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.step_rules import long_prompt
from lib.regression.task import InContextRegression

AS_TRAINED, REPAIRED = "as trained", "with a new b"
FARTHEST = 1e8  # tokens that stand for L to infinity
LONG = 1e5  # tokens from which on the head for infinite L is within 1e-3 of the best risk, and costs nothing


def recalibrated(problem: InContextRegression, A, length) -> BlockHead:
    """The head with the b that is best at a prompt length, A given: the exact risk is quadratic in b."""
    at_zero, gradient = problem.risk_and_gradient("softmax", A, 0.0, length)
    slope = gradient.b
    square = problem.risk_and_gradient("softmax", A, 1.0, length)[0] - at_zero - slope
    return BlockHead(np.asarray(A, float), -slope / (2 * square))


def transfer(
    *, problems: dict[str, InContextRegression], trained_lengths: list[int], used_lengths: list[int]
) -> Comparison:
    """Risk of the best softmax head of L1 used at L2, over the best risk at L2: exact, and to leading order.

    Args:
        problems: tasks by the name of their covariance.
        trained_lengths: L1, where a head is trained.
        used_lengths: L2, where it is used.

    Returns:
        A row a covariance, head and L2: covariance, ``trained at``, ``used at``, ``as trained``, ``with a new b`` (the
        best at L2), and what the laws of :mod:`leading_order` say of both: ``law``, ``law with a new b``.
    """
    rows = []
    for name, problem in problems.items():
        law, heads = law_of(problem), {x: best_softmax(problem, x) for x in trained_lengths}
        for used in used_lengths:
            best = risk_at(problem, heads.get(used) or best_softmax(problem, used), used)
            for trained, head in heads.items():
                off = used * (1 / trained - 1 / used) ** 2
                row = {"covariance": name, "trained at": trained, "used at": used}
                row[AS_TRAINED] = risk_at(problem, head, used) / best
                row[REPAIRED] = risk_at(problem, recalibrated(problem, head.A, used), used) / best
                rows.append(row | {"law": 1 + law.penalty * off, "law " + REPAIRED: 1 + law.repaired * off})
    return Comparison(pd.DataFrame(rows))


def reach(*, problems: dict[str, InContextRegression], trained_lengths: list[float], penalty: float) -> Comparison:
    """The largest L2 up to which a head trained at L1 costs at most the penalty, as it is and with a new b.

    To leading order (penalty - 1) L1^2 / q, and (penalty - 1) L1^2 / q' with a new b; solved in log L2 to 1e-4.

    Args:
        problems: tasks by the name of their covariance; the first one is followed over all L1, the others at the last.
        trained_lengths: L1, increasing.
        penalty: risk over the best risk, above 1.

    Returns:
        A row a covariance, L1 and head: covariance, ``trained at``, head ("as trained" or "with a new b"), reach,
        ``law``, ``reach / law``; heads whose law has no end (isotropic x, with a new b) are left out.
        Parts, at the last L1 over the law, one a covariance (near miss: the law without label noise): "as trained"
        (control: at the first L1); "with a new b" (control: the law of the head as trained).
    """
    rows, sides = [], {AS_TRAINED: [], REPAIRED: []}
    for name, problem in problems.items():
        law, nearly = law_of(problem), law_of(without_noise(problem))
        for trained in trained_lengths if not rows else trained_lengths[-1:]:
            head = best_softmax(problem, trained)
            for kind, q in _constants(law).items():
                expected = (penalty - 1) * trained**2 / q
                found = _reach(problem, head, penalty, expected, kind == REPAIRED)
                row = {"covariance": name, "trained at": trained, "head": kind, "reach": found, "law": expected}
                rows.append(row | {"reach / law": found / expected})
        for kind, q in _constants(law).items():
            last = [row for row in rows if row["covariance"] == name and row["head"] == kind]
            own, first = last[-1]["reach / law"], last[0]["reach / law"]
            sides[kind].append([own, first, own * _constants(nearly)[kind] / q, own * law.penalty / q])
    table = pd.DataFrame(rows)
    trained, repaired = sides[AS_TRAINED], sides[REPAIRED]  # the latter is empty if every task is isotropic
    # the first task alone is followed to short prompts
    of_trained = judged_by_law(table, [x[0] for x in trained], [trained[0][1]], [x[2] for x in trained])
    of_repaired = judged_by_law(table, *([x[k] for x in repaired] for k in (0, 3, 2)))
    return Comparison(table, parts={AS_TRAINED: of_trained, REPAIRED: of_repaired})


def _constants(law: Law) -> dict[str, float]:
    return {AS_TRAINED: law.penalty} | ({REPAIRED: law.repaired} if law.repaired else {})


def _reach(problem: InContextRegression, head: BlockHead, penalty: float, expected: float, repaired: bool) -> float:
    def excess(log_length):
        used = float(round(np.exp(log_length)))
        best = long_prompt(problem).head if used > LONG else best_softmax(problem, used)
        mine = recalibrated(problem, head.A, used) if repaired else head
        return np.log(risk_at(problem, mine, used) / risk_at(problem, best, used) / penalty)

    low = high = np.log(expected)
    while excess(high) < 0:
        high += 0.3
    while excess(low) > 0:
        low -= 0.3
    return float(np.exp(brentq(excess, low, high, xtol=1e-4)))


def isotropic_repair(*, problem: InContextRegression, trained_lengths: list[int]) -> Comparison:
    """Isotropic x: a head trained at L1 with the b that is best at L2, for L2 to infinity; exact and in closed form.

    With A = a I the new b brings b A to the valley, so that the penalty tends to C(I / b1) / C at b1 = 1 / a; it is
    infinite from the coupling 1/2 on.

    Args:
        problem: an isotropic task.
        trained_lengths: L1.

    Returns:
        A row an L1: ``trained at``, ``coupling`` of its head, ``penalty`` at FARTHEST tokens, ``C(b1) / C``, and its
        expansion to second order, ``quadratic``.
        measured: (penalty - 1) over (C(b1) / C - 1), an L1. control: the same over what the head costs as trained.
        near miss: over the expansion.
    """
    limit, rows, ratios = long_prompt(problem), [], []
    best = risk_at(problem, limit.head, FARTHEST)
    for trained in trained_lengths:
        head = best_softmax(problem, trained)
        b = problem.dimension / float(np.trace(problem.covariance @ head.A))
        valley = problem.long_prompt_constant(head.A, b) / limit.constant
        quadratic = 1 + limit.curvature / (2 * limit.constant) * np.log(b / limit.head.b) ** 2
        found = risk_at(problem, recalibrated(problem, head.A, FARTHEST), FARTHEST) / best
        as_trained = risk_at(problem, head, FARTHEST) / best
        row = {"trained at": trained, "coupling": problem.coupling(head.A), "penalty": found}
        rows.append(row | {"C(b1) / C": valley, "quadratic": quadratic})
        ratios.append([(x - 1) / (y - 1) for x, y in ((found, valley), (as_trained, valley), (found, quadratic))])
    return judged_by_law(pd.DataFrame(rows), *zip(*ratios, strict=True))
