"""results.json: all that passes from a notebook to the runner."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Interval = tuple[float | None, float | None]


class Control(BaseModel):
    what: str
    estimate: float | None
    interval: Interval
    verdict: Verdict


class Claim(BaseModel):
    id: str
    statement: str
    source: str
    status: str
    prediction: float | None
    band: Interval
    estimate: float | None
    interval: Interval
    verdict: Verdict
    control: Control
    cell: str


class Metric(BaseModel):
    value: float | None
    tolerance: float | None


class Figure(BaseModel):
    file: str
    caption: str
    alt: str
    cell: str


class Results(BaseModel):
    """results.json: all that passes from a notebook to the runner."""

    notebook: str
    parameters: dict[str, Any]
    claims: list[Claim]
    metrics: dict[str, Metric]
    figures: list[Figure]


def read_results(folder: Path) -> Results:
    """The results of a notebook. Raises ValueError with one line if there are none or they are malformed."""
    try:
        return Results.model_validate_json((folder / "results.json").read_bytes())
    except FileNotFoundError:
        raise ValueError("it wrote no results.json") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"its results.json is malformed: {place}: {first['msg']}") from None
