"""A run from start to end: what is kept, what is executed, what is recorded, and the exit code."""

import asyncio
import json
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from . import record, report
from .compare import compare
from .execute import Job, supervise
from .index import write_index
from .params import OUTPUT_DIR, Task, UsageError
from .results import Results, read_results

NOT_STARTED = {"status": "interrupted", "error": "not started", "excerpt": [], "warnings": [], "seconds": 0.0}


class Session:
    """A run in its folder, new or resumed; ``summary`` is the content of its run.json.

    Args:
        root: of the collection. seconds: how long notebooks took before; the longest goes first.
    """

    def __init__(self, root: Path, folder: Path, preset: str, tasks: list[Task], seconds: dict[str, float]):
        self.root, self.folder, self.seconds = root, folder, seconds
        self.tasks = {task.name: task for task in tasks}
        self.progress = report.Progress(list(self.tasks))
        about = record.describe(root)
        self.marks = {task.name: record.fingerprint(task, about) for task in tasks}
        self.statuses = {name: record.read_json(folder / name / "status.json") or {} for name in self.tasks}
        self.changes = {name: record.changes(self.statuses[name], self.marks[name]) for name in self.tasks}
        self.summary = {
            "schema": 1,
            "status": "running",
            "exit_code": None,
            "preset": preset,
            "started": _now(),
            "finished": None,
            **about,
            "seed": {task.name: task.parameters["seed"] for task in tasks if "seed" in task.parameters},
            "notebooks": {name: self._entry(task) for name, task in self.tasks.items()},
        }

    def _entry(self, task: Task) -> dict[str, Any]:
        kept = NOT_STARTED if self.changes[task.name] else self.statuses[task.name]
        values = task.parameters.items()
        return {
            "title": task.notebook.title,
            **{key: kept[key] for key in NOT_STARTED},
            "parameters": task.parameters,
            "differs": {key: {"preset": task.preset[key], "here": v} for key, v in values if v != task.preset[key]},
            "overrides": task.overrides,
        }

    def run(self, workers: int, deadlines: tuple[int, int], lock: int, base: Path | None) -> int:
        """Execute what must be, keep the rest, compare and conclude. Returns the exit code.

        Args:
            workers, lock: see :func:`supervise`. deadlines: of a notebook and of a cell, in seconds.
            base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
        """
        print(f"run {self.folder.name}")
        for name, changes in self.changes.items():
            if (self.folder / name).exists():
                self.progress(name, f"again: {', '.join(changes)}" if changes else "kept: ok and unchanged")
        jobs = [
            Job(
                name,
                self.folder / name,
                task.parameters | {OUTPUT_DIR: "."},
                *deadlines,
            )
            for name, task in self.tasks.items()
            if self.changes[name] or not self._page(name).exists()
        ]
        names = [job.name for job in jobs if self.changes[job.name]]
        print(
            f"{len(names)} notebooks, {self.summary['preset']} preset: {report.estimate(names, self.seconds, workers)}"
        )
        record.write_json(self.folder / "run.json", self.summary)
        jobs.sort(key=lambda job: -self.seconds.get(job.name, 1e9))
        signal = asyncio.run(supervise(jobs, workers, lock, self))
        return conclude(self.folder, self.summary, base, signal)

    def _page(self, name: str) -> Path:
        return self.folder / name / f"{name}.html"

    def begin(self, job: Job) -> None:
        if self.changes[job.name]:
            record.prepare(self.tasks[job.name], job.folder)

    def section(self, job: Job, event: dict[str, Any]) -> None:
        self.progress(job.name, f"{event['cell']}/{event['cells']}  {event['section']}")

    def done(self, job: Job, outcome: dict[str, Any]) -> None:
        entry = self.summary["notebooks"][job.name]
        if not self._page(job.name).is_file() and not outcome["warnings"]:
            outcome["warnings"] = ["its page was not made"]
        outcome = without_paths(judged(outcome, job.folder), job.folder, self.root)
        entry |= outcome | {"fingerprint": self.marks[job.name]}
        record.write_json(job.folder / "status.json", {**outcome, "fingerprint": self.marks[job.name]})
        self.progress(job.name, f"{entry['status']}: {entry['error']}" if entry["error"] else entry["status"])


def judged(outcome: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The outcome, which is ok only with results that can be read."""
    try:
        if outcome["status"] == "ok":
            read_results(folder)
        return outcome
    except ValueError as error:
        return outcome | {"status": "failed", "error": str(error)}


def without_paths(outcome: dict[str, Any], *places: Path) -> dict[str, Any]:
    """The outcome without what tells where things lie on this machine."""
    text = json.dumps(outcome)
    for place in (*places, Path(__file__).parents[2], Path(sys.prefix), Path.home()):
        text = text.replace(json.dumps(f"{place}/")[1:-1], "")
    return json.loads(text)


def conclude(folder: Path, summary: dict[str, Any], base: Path | None, signal: int) -> int:
    """Compare, judge, write run.json and index.html, print the summary. Returns the exit code."""
    notebooks, results = summary["notebooks"], results_of(folder, summary)
    reference = folder.parent / "reference"
    automatic = not base and (record.read_json(reference / "run.json") or {}).get("preset") == summary["preset"]
    base = reference if automatic else base
    record.write_json(folder / "run.json", summary)
    rows, remarks = compare(folder, base, same_parameters=automatic) if base else ([], [])
    verdicts = {claim.verdict for result in results.values() for claim in result.claims}
    bad = verdicts & ({"FAIL", "INCONCLUSIVE"} if summary["preset"] == "paper" else {"FAIL"})
    failed = any(entry["status"] != "ok" for entry in notebooks.values())
    code = 128 + signal if signal else int(failed or bool(bad) or any(row.drifted for row in rows))
    status = "interrupted" if signal else "failed" if code else "ok"
    summary |= {"status": status, "exit_code": code, "finished": _now()}
    record.write_json(folder / "run.json", summary)
    record.write_json(folder / "timings.json", {name: entry["seconds"] for name, entry in notebooks.items()})
    print(f"\n{report.summary(notebooks, results)}")
    if base:
        print(f"\n{report.comparison(rows, remarks, base.name)}")
    try:
        write_index(folder, summary, results, rows, remarks, base.name if base else "")
        print(f"\n{folder / 'index.html'}")
    except Exception as error:  # the run stands; only its page is missing
        print(f"\nwarning: index.html was not made: {type(error).__name__}: {error}")
    return code


def accept(run: Path, names: list[str], reference: Path) -> None:
    """Make a run the reference, without what only weighs: PDFs and caches.

    Args:
        names: the notebooks of the collection. Raises UsageError if one of them is not ok in the run.
    """
    summary = record.read_json(run / "run.json")
    status = {name: summary["notebooks"].get(name, {}).get("status", "not in it") for name in names}
    bad = [f"{name} {word}" for name, word in status.items() if word != "ok"]
    if bad:
        raise UsageError(f"--accept {run.name}: a reference is a whole collection that is ok; {', '.join(bad)}")
    fresh, old = reference.with_name("reference.new"), reference.with_name("reference.old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, fresh, ignore=shutil.ignore_patterns("*.pdf", "__pycache__", "*.partial*", ".*"))
    write_index(fresh, summary, results_of(fresh, summary))
    if reference.exists():
        reference.rename(old)
    fresh.rename(reference)
    shutil.rmtree(old, ignore_errors=True)


def results_of(folder: Path, summary: dict[str, Any]) -> dict[str, Results]:
    """The results of the notebooks of a run that are ok."""
    ok = (name for name, entry in summary["notebooks"].items() if entry["status"] == "ok")
    return {name: read_results(folder / name) for name in ok}


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
