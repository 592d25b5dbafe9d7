r"""What the infinite-prompt limit says of trained heads to leading order in 1/L, in closed form.

Near the valley b A = Sigma^-1 the softmax risk is R_inf + E / L + O(1/L^2), with E of
:meth:`InContextRegression.long_prompt_constant`. With H the Hessian of R_inf and g the gradient of E at the head for
L to infinity (which is stationary along the valley, so that g has no flat part), the best head of length L lies off the
valley by delta / L, H delta = -g. So, with q = g' H^+ g / (2 C) and q' what a new b leaves of it,

    risk of the head of L1 used at L2 / best risk = 1 + q L2 (1/L1 - 1/L2)^2 + ...
    the same with the b that is best at L2        = 1 + q' L2 (1/L1 - 1/L2)^2 + ...
    largest curvature of softmax / that of the limit, at the head of L = 1 + kappa / L + ...

kappa = v' E'' v / h_max, v the eigenvector of H to h_max. Source: ours (notebook 07).
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.hessian import excess_hessian, infinite_hessian
from lib.regression.step_rules import LongPrompt, long_prompt
from lib.regression.task import InContextRegression

STEP = 1e-3  # of central differences of E, whose error is of order STEP^2
FLAT = 1e-9  # eigenvalues of H below this share of the largest are those of the valley
LAW_ERROR = 5e-4  # of what is held against a law: differences of E, and the search for the best head


class Law(NamedTuple):
    """The constants of the laws above.

    Attributes:
        penalty: q. repaired: q', 0 for isotropic x. curvature: kappa.
    """

    penalty: float
    repaired: float
    curvature: float


def law_of(problem: InContextRegression, limit: LongPrompt | None = None, attention: str = "softmax") -> Law:
    """The three constants, from one eigendecomposition of H and differences of E.

    Args:
        problem: the task.
        limit: of :func:`long_prompt`, if it is known already.
        attention: whose E is used; "linear" is wrong for softmax, and a control.
    """
    limit = limit or long_prompt(problem)
    point, H = limit.head.flat(), infinite_hessian(problem, limit.head)

    def E(x):
        head = BlockHead.from_flat(x)
        if attention == "softmax":
            return problem.long_prompt_constant(*head)
        return problem.excess_and_gradient("linear", head, 1.0)[0]

    g = np.array([(E(point + STEP * e) - E(point - STEP * e)) / (2 * STEP) for e in np.eye(len(point))])
    values, vectors = np.linalg.eigh(H)
    steep = values > FLAT * values[-1]
    delta = -vectors[:, steep] @ ((vectors[:, steep].T @ g) / values[steep])
    along_b = np.append(np.zeros(len(point) - 1), limit.head.b)  # d (A, b) / d log b
    gain = (delta @ H @ along_b) ** 2 / (along_b @ H @ along_b)
    energy, top = float(delta @ H @ delta), vectors[:, -1]
    second = (E(point + STEP * top) - 2 * E(point) + E(point - STEP * top)) / STEP**2
    repaired = max(energy - gain, 0.0) if energy - gain > FLAT * energy else 0.0
    return Law(energy / (2 * limit.constant), repaired / (2 * limit.constant), float(second / values[-1]))


def without_noise(problem: InContextRegression) -> InContextRegression:
    """The task without label noise: the near miss of every law."""
    return InContextRegression(problem.covariance, 0.0, problem.task_variance, problem.query_covariance)


def near_trained_heads(
    *, problems: dict[str, InContextRegression], judged: list[str], lengths: list[float]
) -> Comparison:
    """Two laws held against the exact risk: the stable step at the trained head, and the price of the limit's head.

    Args:
        problems: tasks by the name of their covariance.
        judged: the names of those that claims are about; the others are only shown.
        lengths: prompt lengths L; the laws are judged at the longest.

    Returns:
        A row a covariance and length: covariance, length, ``exact`` (stable step of the softmax risk at its best head),
        of the limit's Hessian at the ``same head``, at the head for L to infinity (``long prompt``) and at
        ``(A*, b*)``; ``ratio`` of same head over exact and its ``law``; ``price``, the relative excess risk of the head
        for L to infinity, and its ``price law``; ``coupling`` of the best head.
        Parts, at the longest length, over its law, one a judged covariance (near miss: the law without label noise,
        control: with linear attention's E): "stable", ratio - 1; "price".
    """
    rows, sides = [], {"stable": [], "price": []}
    for name, problem in problems.items():
        limit = long_prompt(problem)
        star, far = infinite_hessian(problem, problem.optimum()), infinite_hessian(problem, limit.head)
        law = law_of(problem, limit)
        for length in lengths:
            best = best_softmax(problem, length)
            same = infinite_hessian(problem, best)
            whole = same + excess_hessian(problem, best, length)
            top, exact = (float(np.linalg.eigvalsh(h)[-1]) for h in (same, whole))
            risk, used = (risk_at(problem, head, length) for head in (best, limit.head))
            row = {"covariance": name, "length": length, "exact": 2 / exact, "same head": 2 / top}
            row |= {
                key: 2 / float(np.linalg.eigvalsh(h)[-1]) for key, h in {"long prompt": far, "(A*, b*)": star}.items()
            }
            row |= {"ratio": exact / top, "law": 1 + law.curvature / length}
            row |= {"price": used / risk - 1, "price law": law.penalty / length, "coupling": problem.coupling(best.A)}
            rows.append(row)
        if name in judged:
            found = {"stable": (row["ratio"] - 1) * length, "price": row["price"] * length}
            nearly, wrong = law_of(without_noise(problem)), law_of(problem, limit, "linear")
            for key, value in found.items():
                field = {"stable": "curvature", "price": "penalty"}[key]
                sides[key].append([value / getattr(x, field) for x in (law, wrong, nearly)])
    table = pd.DataFrame(rows)
    return Comparison(
        table, parts={key: judged_by_law(table, *zip(*found, strict=True)) for key, found in sides.items()}
    )


def judged_by_law(table: pd.DataFrame, measured, control, near_miss) -> Comparison:
    """Measured numbers over their laws, with the numerical error of both."""
    own, wrong, nearly = (Intervals.exact(x, numerical_error=LAW_ERROR) for x in (measured, control, near_miss))
    return Comparison(table, own, wrong, near_miss=nearly)


def risk_at(problem: InContextRegression, head: BlockHead, length: float) -> float:
    """The exact softmax risk of a head, by the quick integrals of flows."""
    return problem.risk_and_gradient("softmax", *head, length)[0]
