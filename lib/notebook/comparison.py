"""What an experiment answers: a tidy table, what was measured, and the controls that must not pass the same check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from lib.prompts.curve import Curve, average, join
from lib.prompts.estimate import Estimate, Intervals

Measured = Estimate | Intervals | Curve


@dataclass(frozen=True)
class Comparison:
    """The answer of every experiment, for ``results.table``, a figure, and ``results.judge``.

    Attributes:
        table: tidy, for figures and for the reader.
        measured: what a claim is about, relative to its prediction or beside it; None where nothing is judged.
        control: the same with something grossly wrong on purpose.
        parts: comparisons by name, where an experiment answers several questions at once.
        near_miss: what is measured, with something wrong by little.
    """

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    measured: Measured | None = None
    control: Measured | None = None
    parts: Mapping[str, "Comparison"] = field(default_factory=dict)
    near_miss: Measured | None = None

    @classmethod
    def of_curve(cls, curve: Curve, exact, wrong, nearly=None, **columns) -> "Comparison":
        """A curve from prompts over the exact one, and over wrong ones as the control and the near miss.

        Args:
            exact, wrong, nearly: values at the points of the curve, shape (n,) each.
            columns: of the table, before ``measured``, ``low``, ``high`` and ``exact``.
        """
        table = pd.DataFrame({**columns, **curve.columns(), "exact": exact})
        return cls(table, curve / exact, curve / wrong, near_miss=None if nearly is None else curve / nearly)

    @classmethod
    def averaged(cls, parts: Mapping[str, "Comparison"]) -> "Comparison":
        """Several comparisons of independent curves at the same points: their tables, and the means of the curves."""
        table = pd.concat([part.table for part in parts.values()], ignore_index=True)
        return cls(table, **_each_side(parts, average), parts=dict(parts))

    @classmethod
    def together(cls, parts: Mapping[str, "Comparison"]) -> "Comparison":
        """Several comparisons as one: their tables one below the other and, where all are curves, these joined."""
        table = pd.concat([part.table for part in parts.values()], ignore_index=True)
        return cls(table, **_each_side(parts, join), parts=dict(parts))

    def __getitem__(self, name: str) -> "Comparison":
        """One of the parts."""
        return self.parts[name]

    def pooled(self) -> "Comparison":
        """The same comparison of means over all points, which count alike."""
        near_miss = None if self.near_miss is None else self.near_miss.pooled()
        return Comparison(self.table, self.measured.pooled(), self.control.pooled(), near_miss=near_miss)


def _each_side(parts: Mapping[str, Comparison], combine: Callable) -> dict[str, Curve]:
    """Measurements, controls and near misses of the parts, combined where they are all curves."""
    sides = {side: [getattr(part, side) for part in parts.values()] for side in ("measured", "control", "near_miss")}
    return {side: combine(all_) for side, all_ in sides.items() if all(isinstance(x, Curve) for x in all_)}
