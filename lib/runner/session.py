"""A run from start to end: what is kept, what is executed, what is recorded, and the exit code."""

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


def run(
    root: Path,
    folder: Path,
    preset: str,
    tasks: list[Task],
    seconds: dict[str, float],
    *,
    base: Path | None,
    workers: int,
    deadlines: tuple[int, int],
    lock: int,
) -> int:
    """Execute the tasks in a run's folder, new or resumed. Returns the exit code.

    Args:
        seconds: how long notebooks took before; the longest goes first.
        base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
        workers, lock: see :func:`supervise`. deadlines: of a notebook and of a cell, in seconds.
    """
    about = record.describe(root)
    summary = {
        "schema": 1,
        "status": "running",
        "exit_code": None,
        "preset": preset,
        "started": _now(),
        "finished": None,
    }
    notebooks = summary["notebooks"] = {}
    summary |= {**about, "seed": {task.name: task.parameters["seed"] for task in tasks if "seed" in task.parameters}}
    marks = {task.name: record.fingerprint(task, about) for task in tasks}
    progress = report.Progress([task.name for task in tasks])
    jobs = []
    print(f"run {folder.name}")
    for task in tasks:
        place = folder / task.name
        status = record.read_json(place / "status.json") or {}
        why = record.changes(status, marks[task.name])
        if place.exists():
            progress(task.name, f"again: {', '.join(why)}" if why else "kept: ok and unchanged")
        if why:
            record.prepare(task, place)
        if why or not (place / f"{task.name}.html").exists():
            parameters = task.parameters | {OUTPUT_DIR: "."}
            jobs.append(Job(task.name, task.notebook.path, place, parameters, *deadlines, execute=bool(why)))
        differs = {k: {"preset": task.preset[k], "here": v} for k, v in task.parameters.items() if v != task.preset[k]}
        kept = NOT_STARTED if why else {key: status[key] for key in NOT_STARTED}
        given = {"parameters": task.parameters, "differs": differs, "overrides": task.overrides}
        notebooks[task.name] = {"title": task.notebook.title, **kept, **given}
    record.write_json(folder / "run.json", summary)

    def done(job: Job, outcome: dict[str, Any]) -> None:
        entry = notebooks[job.name]
        if job.execute:
            outcome = without_paths(judged(outcome, job.folder), job.folder, root)
            entry |= outcome
            record.write_json(job.folder / "status.json", {**outcome, "fingerprint": marks[job.name]})
        else:  # only its page was missing
            entry["warnings"] = outcome["warnings"]
        progress(job.name, f"{entry['status']}: {entry['error']}" if entry["error"] else entry["status"])

    names = [job.name for job in jobs if job.execute]
    print(f"{len(names)} notebooks, {preset} preset: {report.estimate(names, seconds, workers)}", flush=True)
    jobs.sort(key=lambda job: -seconds.get(job.name, 1e9))
    signal = supervise(jobs, workers, lock, progress.section, done)
    return conclude(folder, summary, base, signal)


def judged(outcome: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The outcome, which is ok only with results that can be read."""
    try:
        if outcome["status"] == "ok":
            read_results(folder)
        return outcome
    except ValueError as error:
        return outcome | {"status": "failed", "error": str(error)}


def without_paths(value: Any, *places: Path) -> Any:
    """The text in a value without the parts that tell where things lie on this machine."""
    if isinstance(value, str):
        for place in (*places, Path(__file__).parents[2], Path(sys.prefix), Path.home()):
            value = value.replace(f"{place}/", "")
    elif isinstance(value, dict):
        return {key: without_paths(item, *places) for key, item in value.items()}
    return [without_paths(item, *places) for item in value] if isinstance(value, list) else value


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
