"""results.json: all that passes from a notebook to the runner, written by the one and read by the other."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT APPLICABLE"]
Number = Annotated[
    float | None, BeforeValidator(lambda x: None if isinstance(x, float) and not math.isfinite(x) else x)
]
Interval = tuple[Number, Number]


class ControlRecord(BaseModel):
    what: str
    estimate: Number
    interval: Interval
    verdict: Verdict


class ClaimRecord(BaseModel):
    """A judged claim.

    Attributes:
        chosen_on: where a threshold was fixed; empty for a derived prediction.
        only_if: the parameters that it is made for; empty for all.
        why: why it is INCONCLUSIVE or NOT APPLICABLE.
        cases, worst: how many cases the estimate rests on, and whether it is the worst of them or their mean.
        caught: the errors that the claim would have caught: the largest negative and the smallest positive one.
    """

    id: str
    statement: str
    source: str
    status: str
    chosen_on: str
    only_if: str = ""
    why: str = ""
    prediction: Number
    band: Interval
    estimate: Number
    interval: Interval
    cases: int
    worst: bool
    caught: Interval
    verdict: Verdict
    control: ControlRecord
    near_miss: ControlRecord | None
    cell: str


class MetricRecord(BaseModel):
    """A number to be compared with other runs: it agrees where it is within the tolerance of theirs."""

    value: Number
    tolerance: Number


class FigureRecord(BaseModel):
    file: str
    caption: str
    alt: str
    cell: str


class ResultsRecord(BaseModel):
    """The content of results.json. JSON knows neither NaN nor infinity: such a number is null.

    Attributes:
        lib: a digest of the lib that computed it, as :func:`lib.notebook.sources.digest` tells.
    """

    model_config = ConfigDict(populate_by_name=True)

    version: int = Field(2, alias="schema")
    notebook: str
    lib: str | None = None
    parameters: dict[str, Any]
    claims: list[ClaimRecord]
    metrics: dict[str, MetricRecord]
    figures: list[FigureRecord]


def read_results(folder: Path) -> ResultsRecord:
    """The results of a notebook. Raises ValueError with one line if there are none or they are malformed."""
    try:
        return ResultsRecord.model_validate_json((folder / "results.json").read_bytes())
    except FileNotFoundError:
        raise ValueError("it wrote no results.json") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"its results.json is malformed: {place}: {first['msg']}") from None
