"""What a run says on the terminal."""

from collections import Counter
from typing import Any

from lib.notebook.numbers import caught, interval, number, reading
from lib.notebook.parameters import allowed
from lib.notebook.schema import ResultsRecord
from lib.runner.compare import Difference
from lib.runner.params import Task


def clock(seconds: float) -> str:
    """A duration (s) as 1:05 or 2:01:05."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)  # a clock may have been set back
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"


def estimate(names: list[str], seconds: dict[str, float], workers: int) -> str:
    """How long notebooks will take, from how long they took."""
    known = [seconds[name] for name in names if name in seconds]
    about = f"about {clock(max([sum(known) / workers, *known]))}"
    if len(known) == len(names):
        return about
    return f"time unknown for {len(names) - len(known)} of them" + (f", {about} for the rest" if known else "")


def listing(tasks: list[Task], seconds: dict[str, float]) -> str:
    """The notebooks, how long each takes, and their titles."""
    rows = [[t.name, clock(seconds[t.name]) if t.name in seconds else "unknown", t.notebook.title] for t in tasks]
    return table([["notebook", "takes", "title"], *rows])


def parameters(task: Task) -> str:
    """The parameters of a notebook as a reader wants them: value, type, what is allowed, help."""
    parts = [f"{task.name}: {task.notebook.title}"]
    for key, value in task.parameters.items():
        parameter = task.notebook.parameters[key]
        preset = "" if value == parameter.default else f"   (here {value!r})"
        parts.append(f"{key} = {parameter.default!r}{preset}\n    {parameter.help}\n    {allowed(parameter)}")
    if task.notebook.premises:
        lines = [f"    {premise.text}" for premise in task.notebook.premises]
        parts.append("\n".join(["together:", *lines]))
    return "\n\n".join(parts)


def table(rows: list[list[str]]) -> str:
    """Rows of texts in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def summary(notebooks: dict[str, Any], results: dict[str, ResultsRecord]) -> str:
    """Claims, then whatever is wrong (last, where the eye is), then one line of counts."""
    rows = [["claim", "prediction", "measured", "interval", "verdict", "would fail with", "control"]]
    for name, result in results.items():
        for claim in result.claims:
            measured = reading(claim.estimate, claim.cases, claim.worst), interval(*claim.interval)
            verdicts = claim.verdict, caught(claim.caught, claim.prediction), claim.control.verdict
            rows.append([f"{name[:2]} {claim.id}", number(claim.prediction), *measured, *verdicts])
    parts = [table(rows)] if rows[1:] else []
    told = [f"{n[:2]} {c.id}: {c.verdict}: {c.why}" for n, result in results.items() for c in result.claims if c.why]
    parts += ["\n".join(told)] if told else []
    for name, entry in notebooks.items():
        parts += [f"warning: {name}: {warning}" for warning in entry["warnings"]]
        if entry["status"] != "ok":
            lines = "".join(f"\n    | {line}" for line in entry["excerpt"])
            parts.append(f"{name}: {entry['status']}: {entry['error']}{lines}")
    return "\n\n".join([*parts, counts(notebooks, results)])


def counts(notebooks: dict[str, Any], results: dict[str, ResultsRecord]) -> str:
    """The run in one line."""
    verdicts = Counter(claim.verdict for result in results.values() for claim in result.claims)
    ok = sum(entry["status"] == "ok" for entry in notebooks.values())
    said = ", ".join(
        f"{verdicts[word]} {word}" for word in ("FAIL", "INCONCLUSIVE", "NOT APPLICABLE", "PASS") if verdicts[word]
    )
    return f"{ok} of {len(notebooks)} notebooks ok, {verdicts.total()} claims" + (f": {said}" if said else "")


def comparison(rows: list[Difference], remarks: list[str], base: str, shown: int = 20) -> str:
    """The comparison in words: what differs, worst first."""
    different = [row for row in rows if row.differs]
    parts = [f"compared with {base}: {len(rows)} quantities, {len(different)} different"]
    parts += [f"  {remark}" for remark in remarks]
    if different:
        cells = [[r.notebook, r.name, r.now, r.then, r.note, r.off] for r in different[:shown]]
        parts.append(table([["notebook", "quantity", "now", base, "", "off by"], *cells]))
        parts += [f"  ... and {len(different) - shown} more"] if len(different) > shown else []
    return "\n".join(parts)
