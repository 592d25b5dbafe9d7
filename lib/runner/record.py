"""What is on disk of a run: its folder, what it ran on, and what the results of a notebook depend on."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat.v4 import new_markdown_cell
from pydantic_core import to_json
from ruamel.yaml import YAML

from lib.runner.params import Task, UsageError


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    write_text(path, to_json(content, indent=1, inf_nan_mode="strings").decode() + "\n")  # JSON knows no infinity


def write_text(path: Path, text: str) -> None:
    """Write all or nothing: a reader never sees half a file."""
    fresh = path.with_name(path.name + ".partial")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def new_folder(root: Path, preset: str, now: datetime) -> Path:
    """A folder for a run that no other run has, however close in time."""
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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Keep a second runner out of a run's folder as long as any process holds the handle that this yields."""
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
    shutil.rmtree(folder, ignore_errors=True)
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


def describe(root: Path) -> dict[str, Any]:
    """What a run ran on; nothing that tells whose machine it is or where things lie on it."""
    git = ("git", "--no-optional-locks", "-C", str(root))
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"^model name\s*: (.*)$", cpuinfo.read_text() if cpuinfo.exists() else "", flags=re.M)
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    installed = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "commit": _output(*git, "rev-parse", "HEAD") or None,
        "dirty": bool(_output(*git, "status", "--porcelain")),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": {
            "cpu": cpu[1] if cpu else platform.machine(),
            "cores": psutil.cpu_count(),
            "memory_GiB": round(psutil.virtual_memory().total / 2**30, 1),
        },
        "device": (", ".join(gpus) if os.environ.get("CUDA_VISIBLE_DEVICES") != "" else "") or "cpu",
        "versions": dict(sorted(installed.items())),
    }


def fingerprint(task: Task, about: dict[str, Any]) -> dict[str, str]:
    """All that a notebook's results depend on, part by part: a kept result is valid while these are the same."""
    own = Path(__file__).parent
    sources = [path for path in sorted(own.parent.rglob("*.py")) if own not in path.parents]
    parts = {
        "code cells": [task.notebook.code.encode()],
        "parameters": [to_json(task.parameters)],
        "input files": [path.read_bytes() for _, path in sorted(task.files.items())],
        "lib sources": [path.read_bytes() for path in sources],
        "packages": [to_json([about["python"], about["versions"]])],
        "device": [about["device"].encode()],
    }
    return {name: hashlib.sha256(b"\0".join(contents)).hexdigest()[:16] for name, contents in parts.items()}


def changes(status: dict[str, Any], mark: dict[str, str]) -> list[str]:
    """Why a notebook must be executed (again): it is not ok, or what it depends on has changed. Empty: keep it."""
    if status.get("status") != "ok":
        return [status.get("status", "no status")]
    return [part for part in mark if status["fingerprint"].get(part) != mark[part]]


def durations(root: Path, preset: str) -> dict[str, float]:
    """Seconds each notebook took the last time it ran through with this preset, unaltered."""
    seconds = {}
    for path in sorted(root.glob("*/run.json"), key=lambda p: (p.parent.name != "reference", p.parent.name)):
        run = read_json(path) or {}
        for name, entry in run.get("notebooks", {}).items() if run.get("preset") == preset else ():
            if entry["status"] == "ok" and not entry["differs"]:
                seconds[name] = entry["seconds"]
    return seconds


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
