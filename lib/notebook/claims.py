"""Claims and verdicts: what a notebook asserts, and whether its measurement bears it out.

A claim fixes its prediction and its band before anything is computed. It is judged by an interval, never by a point:

    PASS           the whole interval lies inside the band;
    FAIL           interval and band are disjoint;
    INCONCLUSIVE   anything else: too little data to tell.

Every claim carries a control, a variant that is wrong on purpose and must FAIL the same check. A claim whose control
does not fail has shown nothing, and is INCONCLUSIVE.
"""

import html
import math
from dataclasses import dataclass
from typing import Literal

from lib.notebook.numbers import interval, number
from lib.notebook.schema import ClaimRecord, ControlRecord, MetricRecord
from lib.prompts.estimate import Estimate

Status = Literal["the paper's theorem", "exact here", "heuristic, confirmed numerically"]


def verdict_of(estimate: Estimate, band: tuple[float, float]) -> str:
    """PASS, FAIL or INCONCLUSIVE, by the rule in this module's first lines."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "INCONCLUSIVE"
    if band[0] <= estimate.low and estimate.high <= band[1]:
        return "PASS"
    return "FAIL" if estimate.high < band[0] or estimate.low > band[1] else "INCONCLUSIVE"


@dataclass
class Claim:
    """One statement with its prediction, its band and its control; judged once.

    Attributes:
        id: stable name. statement: one sentence of plain text. source: the statement of the paper it belongs to.
        status: how the prediction is known. prediction: the number expected. band: what counts as agreement.
        control: what is wrong on purpose in the control.
        tolerance: how far the estimate may be from that of another run and still agree; by default the half-width of
            its interval, and a millionth of its value if that is more.
    """

    id: str
    statement: str
    source: str
    status: Status
    prediction: float
    band: tuple[float, float]
    control: str
    tolerance: float | None = None
    estimate: Estimate | None = None
    control_estimate: Estimate | None = None

    def judge(self, measured: Estimate, control: Estimate) -> None:
        """Take in the measurement and its control, which decide the verdict."""
        self.estimate, self.control_estimate = Estimate(*measured), Estimate(*control)

    @property
    def verdict(self) -> str:
        if self.estimate is None:
            return "NOT JUDGED"
        own = verdict_of(self.estimate, self.band)
        return "INCONCLUSIVE" if own == "PASS" and self.control_verdict != "FAIL" else own

    @property
    def control_verdict(self) -> str:
        return verdict_of(self.control_estimate, self.band)

    def metric(self) -> MetricRecord:
        """The estimate with its tolerance, for comparison with another run."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = max(self.estimate.half_width, 1e-6 * abs(self.estimate.value))
        return MetricRecord(value=self.estimate.value, tolerance=tolerance)

    def record(self) -> ClaimRecord:
        """The entry of results.json."""
        (value, *ends), (wrong, *wrong_ends) = self.estimate, self.control_estimate
        control = ControlRecord(what=self.control, estimate=wrong, interval=wrong_ends, verdict=self.control_verdict)
        return ClaimRecord(
            id=self.id,
            statement=self.statement,
            source=self.source,
            status=self.status,
            prediction=self.prediction,
            band=self.band,
            estimate=value,
            interval=ends,
            verdict=self.verdict,
            control=control,
            cell=f"claim-{self.id}",
        )

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("statement", self.statement),
            ("source", f"{self.source} ({self.status})"),
            ("prediction", f"{number(self.prediction)}, accepted {interval(*self.band)}"),
        ]
        if self.estimate is None:
            return [*rows, ("control", f"must fail: {self.control}")]
        value, *ends = self.estimate
        rows.append(("measured", f"{number(value)}, interval {interval(*ends)}"))
        value, *ends = self.control_estimate
        told = "fails, as it must" if self.control_verdict == "FAIL" else "does not fail: nothing is shown"
        rows.append(("control", f"{self.control}: {number(value)}, interval {interval(*ends)}; {told}"))
        return rows

    def _repr_html_(self) -> str:
        color = {"PASS": "#0b6e4f", "FAIL": "#b3261e", "NOT JUDGED": "#555"}.get(self.verdict, "#8a5a00")
        head = "declared" if self.estimate is None else self.verdict
        anchor = "" if self.estimate is None else f' id="claim-{html.escape(self.id)}"'
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left;vertical-align:top">{name}</th>'
            f'<td style="text-align:left">{html.escape(text)}</td></tr>'
            for name, text in self._rows()
        )
        return (
            f'<div class="claim"{anchor} style="border-left:4px solid {color};padding-left:.8em;margin:.6em 0">'
            f'<strong style="color:{color}">{head}</strong> <code>{html.escape(self.id)}</code>'
            f"<table>{rows}</table></div>"
        )

    def __repr__(self) -> str:
        head = "declared" if self.estimate is None else self.verdict
        return f"{head} {self.id}\n" + "\n".join(f"  {name}: {text}" for name, text in self._rows())


class Claims(dict[str, Claim]):
    """Claims by id, shown as one table: when they are declared, and again with their verdicts."""

    def __missing__(self, claim_id: str) -> Claim:
        raise KeyError(f"no claim {claim_id!r}; declared are {', '.join(self)}")

    def _repr_html_(self) -> str:
        if all(claim.estimate is not None for claim in self.values()):
            names = ("verdict", "claim", "prediction", "accepted", "measured", "interval", "control")
            cells = [_judged(claim) for claim in self.values()]
        else:
            names = ("claim", "statement", "prediction", "accepted", "control that must fail")
            cells = [(c.id, c.statement, number(c.prediction), interval(*c.band), c.control) for c in self.values()]
        rows = "".join("<tr>" + "".join(_cell(x) for x in row) + "</tr>" for row in cells)
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in names)
        return f'<div class="claims"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


def _judged(claim: Claim) -> tuple[str, ...]:
    value, *ends = claim.estimate
    accepted = number(claim.prediction), interval(*claim.band)
    return claim.verdict, claim.id, *accepted, number(value), interval(*ends), claim.control_verdict


def _cell(text: str) -> str:
    return f'<td style="text-align:left;vertical-align:top">{html.escape(text)}</td>'
