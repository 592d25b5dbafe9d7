"""Claims, verdicts and results.json: what a notebook asserts, and whether its measurement bears it out.

A claim fixes its prediction and its band before anything is computed. It is judged by an interval, never by a point:

    PASS           the whole interval lies inside the band;
    FAIL           interval and band are disjoint;
    INCONCLUSIVE   anything else: too little data to tell.

Every claim carries a control, a variant that is wrong on purpose and must FAIL the same check. A claim whose control
does not fail has shown nothing, and is INCONCLUSIVE.
"""

import html
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

Status = Literal["the paper's theorem", "exact here", "heuristic, confirmed numerically"]


class Estimate(NamedTuple):
    """A measured number and its interval (equal ends for an exact one)."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float, numerical_error: float = 0.0) -> "Estimate":
        """A number without sampling error: its interval is its numerical error, at least its rounding."""
        value = float(value)
        width = max(float(numerical_error), abs(value) * 1e-15)
        return cls(value, value - width, value + width)

    @classmethod
    def of_mean(cls, samples, confidence: float = 0.95) -> "Estimate":
        """The mean of a few independent samples, with Student's interval."""
        samples = np.asarray(samples, float)
        width = stats.t(len(samples) - 1).ppf((1 + confidence) / 2) * samples.std(ddof=1) / math.sqrt(len(samples))
        return cls(float(samples.mean()), float(samples.mean() - width), float(samples.mean() + width))

    @classmethod
    def worst(cls, values, target: float = 1.0, numerical_error: float = 0.0) -> "Estimate":
        """All of a set of exact numbers at once: the one farthest from the target stands for them."""
        values = np.ravel(np.asarray(values, float))
        known = len(values) and np.all(np.isfinite(values))
        farthest = values[np.argmax(np.abs(values - target))] if known else math.nan
        return cls.exact(farthest, numerical_error)

    @classmethod
    def curve(cls, values, low, high, band: tuple[float, float]) -> "Estimate":
        """A whole measured curve at once, from simultaneous intervals: it lies in the band where all of them do.

        The interval is the hull of them all, or, once one of them is disjoint from the band, that one: a curve that
        leaves the band anywhere has left it.
        """
        values, low, high = (np.ravel(np.asarray(x, float)) for x in (values, low, high))
        if len(values) == 0:
            return cls(math.nan, math.nan, math.nan)
        outside = np.maximum(low - band[1], band[0] - high)
        k = int(np.argmax(np.maximum(high - band[1], band[0] - low)))  # the one that comes closest to leaving
        if outside.max() > 0:
            k = int(np.argmax(outside))
            return cls(float(values[k]), float(low[k]), float(high[k]))
        return cls(float(values[k]), float(low.min()), float(high.max()))


def judge(estimate: Estimate, band: tuple[float, float]) -> str:
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
        tolerance: how far the estimate may be from that of another run before it counts as drift; by default the
            half-width of its interval, and a millionth of its value if that is more.
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

    def verdict(self, measured: Estimate, control: Estimate) -> "Claim":
        """Judge the measurement and its control. Returns the claim itself, whose display is the verdict."""
        self.estimate, self.control_estimate = Estimate(*measured), Estimate(*control)
        return self

    @property
    def outcome(self) -> str:
        if self.estimate is None:
            return "NOT JUDGED"
        own = judge(self.estimate, self.band)
        return "INCONCLUSIVE" if own == "PASS" and self.control_outcome != "FAIL" else own

    @property
    def control_outcome(self) -> str:
        return judge(self.control_estimate, self.band)

    def metric(self) -> dict:
        """The estimate with its tolerance, for comparison with another run."""
        value, low, high = self.estimate
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = max((high - low) / 2, 1e-6 * abs(value))
        return {"value": _plain(value), "tolerance": _plain(tolerance)}

    def record(self) -> dict:
        """The entry of results.json."""
        return {
            "id": self.id,
            "statement": self.statement,
            "source": self.source,
            "status": self.status,
            "prediction": _plain(self.prediction),
            "band": [_plain(x) for x in self.band],
            "estimate": _plain(self.estimate.value),
            "interval": [_plain(self.estimate.low), _plain(self.estimate.high)],
            "verdict": self.outcome,
            "control": {
                "what": self.control,
                "estimate": _plain(self.control_estimate.value),
                "interval": [_plain(self.control_estimate.low), _plain(self.control_estimate.high)],
                "verdict": self.control_outcome,
            },
            "cell": f"claim-{self.id}",
        }

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("statement", self.statement),
            ("source", f"{self.source} ({self.status})"),
            ("prediction", f"{_show(self.prediction)}, accepted {_show_interval(*self.band)}"),
        ]
        if self.estimate is None:
            return [*rows, ("control", f"must fail: {self.control}")]
        value, low, high = self.estimate
        rows.append(("measured", f"{_show(value)}, interval {_show_interval(low, high)}"))
        value, low, high = self.control_estimate
        told = "fails, as it must" if self.control_outcome == "FAIL" else "does not fail: nothing is shown"
        rows.append(("control", f"{self.control}: {_show(value)}, interval {_show_interval(low, high)}; {told}"))
        return rows

    def _summary(self) -> tuple[str, ...]:
        value, low, high = self.estimate
        predicted = _show(self.prediction), _show_interval(*self.band)
        return self.outcome, self.id, *predicted, _show(value), _show_interval(low, high), self.control_outcome

    def _repr_html_(self) -> str:
        color = {"PASS": "#0b6e4f", "FAIL": "#b3261e", "NOT JUDGED": "#555"}.get(self.outcome, "#8a5a00")
        head = "declared" if self.estimate is None else self.outcome
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
        head = "declared" if self.estimate is None else self.outcome
        return f"{head} {self.id}\n" + "\n".join(f"  {name}: {text}" for name, text in self._rows())


@dataclass
class Claims:
    """The claims of a notebook as one table: shown when declared, and again with their verdicts."""

    claims: list[Claim] = field(default_factory=list)

    def __getitem__(self, claim_id: str) -> Claim:
        for claim in self.claims:
            if claim.id == claim_id:
                return claim
        raise KeyError(f"no claim {claim_id!r}; declared are {', '.join(c.id for c in self.claims)}")

    def _repr_html_(self) -> str:
        if all(claim.estimate is not None for claim in self.claims):
            names = ("verdict", "claim", "prediction", "accepted", "measured", "interval", "control")
            cells = [c._summary() for c in self.claims]
        else:
            names = ("claim", "statement", "prediction", "accepted", "control that must fail")
            cells = [(c.id, c.statement, _show(c.prediction), _show_interval(*c.band), c.control) for c in self.claims]
        rows = "".join("<tr>" + "".join(_cell(x) for x in row) + "</tr>" for row in cells)
        head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in names)
        return f'<div class="claims"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.claims))


def _cell(text: str) -> str:
    return f'<td style="text-align:left;vertical-align:top">{html.escape(text)}</td>'


def _plain(value) -> float | None:
    """A number for JSON, which knows neither NaN nor infinity."""
    value = float(value)
    return value if math.isfinite(value) else None


def _show(value: float) -> str:
    return f"{value:.5g}" if abs(value) != 1 else f"{value:g}"


def _show_interval(low: float, high: float) -> str:
    """Both ends with the digits that tell them apart, unless they differ by rounding alone."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"[{low:g}, {high:g}]"
    scale = max(abs(low), abs(high))
    equal = math.isclose(low, high, rel_tol=1e-9)
    digits = 4 if equal else min(max(3, 2 + math.ceil(math.log10(scale / (high - low)))), 12)
    return f"[{low:.{digits}g}, {high:.{digits}g}]"
