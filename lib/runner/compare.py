"""Does it still hold: the metrics and verdicts of a run against those of another."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.notebook.schema import MetricRecord, ResultsRecord, read_results
from lib.runner.files import record


@dataclass(frozen=True)
class Difference:
    """One compared quantity. ``distance`` is in units of the tolerance; beyond 1 it differs."""

    notebook: str
    name: str
    now: str
    then: str
    distance: float
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether it is beyond the tolerance; a distance that is no number is."""
        return not self.distance <= 1

    @property
    def off(self) -> str:
        """The distance in words."""
        return "changed" if math.isinf(self.distance) else f"{self.distance:.3g} x tolerance"


def compare(run: Path, base: Path, same_parameters: bool = False) -> tuple[list[Difference], list[str]]:
    """Every metric and verdict of the notebooks that both runs hold, worst first; and remarks on what is not compared.

    Args:
        run, base: the folders of the run and of the one it is compared with, whose tolerances count.
        same_parameters: leave out notebooks that ran with other parameters, instead of only remarking on it.
    """
    now, then = (record(folder)["notebooks"] for folder in (run, base))
    rows, remarks = [], []
    for name in sorted(now.keys() | then.keys()):
        if name not in now or name not in then:
            if not same_parameters:
                remarks.append(f"{name}: only in {run.name if name in now else base.name}")
            continue
        keys = now[name]["parameters"].keys() | then[name]["parameters"].keys()
        other = [k for k in sorted(keys) if now[name]["parameters"].get(k) != then[name]["parameters"].get(k)]
        if other:
            remarks.append(f"{name}: other {', '.join(other)}" + ("; not compared" if same_parameters else ""))
            if same_parameters:
                continue
        try:
            rows += _differences(name, read_results(run / name), read_results(base / name))
        except ValueError as error:
            rows.append(Difference(name, "results", str(error), "", math.inf))
    return sorted(rows, key=lambda row: (-row.distance, row.notebook, row.name)), remarks


def _differences(notebook: str, now: ResultsRecord, then: ResultsRecord) -> Iterator[Difference]:
    verdicts, before = ({claim.id: claim.verdict for claim in results.claims} for results in (now, then))
    for name in before | verdicts:
        pair = verdicts.get(name, "missing"), before.get(name, "new")
        distance = 0.0 if pair[0] == pair[1] or pair[1] == "new" else math.inf
        yield Difference(notebook, f"verdict of {name}", *pair, distance)
    for name in then.metrics | now.metrics:
        pair = now.metrics.get(name), then.metrics.get(name)
        tolerance = f"± {pair[1].tolerance or 0:.3g}" if pair[1] else ""
        yield Difference(notebook, name, *map(_show, pair, ("missing", "new")), _distance(*pair), tolerance)


def _distance(now: MetricRecord | None, then: MetricRecord | None) -> float:
    if then is None or (now and now.value == then.value):
        return 0.0
    if now is None or now.value is None or then.value is None:
        return math.inf
    return abs(now.value - then.value) / then.tolerance if then.tolerance else math.inf


def _show(metric: MetricRecord | None, absent: str) -> str:
    if metric is None:
        return absent
    return "not finite" if metric.value is None else f"{metric.value:.6g}"
