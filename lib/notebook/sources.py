"""Which lib it is that runs: its sources as a digest, and whether they are those that lie beside a notebook."""

import hashlib
from pathlib import Path

LIB = Path(__file__).resolve().parents[1]


def digest(lib: Path = LIB) -> str:
    """A digest of the sources of lib but for the runner, which computes nothing: what every result depends on."""
    runner = lib / "runner"
    sources = [path for path in sorted(lib.rglob("*.py")) if runner not in path.parents]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def check_beside(notebook: str, place: Path) -> None:
    """Refuse to compute with another lib than the one that lies beside the notebook.

    Args:
        notebook: its name. place: where it runs; the collection is looked for there and above.

    Raises:
        ImportError: one line with both places.
    """
    for folder in (place, *place.parents):
        if (folder / "notebooks" / f"{notebook}.ipynb").is_file() and (folder / "lib").is_dir():
            if (folder / "lib").resolve() != LIB:
                raise ImportError(
                    f"{notebook} would run with the lib of {LIB.parent}, not with the one beside it in {folder}; "
                    "run `make setup` there, or set PYTHONPATH to that folder"
                )
            return
