"""Claims and verdicts: what a notebook asserts, and whether its measurement bears it out.

A claim fixes its prediction and its band before anything is computed. It is judged by an interval, never by a point:

    PASS           the whole interval lies inside the band;
    FAIL           interval and band are disjoint;
    INCONCLUSIVE   anything else: too little data to tell, and the reason is told.

A claim that is made for some parameters only names their condition; where it does not hold the claim is
NOT APPLICABLE, whatever was measured.

Every claim carries a control, a variant that is grossly wrong and must FAIL the same check, and one whose prediction is
derived also a near miss, which is wrong by little and must not PASS. A claim whose controls do not behave has shown
nothing, and is INCONCLUSIVE. Beside its verdict stands the smallest error that it would have caught.
"""

import html
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lib.notebook.comparison import Comparison, Measured
from lib.notebook.numbers import caught, interval, number, reading
from lib.notebook.schema import ClaimRecord, ControlRecord, MetricRecord
from lib.prompts.estimate import Estimate

Status = Literal[
    "the paper's theorem", "exact here", "computed from exact formulas", "heuristic, confirmed numerically"
]


def verdict_of(estimate: Estimate, band: tuple[float, float]) -> str:
    """PASS, FAIL or INCONCLUSIVE, by the rule in this module's first lines."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high) and estimate.cases):
        return "INCONCLUSIVE"
    if not estimate.low <= estimate.value <= estimate.high:  # an interval that misses its own number shows nothing
        return "INCONCLUSIVE"
    if band[0] <= estimate.low and estimate.high <= band[1]:
        return "PASS"
    return "FAIL" if estimate.high < band[0] or estimate.low > band[1] else "INCONCLUSIVE"


def errors_caught(measured: Measured, band: tuple[float, float], prediction: float) -> tuple[float, float]:
    """The power of a check: by how much the measured would have to be off, down and up, for it to FAIL.

    Relative errors: 0.1 for what is measured times 1.1; absolute ones where the prediction is 0. Infinite where no
    error of that sign is ever caught, as below a band that reaches down to 0.
    """
    held = measured.intervals()
    if len(held.values) == 0 or not np.all(np.isfinite([held.low, held.high])):
        return -math.inf, math.inf
    highest, lowest = held.low.max(), held.high.min()  # the first intervals to leave the band, upward and downward
    if prediction == 0:
        return float(band[0] - lowest) if band[0] < 0 else -math.inf, float(band[1] - highest)
    down = band[0] / lowest - 1 if band[0] > 0 and lowest > 0 else -math.inf
    return float(down), float(band[1] / highest - 1) if highest > 0 else math.inf


@dataclass
class Claim:
    """One statement with its prediction, its band and its controls; judged once.

    Attributes:
        id: stable name. statement: one sentence of plain text. source: the statement of the paper it belongs to.
        status: how the prediction is known. prediction: the number expected, or a chosen threshold. band: what counts
            as agreement.
        control: what is grossly wrong in the control. near_miss: what is wrong by little in the near miss.
        chosen_on: for a threshold, the seeds and settings on which it was fixed, none of which is judged here; empty
            for a prediction that is derived.
        only_if: for which parameters the claim is made, in words, and whether those of this run are among them.
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
    near_miss: str = ""
    chosen_on: str = ""
    only_if: tuple[str, bool] = ("", True)
    tolerance: float | None = None
    estimate: Estimate | None = None
    control_estimate: Estimate | None = None
    near_estimate: Estimate | None = None
    caught: tuple[float, float] = (-math.inf, math.inf)

    def judge(self, found: Comparison) -> None:
        """Take in the measurement and its controls, which decide the verdict.

        Raises:
            ValueError: if something that the claim names was not measured, or the other way round.
        """
        if found.measured is None or found.control is None:
            raise ValueError(f"{self.id}: nothing was measured, or no control; a claim needs both")
        if bool(self.near_miss) != (found.near_miss is not None):
            raise ValueError(f"{self.id}: a near miss must be both named by the claim and measured")
        self.estimate, self.control_estimate = (side.estimate(self.band) for side in (found.measured, found.control))
        self.near_estimate = found.near_miss.estimate(self.band) if self.near_miss else None
        self.caught = errors_caught(found.measured, self.band, self.prediction)

    @property
    def verdict(self) -> str:
        if self.estimate is None:
            return "NOT JUDGED"
        if not self.only_if[1]:
            return "NOT APPLICABLE"
        own = verdict_of(self.estimate, self.band)
        behave = self.control_verdict == "FAIL" and self.near_verdict != "PASS"
        return own if behave or own != "PASS" else "INCONCLUSIVE"

    @property
    def why(self) -> str:
        """Why the claim is INCONCLUSIVE or NOT APPLICABLE, in words; beyond what interval and band show."""
        if self.verdict == "NOT APPLICABLE":
            return f"made only for {self.only_if[0]}"
        if self.verdict != "INCONCLUSIVE":
            return ""
        own, held = verdict_of(self.estimate, self.band), self.estimate
        if own == "PASS":
            return "its control does not fail" if self.control_verdict != "FAIL" else "its near miss passes"
        if not held.cases or math.isnan(held.value):
            return "nothing was measured"
        if not (math.isfinite(held.low) and math.isfinite(held.high)):
            return f"no interval: {held.cases:,} {'sample' if held.cases == 1 else 'samples'}"
        return ""  # the interval reaches out of the band, which both show

    @property
    def control_verdict(self) -> str:
        return verdict_of(self.control_estimate, self.band)

    @property
    def near_verdict(self) -> str | None:
        return verdict_of(self.near_estimate, self.band) if self.near_estimate else None

    def metric(self) -> MetricRecord:
        """The estimate with its tolerance, for comparison with another run."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = max(self.estimate.half_width, 1e-6 * abs(self.estimate.value))
        return MetricRecord(value=self.estimate.value, tolerance=tolerance)

    def record(self) -> ClaimRecord:
        """The entry of results.json."""
        (value, *ends), near = self.estimate, self.near_estimate
        return ClaimRecord(
            id=self.id,
            statement=self.statement,
            source=self.source,
            status=self.status,
            chosen_on=self.chosen_on,
            only_if=self.only_if[0],
            why=self.why,
            prediction=self.prediction,
            band=self.band,
            estimate=value,
            interval=ends,
            cases=self.estimate.cases,
            worst=self.estimate.worst,
            caught=self.caught,
            verdict=self.verdict,
            control=_control(self.control, self.control_estimate, self.control_verdict),
            near_miss=_control(self.near_miss, near, self.near_verdict) if near else None,
            cell=f"claim-{self.id}",
        )

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("statement", self.statement),
            ("source", f"{self.source} ({self.status})"),
            ("threshold" if self.chosen_on else "prediction", _expected(self)),
        ]
        rows += [("made for", self.only_if[0])] if self.only_if[0] else []
        if self.estimate is None:
            rows += [("near miss", f"must not pass: {self.near_miss}")] if self.near_miss else []
            return [*rows, ("control", f"must fail: {self.control}")]
        rows += [("undecided", self.why)] if self.why else []
        rows.append(("measured", _measured(self.estimate)))
        if not self.chosen_on and (self.estimate.low > self.prediction or self.estimate.high < self.prediction):
            how_close = ": they agree as closely as the band says" if self.verdict == "PASS" else ""
            rows.append(("difference", f"the interval excludes the prediction{how_close}"))
        rows.append(("would fail", f"with an error of {caught(self.caught, self.prediction)}"))
        if self.near_miss:
            told = "passes: nothing is shown" if self.near_verdict == "PASS" else "does not pass, as it must not"
            rows.append(("near miss", f"{self.near_miss}: {_measured(self.near_estimate)}; {told}"))
        told = "fails, as it must" if self.control_verdict == "FAIL" else "does not fail: nothing is shown"
        rows.append(("control", f"{self.control}: {_measured(self.control_estimate)}; {told}"))
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
            names = ("verdict", "claim", "prediction", "accepted", "measured", "interval", "would fail", "controls")
            cells = [_judged(claim) for claim in self.values()]
        else:
            names = ("claim", "statement", "prediction", "near miss, must not pass", "control, must fail")
            cells = [(c.id, c.statement, _expected(c), c.near_miss or "–", c.control) for c in self.values()]
        rows = "".join("<tr>" + "".join(_cell(x) for x in row) + "</tr>" for row in cells)
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in names)
        return f'<div class="claims"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


def _judged(claim: Claim) -> tuple[str, ...]:
    held, ends = claim.estimate, interval(claim.estimate.low, claim.estimate.high)
    told = " / ".join(word for word in (claim.near_verdict, claim.control_verdict) if word)
    measured = reading(held.value, held.cases, held.worst), ends, caught(claim.caught, claim.prediction)
    return claim.verdict, claim.id, number(claim.prediction), interval(*claim.band), *measured, told


def _expected(claim: Claim) -> str:
    chosen = f", chosen on {claim.chosen_on}" if claim.chosen_on else ""
    return f"{number(claim.prediction)}, accepted {interval(*claim.band)}{chosen}"


def _measured(held: Estimate) -> str:
    word = "hull of the intervals" if held.worst and held.cases > 1 else "interval"
    return f"{reading(held.value, held.cases, held.worst)}, {word} {interval(held.low, held.high)}"


def _control(what: str, held: Estimate, verdict: str) -> ControlRecord:
    return ControlRecord(what=what, estimate=held.value, interval=(held.low, held.high), verdict=verdict)


def _cell(text: str) -> str:
    return f'<td style="text-align:left;vertical-align:top">{html.escape(text)}</td>'
