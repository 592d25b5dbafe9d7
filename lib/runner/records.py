"""What a run leaves on disk about itself, read back without trust: it may be foreign, truncated, empty or newer."""

from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict


class Entry(TypedDict):
    """How a notebook went: the content of its status.json, and its entry in run.json."""

    title: str
    status: str
    error: str
    excerpt: list[str]
    warnings: list[str]
    seconds: float
    parameters: dict[str, Any]
    differs: dict[str, dict[str, Any]]
    overrides: dict[str, Any]
    fingerprint: dict[str, str]


class Machine(TypedDict):
    """What a run ran on."""

    cpu: str
    cores: int
    memory_GiB: float


class Run(TypedDict):
    """The content of run.json."""

    schema: Literal[1]
    status: str
    exit_code: int | None
    preset: str
    started: str
    finished: str | None
    commit: str | None
    dirty: bool
    python: str
    platform: str
    machine: Machine
    device: str
    versions: dict[str, str]
    seed: dict[str, Any]
    notebooks: dict[str, Entry]


def read_run(folder: Path) -> Run:
    """The run.json of a folder. Raises ValueError with one line if there is none or it is not one of ours."""
    return _read(folder / "run.json", TypeAdapter(Run))


def read_entry(folder: Path) -> Entry:
    """The status.json of a notebook's folder. Raises ValueError with one line, as :func:`read_run`."""
    return _read(folder / "status.json", TypeAdapter(Entry))


def _read(path: Path, adapter: TypeAdapter) -> Any:
    try:
        return adapter.validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"its {path.name} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"its {path.name} is damaged or not ours: {place and place + ': '}{first['msg']}") from None
