"""Files that are written in one go, so that a reader never sees half of one."""

import contextlib
import json
from pathlib import Path
from typing import Any

from pydantic_core import to_json


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Write numbers, texts, lists, mappings and pydantic models. JSON knows no infinity: it becomes a text."""
    write_text(path, to_json(content, indent=1, inf_nan_mode="strings", by_alias=True).decode() + "\n")


def write_text(path: Path, text: str) -> None:
    """Write all or nothing.

    Raises:
        OSError: with the path of the file that was meant.
    """
    fresh = path.with_name(path.name + ".partial")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None
