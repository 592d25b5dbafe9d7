"""Named types of the notebooks' parameters: what each may be, in one place.

A ``parameters`` cell annotates each of its names with one of these (or with ``list[...]`` of one, a plain ``bool``,
``str``, ``Literal[...]`` ...). They are pydantic types, so that anything that knows pydantic can check a value and
print what is allowed; the description of each is the help that a reader sees.

>>> from pydantic import TypeAdapter
>>> TypeAdapter(PromptLength).validate_python(64)
64
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from lib.tokens.covariances import check_covariance_spec, covariance_matrix

__all__ = [
    "Correlation",
    "Count",
    "Coupling",
    "Covariance",
    "Dimension",
    "FlowTime",
    "GrowingLengths",
    "HeadFile",
    "LearningRate",
    "LongPromptLength",
    "NoiseStd",
    "PositiveReal",
    "PromptLength",
    "QuietScore",
    "Runs",
    "ScoreDeviation",
    "Seed",
    "Setting",
    "SlopeLengths",
    "Tolerance",
    "Variance",
    "Window",
]


def _covariance(value: Any, info: ValidationInfo) -> Any:
    check_covariance_spec(value, base=(info.context or {}).get("base"))
    return value


def _setting(value: list, info: ValidationInfo) -> list:
    if len(value) != 2 or not isinstance(value[1], int) or isinstance(value[1], bool) or value[1] < 1:
        raise ValueError("must be a pair such as [toeplitz(0.5), 16]")
    base = (info.context or {}).get("base")
    check_covariance_spec(value[0], base=base)
    if base is not None or not str(value[0]).endswith((".npy", ".npz")):
        covariance_matrix(value[0], value[1], base=base)  # does it fit the dimension?
    return value


def _in_rising_order(value: list) -> list:
    distinct = sorted(set(value))
    if len(distinct) < 2:
        raise ValueError("must hold at least 2 different entries")
    return distinct


def _head_file(value: str, info: ValidationInfo) -> str:
    base = (info.context or {}).get("base")
    if value and not value.endswith(".npz"):
        raise ValueError("must be empty or name a file that ends in .npz")
    if value and base is not None:
        from lib.finite_prompt.head_file import load_heads  # here: the runner needs no theory to check a name

        load_heads(Path(base) / value)
    return value


Real = Annotated[float, Field(allow_inf_nan=False)]

PromptLength = Annotated[int, Field(ge=1, le=2**31, description="tokens in a prompt, a whole number from 1")]
GrowingLengths = Annotated[
    list[PromptLength], AfterValidator(_in_rising_order), Field(description="at least 2 different ones")
]
Window = Annotated[
    list[PromptLength],
    Field(min_length=2, max_length=2, description="a pair [shortest, longest]"),
    AfterValidator(_in_rising_order),
]
LongPromptLength = Annotated[
    Real,
    Field(ge=1, le=1e40, description="prompt length for exact curves only, whole, from 1 to 1e40"),
    AfterValidator(lambda value: float(round(value))),
]
SlopeLengths = Annotated[
    list[LongPromptLength],
    AfterValidator(_in_rising_order),
    Field(description="at least 2 different ones, for a slope"),
]
Dimension = Annotated[int, Field(ge=1, le=4096, description="dimension of the tokens, a whole number from 1")]
Count = Annotated[int, Field(ge=1, le=10**12, description="how many, a whole number from 1")]
Runs = Annotated[int, Field(ge=2, le=10**6, description="independent runs, at least 2: intervals come from them")]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="root of all random draws, a whole number from 0")]
ScoreDeviation = Annotated[
    Real, Field(ge=1e-3, le=40, description="standard deviation of the scores, from 0.001 to 40")
]
QuietScore = Annotated[
    Real,
    Field(
        ge=1e-3, le=2.5, description="standard deviation of the scores, from 0.001 to 2.5; beyond, sampling is hopeless"
    ),
]
Coupling = Annotated[Real, Field(gt=0, le=16, description="coupling of queries and tokens, in (0, 16]")]
Tolerance = Annotated[Real, Field(ge=1e-6, lt=1, description="relative tolerance, from 1e-6 to below 1")]
Correlation = Annotated[Real, Field(ge=-0.99, le=0.99, description="correlation, from -0.99 to 0.99")]
NoiseStd = Annotated[Real, Field(ge=0, le=10, description="standard deviation of the label noise, from 0 to 10")]
Variance = Annotated[Real, Field(gt=0, le=1e6, description="a variance, positive")]
PositiveReal = Annotated[Real, Field(gt=0, le=1e6, description="a positive number")]
LearningRate = Annotated[Real, Field(gt=0, le=10, description="step size of gradient descent, positive")]
FlowTime = Annotated[Real, Field(gt=0, le=1e9, description="flow time = learning rate x steps, positive")]
Covariance = Annotated[
    Any,
    AfterValidator(_covariance),
    Field(
        description="isotropic, toeplitz(0.5), condition(100), rank(3), spiked(10), power_law(1), a matrix, "
        "or the path of a .npy or .npz file"
    ),
]
Setting = Annotated[
    list, AfterValidator(_setting), Field(description="a pair [covariance, dimension], such as [toeplitz(0.5), 16]")
]
HeadFile = Annotated[
    str,
    AfterValidator(_head_file),
    Field(description="an .npz with Gamma or tokens, and U, V or W_Q, W_K, W_V, head_dim; empty: an example"),
]
