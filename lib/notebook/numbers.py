"""How a number and an interval are written, in notebooks, on pages and on the terminal alike."""

import math


def number(value: float | None) -> str:
    """Five significant digits; a dash where there is no number."""
    return "–" if value is None else f"{value:.5g}"


def interval(low: float | None, high: float | None) -> str:
    """Both ends with the digits that tell them apart, at least three; four if they differ by rounding alone."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"[{number(low)}, {number(high)}]"
    digits = 4
    if not math.isclose(low, high, rel_tol=1e-9):
        scale = max(abs(low), abs(high))
        digits = min(max(3, 2 + math.ceil(math.log10(scale / abs(high - low)))), 12)
    return f"[{low:.{digits}g}, {high:.{digits}g}]"


def reading(value: float | None, cases: int, worst: bool) -> str:
    """A measured number with what it stands for: the worst or the mean of several cases."""
    return number(value) if cases == 1 else f"{number(value)} ({'worst' if worst else 'mean'} of {cases:,})"


def caught(errors: tuple[float | None, float | None], prediction: float | None) -> str:
    """The errors that a check would have caught, relative to the prediction where it is not 0; a dash for none."""

    def said(error: float) -> str:
        return f"{error:+.2g}" if prediction == 0 else f"{100 * error:+.2g} %" if error < 9.5 else f"× {1 + error:.2g}"

    return " or ".join(said(e) for e in errors if e is not None and math.isfinite(e)) or "–"
