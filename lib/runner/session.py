"""A run from start to end: what is kept, what is executed, what is recorded, and the exit code."""

import asyncio
import json
import math
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from lib.runner import record, report
from lib.runner.compare import compare
from lib.runner.execute import run, supervise
from lib.runner.index import write_index
from lib.runner.params import OUTPUT_DIR, Task, UsageError
from lib.runner.results import Results, read_results

FRESH = {"status": "interrupted", "error": "not started", "excerpt": [], "warnings": [], "seconds": 0.0}


class Session:
    """A run in its folder, new or resumed; ``summary`` is the content of its run.json.

    Args:
        root: of the collection. lock: the handle that locks the folder.
    """

    def __init__(self, root: Path, folder: Path, preset: str, tasks: list[Task], lock: int):
        print(f"run {folder.name}")
        self.root, self.folder, self.lock, self.start = root, folder, lock, time.monotonic()
        self.tasks = {task.name: task for task in tasks}
        about, entries = record.describe(root), {}
        self.again = {}  # why a notebook must be executed (again); empty: it is kept
        for name, task in self.tasks.items():
            before, mark = record.read_json(folder / name / "status.json") or {}, record.fingerprint(task, about)
            again = self.again[name] = record.changes(before, mark)
            if (folder / name).exists():
                self.say(name, f"again: {', '.join(again)}" if again else "kept: ok and unchanged")
            values = task.parameters.items()
            entries[name] = (FRESH if again else before) | {
                "title": task.notebook.title,
                "parameters": task.parameters,
                "differs": {key: {"preset": task.preset[key], "here": v} for key, v in values if v != task.preset[key]},
                "overrides": task.overrides,
                "fingerprint": mark,
            }
        seeds = {name: task.parameters["seed"] for name, task in self.tasks.items() if "seed" in task.parameters}
        times = {"started": _now(), "finished": None}
        state = {"schema": 1, "status": "running", "exit_code": None, "preset": preset}
        self.summary = state | times | about | {"seed": seeds, "notebooks": entries}

    def run(self, workers: int, deadlines: dict[str, int], seconds: dict[str, float], base: Path | None) -> int:
        """Execute what must be, keep the rest, compare and conclude. Returns the exit code.

        Args:
            workers: notebooks at a time. deadlines: ``timeout`` and ``cell_timeout`` in seconds.
            seconds: how long notebooks took before; the longest goes first.
            base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
        """
        names = [name for name, again in self.again.items() if again]
        estimate = report.estimate(names, seconds, workers)
        print(f"{len(names)} notebooks, {self.summary['preset']} preset: {estimate}")
        record.write_json(self.folder / "run.json", self.summary)
        due = [name for name, again in self.again.items() if again or not self._page(name).exists()]
        due.sort(key=lambda name: -seconds.get(name, math.inf))
        signal = asyncio.run(supervise(due, lambda name, *alarms: self.execute(name, deadlines, *alarms), workers))
        return conclude(self.folder, self.summary, base, signal)

    async def execute(self, name: str, deadlines: dict[str, int], *alarms: asyncio.Event) -> None:
        task, folder, entry = self.tasks[name], self.folder / name, self.summary["notebooks"][name]
        if self.again[name]:
            record.prepare(task, folder)
        order = {"name": name, "parameters": task.parameters | {OUTPUT_DIR: "."}, **deadlines}
        outcome = await run(order, folder, self.lock, *alarms, say=lambda text: self.say(name, text))
        try:
            if outcome["status"] == "ok":
                read_results(folder)
        except ValueError as error:
            outcome |= {"status": "failed", "error": str(error)}
        if not self._page(name).is_file() and not outcome["warnings"]:
            outcome["warnings"] = ["its page was not made"]
        text = json.dumps({key: outcome[key] for key in FRESH})
        for place in (folder, self.root, Path(__file__).parents[2], Path(sys.prefix), Path.home()):
            text = text.replace(json.dumps(f"{place}/")[1:-1], "")  # nothing tells where things lie on this machine
        entry |= json.loads(text)
        record.write_json(folder / "status.json", entry)
        self.say(name, f"{entry['status']}: {entry['error']}" if entry["error"] else entry["status"])

    def say(self, name: str, text: str) -> None:
        """One line whenever a notebook reaches a new section or ends: good on a terminal and in a log."""
        width = max(map(len, self.tasks))
        print(f"{report.clock(time.monotonic() - self.start):>8}  {name:<{width}}  {text}", flush=True)

    def _page(self, name: str) -> Path:
        return self.folder / name / f"{name}.html"


def conclude(folder: Path, summary: dict[str, Any], base: Path | None, signal: int) -> int:
    """Compare, judge, write run.json and index.html, print the summary. Returns the exit code."""
    notebooks, results = summary["notebooks"], results_of(folder, summary)
    reference = folder.parent / "reference"
    automatic = not base and (record.read_json(reference / "run.json") or {}).get("preset") == summary["preset"]
    base = reference if automatic else base
    rows, remarks = compare(folder, base, same_parameters=automatic) if base else ([], [])
    verdicts = {claim.verdict for result in results.values() for claim in result.claims}
    bad = {"FAIL", "INCONCLUSIVE"} if summary["preset"] == "paper" else {"FAIL"}
    failed = any(entry["status"] != "ok" for entry in notebooks.values())
    code = 128 + signal if signal else int(failed or bool(verdicts & bad) or any(row.drifted for row in rows))
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
    """Make a run the reference, without what only weighs. Raises UsageError if one of the notebooks is not ok."""
    summary = record.read_json(run / "run.json")
    status = {name: summary["notebooks"].get(name, {}).get("status", "not in it") for name in names}
    bad = [f"{name} {word}" for name, word in status.items() if word != "ok"]
    if bad:
        raise UsageError(f"--accept {run.name}: a reference is a whole collection that is ok; {', '.join(bad)}")
    fresh = reference.with_name("reference.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(run, fresh, ignore=shutil.ignore_patterns("*.pdf", "__pycache__", ".*"))
    write_index(fresh, summary, results_of(fresh, summary))
    shutil.rmtree(reference, ignore_errors=True)
    fresh.rename(reference)


def results_of(folder: Path, summary: dict[str, Any]) -> dict[str, Results]:
    """The results of the notebooks of a run that are ok."""
    ok = (name for name, entry in summary["notebooks"].items() if entry["status"] == "ok")
    return {name: read_results(folder / name) for name in ok}


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
