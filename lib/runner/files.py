"""The folders of runs: made, found, locked, filled, and how long the notebooks in them took."""

import contextlib
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from ruamel.yaml import YAML

from lib.notebook.parameters import suggest
from lib.runner.params import Task, UsageError
from lib.runner.records import Run, read_run


def new_folder(root: Path, preset: str, now: datetime) -> Path:
    """A folder for a run that no other run has, however close in time.

    Raises:
        UsageError: if nothing can be written there.
    """
    name = f"{now:%Y-%m-%d_%H%M%S}_{preset}"
    for attempt in itertools.count(1):
        folder = root / (name if attempt == 1 else f"{name}_{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"--output-root {root}: cannot be written: {error.strerror.lower()}") from None


def find(word: str, root: Path) -> Path:
    """The folder of a run, given by its name or its path.

    Raises:
        UsageError: with the nearest name, if there is none.
    """
    for folder in (root / word, Path(word)):
        if (folder / "run.json").is_file():
            return folder.resolve()
    known = sorted((path.parent.name for path in root.glob("*/run.json")), reverse=True)
    raise UsageError(f"{word}: no such run{suggest(word, known)}")


def record(run: Path) -> Run:
    """What a run says of itself.

    Raises:
        UsageError: if that cannot be read.
    """
    try:
        return read_run(run)
    except ValueError as error:
        raise UsageError(f"{run.name}: {error}") from None


def durations(root: Path, preset: str) -> dict[str, float]:
    """Seconds each notebook took the last time it ran through with this preset, unaltered; damaged records say none."""
    seconds = {}
    for path in sorted(root.glob("*/run.json"), key=lambda p: (p.parent.name != "reference", p.parent.name)):
        try:
            run = read_run(path.parent)
        except ValueError:
            continue
        for name, entry in run["notebooks"].items() if run["preset"] == preset else ():
            if entry["status"] == "ok" and not entry["differs"]:
                seconds[name] = entry["seconds"]
    return seconds


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Keep a second runner out of a run's folder as long as any process holds the handle that this yields.

    Raises:
        UsageError: if one is in it already.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle
    except BlockingIOError:
        raise UsageError(f"{folder.name}: this run is still going on") from None
    finally:
        os.close(handle)


def prepare(task: Task, folder: Path) -> None:
    """An empty folder for a notebook, with its parameters, the files they name, and the copy that is to be executed."""
    copies = {name: path.read_bytes() for name, path in task.files.items()}  # the old folder may hold them
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    for name, content in copies.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    with (folder / "parameters.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(task.parameters, file)
    partial(folder / f"{task.name}.ipynb").write_text(task.notebook.text, encoding="utf-8")


def partial(notebook: Path) -> Path:
    """The copy of a notebook that is executed and written while it runs."""
    return notebook.with_suffix(".partial.ipynb")


def keep_notebook(target: Path, outcome: dict, cell: int | None = None) -> None:
    """Give the notebook its final name, with a note at the top and a mark above the cell if it did not finish.

    Half a notebook, as a full disk leaves it, is no notebook and goes.

    Args:
        target: the notebook under its final name. outcome: its status and error.
        cell: the index of the cell that was being executed.
    """
    written = partial(target)
    try:
        if outcome["status"] != "ok":
            notebook = nbformat.read(written, as_version=4)
            text = f"**This run did not finish ({outcome['status']}).** {outcome['error']}"
            if cell is not None:
                notebook.cells.insert(cell, new_markdown_cell(f'<a id="stopped-here"></a>\n\n{text}'))
                text += "\n\n[Go to the cell](#stopped-here)"
            notebook.cells.insert(0, new_markdown_cell(text))
            nbformat.write(notebook, written)
        written.replace(target)
    except (OSError, ValueError):
        written.unlink(missing_ok=True)
