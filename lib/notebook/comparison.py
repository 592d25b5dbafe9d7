"""What an experiment answers: a tidy table, what was measured, and the control that must fail the same check."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from lib.prompts.curve import Curve, average, join
from lib.prompts.estimate import Estimate


@dataclass(frozen=True)
class Comparison:
    """The answer of every experiment, for ``results.table``, a figure, and ``results.judge``.

    Attributes:
        table: tidy, for figures and for the reader.
        measured: what a claim is about, relative to its prediction or beside it; None where nothing is judged.
        control: the same with something wrong on purpose.
        parts: comparisons by name, where an experiment answers several questions at once.
    """

    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    measured: Estimate | Curve | None = None
    control: Estimate | Curve | None = None
    parts: Mapping[str, "Comparison"] = field(default_factory=dict)

    @classmethod
    def of_curve(cls, curve: Curve, exact, wrong, **columns) -> "Comparison":
        """A curve from prompts over the exact one, and over a wrong one as the control.

        Args:
            exact, wrong: values at the points of the curve, shape (n,) each.
            columns: of the table, before ``measured``, ``low``, ``high`` and ``exact``.
        """
        table = pd.DataFrame({**columns, **curve.columns(), "exact": exact})
        return cls(table, curve / exact, curve / wrong)

    @classmethod
    def averaged(cls, parts: Mapping[str, "Comparison"]) -> "Comparison":
        """Several comparisons of independent curves at the same points: their tables, and the means of the curves."""
        table = pd.concat([part.table for part in parts.values()], ignore_index=True)
        measured, control = (
            average([getattr(part, side) for part in parts.values()]) for side in ("measured", "control")
        )
        return cls(table, measured, control, dict(parts))

    @classmethod
    def together(cls, parts: Mapping[str, "Comparison"]) -> "Comparison":
        """Several comparisons as one: their tables one below the other and, where all are curves, these joined."""
        table = pd.concat([part.table for part in parts.values()], ignore_index=True)
        curves = [(part.measured, part.control) for part in parts.values()]
        if not all(isinstance(curve, Curve) for pair in curves for curve in pair):
            return cls(table, parts=dict(parts))
        measured, control = (join(side) for side in zip(*curves, strict=True))
        return cls(table, measured, control, dict(parts))

    def __getitem__(self, name: str) -> "Comparison":
        """One of the parts."""
        return self.parts[name]

    def pooled(self) -> "Comparison":
        """The same comparison of means over all points, which count alike."""
        return Comparison(self.table, self.measured.pooled(), self.control.pooled())
