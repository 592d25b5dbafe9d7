"""Whether a kept result is still valid: what it depends on, and what of that has changed."""

import hashlib
from typing import Any

from pydantic_core import to_json

from lib.notebook.sources import digest
from lib.runner.params import Task

LIB = "lib sources"


def fingerprint(task: Task, about: dict[str, Any]) -> dict[str, str]:
    """All that a notebook's results depend on, part by part: a kept result is valid while these are the same.

    Args:
        task: the notebook. about: what it runs on, as :func:`lib.runner.machine.describe` tells.

    Returns:
        A digest of each part.
    """
    parts = {
        "code cells": [task.notebook.code.encode()],
        "parameters": [to_json(task.parameters)],
        "input files": [path.read_bytes() for _, path in sorted(task.files.items())],
        "packages": [to_json([about["python"], about["versions"]])],
        "device": [about["device"].encode()],
    }
    marks = {name: hashlib.sha256(b"\0".join(contents)).hexdigest()[:16] for name, contents in parts.items()}
    return marks | {LIB: digest()}


def changes(status: dict[str, Any], mark: dict[str, str]) -> list[str]:
    """Why a notebook must be executed (again): it is not ok, or what it depends on has changed. Empty: keep it.

    Args:
        status: the content of its status.json. mark: its fingerprint now.
    """
    if status.get("status") != "ok":
        return [status.get("status", "no status")]
    return [part for part in mark if status["fingerprint"].get(part) != mark[part]]
