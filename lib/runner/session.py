"""A run from start to end: what is kept, what is executed, what is recorded, and the exit code."""

import asyncio
import json
import math
import shutil
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from lib.notebook.files import write_json
from lib.notebook.schema import ResultsRecord, read_results
from lib.runner import files, machine, report
from lib.runner.compare import compare
from lib.runner.execute import run, supervise
from lib.runner.files import record
from lib.runner.fingerprint import LIB, changes, fingerprint
from lib.runner.index import write_index
from lib.runner.params import OUTPUT_DIR, Task, UsageError
from lib.runner.records import read_entry

FRESH = {"status": "interrupted", "error": "not started", "excerpt": [], "warnings": [], "seconds": 0.0}


@dataclass(frozen=True)
class Session:
    """A run in its folder, new or resumed.

    Args:
        root: of the collection.
        folder: of the run.
        lock: the handle that locks the folder.
        tasks: the notebooks, by name.
        again: why a notebook must be executed (again); empty: it is kept.
        summary: the content of run.json.
        start: when it started, on the monotonic clock (s).
    """

    root: Path
    folder: Path
    lock: int
    tasks: dict[str, Task]
    again: dict[str, list[str]]
    summary: dict[str, Any]
    start: float = field(default_factory=time.monotonic)

    @classmethod
    def read(cls, root: Path, folder: Path, lock: int, preset: str, tasks: list[Task]) -> "Session":
        """The session that goes on from what is on disk of a run, which is nothing if the run is new."""
        about, again, entries, seeds = machine.describe(root), {}, {}, {}
        for task in tasks:
            mark = fingerprint(task, about)
            before, again[task.name] = _kept(folder / task.name, mark)
            entries[task.name] = (FRESH if again[task.name] else before) | _planned(task, mark)
            if "seed" in task.parameters:
                seeds[task.name] = task.parameters["seed"]
        state = {"schema": 1, "status": "running", "exit_code": None, "preset": preset}
        times = {"started": _now(), "finished": None}
        summary = state | times | about | {"seed": seeds, "notebooks": entries}
        return cls(root, folder, lock, {task.name: task for task in tasks}, again, summary)

    def run(self, workers: int, deadlines: dict[str, int], seconds: dict[str, float], base: Path | None) -> int:
        """Execute what must be, keep the rest, compare and conclude. Returns the exit code.

        Args:
            workers: notebooks at a time. deadlines: ``timeout`` and ``cell_timeout`` in seconds.
            seconds: how long notebooks took before; the longest goes first.
            base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
        """
        print(f"run {self.folder.name}")
        for name, again in self.again.items():
            if (self.folder / name).exists():
                self.say(name, f"again: {', '.join(again)}" if again else "kept: ok and unchanged")
        names = [name for name, again in self.again.items() if again]
        estimate = report.estimate(names, seconds, workers)
        print(f"{len(names)} notebooks, {self.summary['preset']} preset: {estimate}")
        write_json(self.folder / "run.json", self.summary)
        due = [name for name, again in self.again.items() if again or not self._page(name).exists()]
        known = seconds if set(due) <= set(seconds) else files.durations(self.folder.parent, "paper")  # in proportion
        due.sort(key=lambda name: -known.get(name, math.inf))
        signal = asyncio.run(
            supervise(due, lambda name, *alarms: self.execute(name, deadlines, *alarms), min(workers, len(due) or 1))
        )
        return conclude(self.folder, self.summary, base, signal)

    async def execute(self, name: str, deadlines: dict[str, int], *alarms: asyncio.Event) -> None:
        """Execute one notebook, or make just the page of a kept one, and record how it went.

        Args:
            alarms: ``stop`` and ``kill``, as :func:`lib.runner.execute.run` needs them.
        """
        folder, entry = self.folder / name, self.summary["notebooks"][name]
        try:
            outcome = await self._outcome(name, deadlines, *alarms)
        except Exception as error:  # whatever it is, it is this notebook's trouble alone
            outcome = FRESH | {"status": "failed", "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        if not self._page(name).is_file() and not outcome["warnings"]:
            outcome["warnings"] = ["its page was not made"]
        text = json.dumps({key: outcome[key] for key in FRESH})
        for place in (folder, self.root, Path(__file__).parents[2], Path(sys.prefix), Path.home()):
            text = text.replace(json.dumps(f"{place}/")[1:-1], "")  # nothing tells where things lie on this machine
        entry |= json.loads(text)
        try:
            write_json(folder / "status.json", entry)
        except OSError as error:
            entry["warnings"].append(f"status.json was not written: {error.strerror}")
        self.say(name, f"{entry['status']}: {entry['error']}" if entry["error"] else entry["status"])

    async def _outcome(self, name: str, deadlines: dict[str, int], *alarms: asyncio.Event) -> dict[str, Any]:
        task, folder = self.tasks[name], self.folder / name
        if self.again[name]:
            files.prepare(task, folder)
        order = {"name": name, "parameters": task.parameters | {OUTPUT_DIR: "."}, **deadlines}
        outcome = await run(order, folder, self.lock, *alarms, say=lambda text: self.say(name, text))
        if outcome["status"] == "ok":
            try:
                ran, meant = read_results(folder).lib, self.summary["notebooks"][name]["fingerprint"][LIB]
                if ran not in (None, meant):
                    raise ValueError("lib has changed while it ran, or it ran with another one; run it again")
            except ValueError as error:
                outcome |= {"status": "failed", "error": str(error)}
        return outcome

    def say(self, name: str, text: str) -> None:
        """One line whenever a notebook reaches a new section or ends: good on a terminal and in a log."""
        width = max(map(len, self.tasks))
        print(f"{report.clock(time.monotonic() - self.start):>8}  {name:<{width}}  {text}", flush=True)

    def _page(self, name: str) -> Path:
        return self.folder / name / f"{name}.html"


def conclude(folder: Path, summary: dict[str, Any], base: Path | None, signal: int) -> int:
    """Compare, judge, write run.json and index.html, print the summary. Returns the exit code.

    Args:
        summary: the content of run.json, which is completed.
        base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
        signal: the number of the one that stopped the run, or 0.
    """
    notebooks, results = summary["notebooks"], results_of(folder, summary)
    reference = folder.parent / "reference"
    automatic, rows, remarks = not base, [], []
    try:
        if automatic and (reference / "run.json").exists() and record(reference)["preset"] == summary["preset"]:
            base = reference
        if base:
            rows, remarks = compare(folder, base, same_parameters=automatic)
    except UsageError as error:
        print(f"\nwarning: not compared: {error}")
        base = None
    verdicts = {claim.verdict for result in results.values() for claim in result.claims}
    bad = {"FAIL", "INCONCLUSIVE"} if summary["preset"] == "paper" else {"FAIL"}
    failed = any(entry["status"] != "ok" for entry in notebooks.values())
    code = 128 + signal if signal else int(failed or bool(verdicts & bad) or any(row.differs for row in rows))
    status = "interrupted" if signal else "failed" if code else "ok"
    summary |= {"status": status, "exit_code": code, "finished": _now()}
    write_json(folder / "run.json", summary)
    write_json(folder / "timings.json", {name: entry["seconds"] for name, entry in notebooks.items()})
    print(f"\n{report.summary(notebooks, results)}")
    if base:
        print(f"\n{report.comparison(rows, remarks, base.name)}")
    try:
        write_index(folder, summary, results, rows, remarks, base.name if base else "")
        print(f"\n{folder / 'index.html'}")
    except Exception as error:  # the run stands; only its page is missing
        print(f"\nwarning: index.html was not made: {type(error).__name__}: {error}")
    return code


def accept(run: Path, names: list[str], reference: Path, force: bool = False) -> None:
    """Make a run the reference, without what only weighs.

    Args:
        names: of all notebooks of the collection. reference: the folder that it goes to.
        force: take a run that is not of the paper preset, or in which something fails or is altered.

    Raises:
        UsageError: if one of the notebooks is not ok, or the run is no reference for what others will run.
    """
    summary = record(run)
    status = {name: summary["notebooks"].get(name, {}).get("status", "not in it") for name in names}
    bad = [f"{name} {word}" for name, word in status.items() if word != "ok"]
    if bad:
        raise UsageError(f"--accept {run.name}: a reference is a whole collection that is ok; {', '.join(bad)}")
    doubts = [] if force else _doubts(run, summary)
    if doubts:
        raise UsageError(f"--accept {run.name}: {'; '.join(doubts)}; --force makes it the reference all the same")
    reference = reference.resolve()  # it may be a link
    fresh = reference.with_name("reference.new")
    try:
        if fresh.exists():
            shutil.rmtree(fresh)
        shutil.copytree(run, fresh, ignore=shutil.ignore_patterns("*.pdf", "__pycache__", ".*"))
        write_index(fresh, summary, results_of(fresh, summary))
        shutil.rmtree(reference, ignore_errors=True)
        fresh.rename(reference)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _doubts(run: Path, summary: dict[str, Any]) -> list[str]:
    """Why a run is no reference, after which paper runs would be compared with nothing or with the wrong numbers."""
    found = [] if summary["preset"] == "paper" else [f"it is of the {summary['preset']} preset"]
    altered = [name for name, entry in summary["notebooks"].items() if entry["differs"]]
    found += [f"other parameters in {', '.join(altered)}"] if altered else []
    claims = [(name, claim) for name, result in results_of(run, summary).items() for claim in result.claims]
    fallen = [f"{name[:2]} {claim.id} {claim.verdict}" for name, claim in claims if claim.verdict != "PASS"]
    return found + fallen


def results_of(folder: Path, summary: dict[str, Any]) -> dict[str, ResultsRecord]:
    """The results of the notebooks of a run that are ok."""
    ok = (name for name, entry in summary["notebooks"].items() if entry["status"] == "ok")
    return {name: read_results(folder / name) for name in ok}


def _planned(task: Task, mark: dict[str, str]) -> dict[str, Any]:
    """What run.json holds of a notebook before it runs."""
    values, preset = task.parameters, task.preset
    return {
        "title": task.notebook.title,
        "parameters": values,
        "differs": {key: {"preset": preset[key], "here": v} for key, v in values.items() if v != preset[key]},
        "overrides": task.overrides,
        "fingerprint": mark,
    }


def _kept(folder: Path, mark: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """How a notebook went before, and why it must be executed (again): what is damaged is."""
    if not folder.exists():
        return {}, ["not started"]
    try:
        before = read_entry(folder)
        again = changes(before, mark)
        if not again:
            read_results(folder)
    except ValueError as error:
        return {}, [str(error)]
    return before, again


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
