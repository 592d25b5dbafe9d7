"""A run from start to end: what is kept, what is executed, what is recorded, and the exit code."""

import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from . import report
from .compare import compare
from .execute import Job, supervise
from .index import write_index
from .params import OUTPUT_DIR, Task, UsageError
from .record import (
    changes,
    describe,
    fingerprint,
    prepare,
    read_json,
    read_results,
    write_json,
)


def run(
    root: Path,
    folder: Path,
    preset: str,
    tasks: list[Task],
    seconds: dict[str, float],
    base: Path | None,
    workers: int,
    timeout: int,
    cell_timeout: int,
) -> int:
    """Execute the tasks in a run's folder, new or resumed. Returns the exit code.

    Args:
        seconds: how long notebooks took before; the longest goes first.
        base: the run to compare with; None: the reference beside the run, if preset and parameters are the same.
    """
    about = describe(root)
    start = datetime.now().astimezone()
    marks = {task.name: fingerprint(task, about) for task in tasks}
    notebooks: dict[str, Any] = {}
    jobs = []
    print(f"run {folder.name}")
    progress = report.Progress([task.name for task in tasks])
    for task in tasks:
        place = folder / task.name
        kept = read_json(place / "status.json") or {}
        why = changes(kept, marks[task.name])
        if place.exists():
            progress(task.name, f"again: {', '.join(why)}" if why else "kept: ok and unchanged")
        if why or not (place / f"{task.name}.html").exists():
            parameters = task.parameters | {OUTPUT_DIR: "."}
            jobs.append(Job(task.name, task.notebook.path, place, parameters, timeout, cell_timeout, bool(why)))
        if why:
            prepare(task, place)
            kept = {"status": "interrupted", "error": "not started", "excerpt": [], "seconds": 0, "sections": {}}
            kept |= {"warnings": []}
        differs = {k: {"preset": task.preset[k], "here": v} for k, v in task.parameters.items() if v != task.preset[k]}
        notebooks[task.name] = {
            **{key: value for key, value in kept.items() if key != "fingerprint"},
            "title": task.notebook.title,
            "parameters": task.parameters,
            "differs": differs,
            "overrides": task.overrides,
        }
    summary = {
        "schema": 1,
        "status": "running",
        "exit_code": None,
        "preset": preset,
        "started": start.isoformat(timespec="seconds"),
        "finished": None,
        **about,
        "seed": {task.name: task.parameters["seed"] for task in tasks if "seed" in task.parameters},
        "notebooks": notebooks,
    }
    write_json(folder / "run.json", summary)

    def done(job: Job, outcome: dict[str, Any]) -> None:
        entry = notebooks[job.name]
        if job.execute:
            if outcome["status"] == "ok":
                try:
                    read_results(job.folder)
                except ValueError as error:
                    outcome |= {"status": "failed", "error": str(error)}
            outcome = without_paths(outcome, root, job.folder)
            entry.update(outcome)
            write_json(job.folder / "status.json", {**outcome, "fingerprint": marks[job.name]})
        else:
            entry["warnings"] = outcome["warnings"]
        progress(job.name, entry["status"] + (f": {entry['error']}" if entry["error"] else ""))

    names = [job.name for job in jobs if job.execute]
    print(f"{len(names)} notebooks, {preset} preset: {report.estimate(names, seconds, workers)}", flush=True)
    jobs.sort(key=lambda job: -seconds.get(job.name, 1e9))
    signal = supervise(
        jobs,
        workers,
        lambda job, event: progress(job.name, f"{event['cell']}/{event['cells']}  {event['section']}"),
        done,
    )
    return conclude(folder, summary, base, signal)


def without_paths(value: Any, *places: Path) -> Any:
    """Text found anywhere in a value, without the parts that tell where things lie on this machine."""
    if isinstance(value, str):
        for place in (*places, Path(__file__).parents[2], Path(sys.prefix), Path.home()):
            value = value.replace(f"{place}/", "")
        return value
    if isinstance(value, dict):
        return {key: without_paths(item, *places) for key, item in value.items()}
    return [without_paths(item, *places) for item in value] if isinstance(value, list) else value


def conclude(folder: Path, summary: dict[str, Any], base: Path | None, signal: int) -> int:
    """Compare, judge, write run.json and index.html, print the summary. Returns the exit code."""
    notebooks = summary["notebooks"]
    results = report.results_of(folder, notebooks)
    reference = folder.parent / "reference"
    rows, remarks = [], []
    automatic = base is None and (read_json(reference / "run.json") or {}).get("preset") == summary["preset"]
    base = reference if automatic else base
    write_json(folder / "run.json", summary)
    if base:
        rows, remarks = compare(folder, base, same_parameters=automatic)
    print("\n" + report.summary(notebooks, results))
    if base:
        print("\n" + report.comparison(rows, remarks, base.name))
    verdicts = {claim.verdict for result in results.values() for claim in result.claims}
    bad = {"FAIL", "INCONCLUSIVE"} if summary["preset"] == "paper" else {"FAIL"}
    failed = any(entry["status"] != "ok" for entry in notebooks.values())
    drifted = any(row.drifted for row in rows)
    code = 128 + signal if signal else int(failed or bool(verdicts & bad) or drifted)
    summary["status"] = "interrupted" if signal else "failed" if code else "ok"
    summary["exit_code"] = code
    summary["finished"] = datetime.now().astimezone().isoformat(timespec="seconds")
    write_json(folder / "run.json", summary)
    times = {name: {"seconds": e["seconds"], "sections": e["sections"]} for name, e in notebooks.items()}
    write_json(folder / "timings.json", times)
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
    summary = read_json(run / "run.json")
    status = {name: summary["notebooks"].get(name, {}).get("status", "not in it") for name in names}
    bad = [f"{name} {word}" for name, word in status.items() if word != "ok"]
    if bad:
        raise UsageError(f"--accept {run.name}: a reference is a whole collection that is ok; {', '.join(bad)}")
    fresh, old = reference.with_name("reference.new"), reference.with_name("reference.old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, fresh, ignore=shutil.ignore_patterns("*.pdf", "__pycache__", "*.partial*", ".*"))
    write_index(fresh, summary, report.results_of(fresh, summary["notebooks"]))
    if reference.exists():
        reference.rename(old)
    fresh.rename(reference)
    shutil.rmtree(old, ignore_errors=True)
