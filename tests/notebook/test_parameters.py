"""Parameters cells and values: what is read, what is accepted, and the one line that refuses the rest."""

import datetime
import math

import numpy as np
import pytest

from lib.notebook.parameter_types import PromptLength
from lib.notebook.parameters import Parameter, ParameterError, allowed, check_value, read_parameters


def one(annotation: str, default=None) -> Parameter:
    return Parameter("p", annotation, default)


def refusal(annotation: str, value, base=None) -> str:
    with pytest.raises(ParameterError) as caught:
        check_value(one(annotation), value, base)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_cell_is_read_as_python():
    cell = '''
"""Settings."""
lengths: list[PromptLength] = [  # L, tokens
    16,  # short
    1e3,
]
text: Optional[str] = "a = b  # no comment"
# on the line above
covariance: Covariance = "toeplitz(0.5)"
either: int | Literal["auto"] = "auto"  # a choice
'''
    with pytest.raises(ParameterError, match=r"^line 2 must read `name: type = literal`"):
        read_parameters(cell)
    read = read_parameters(cell.replace('"""Settings."""', ""))
    assert read == [
        Parameter("lengths", "list[PromptLength]", [16, 1000], "L, tokens"),
        Parameter("text", "Optional[str]", "a = b  # no comment", ""),
        Parameter("covariance", "Covariance", "toeplitz(0.5)", "on the line above"),
        Parameter("either", "int | Literal['auto']", "auto", "a choice"),
    ]
    assert isinstance(read[0].default[1], int)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("x = 3", "line 1 must read `name: type = literal`, received 'x = 3'"),
        ("x: int", "line 1 must read `name: type = literal`, received 'x: int'"),
        ("a.b: int = 3", "line 1 must read `name: type = literal`, received 'a.b: int = 3'"),
        ("import os", "line 1 must read `name: type = literal`, received 'import os'"),
        ("a: int = 1\nb: int = a + 1", "b: the default must be a literal, received 'a + 1'"),
        ("a: float = float('nan')", "a: the default must be a literal, received \"float('nan')\""),
        ("list: int = 1", "list: a parameter must not have the name of a builtin or a keyword"),
        ("match: int = 1", "match: a parameter must not have the name of a builtin or a keyword"),
        ("x: int = 1\nx: int = 2", "x: declared twice"),
        ("x: PromptLenght = 1", "x: unknown type 'PromptLenght'; did you mean 'PromptLength'?"),
        ("x: 3 = 1", "x: '3' is not a type"),
        ("x: int = 1.5", "x: received 1.5, should be a valid integer; allowed: int"),
        ("x: list[PromptLength] = [4, 0]", "x[1]: received 0, should be greater than or equal to 1; allowed: "),
        ("lambda: int = 1", "the parameters cell is not Python: "),
        ("2x: int = 1", "the parameters cell is not Python: "),
        ("%matplotlib inline", "the parameters cell is not Python: "),
        ("x: list[int] = [1,", "the parameters cell is not Python: "),
    ],
)
def test_a_cell_that_is_refused(cell, message):
    with pytest.raises(ParameterError) as caught:
        read_parameters(cell)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [
        ("int", 3.0, 3),
        ("list[int]", [1e5, 2, 1e5], [2, 100000]),  # a set, in rising order
        ("list[str]", ["b", "a", "b"], ["b", "a"]),
        ("list[list[int]]", [[2, 2], [1], [2, 2]], [[2, 2], [1]]),  # what is inside an entry stays
        ("Window", [20, 10], [10, 20]),
        ("GrowingLengths", [20, 10, 20], [10, 20]),
        ("float", 1, 1.0),
        ("float", 1e300, 1e300),
        ("Optional[int]", None, None),
        ("dict[str, list[float]]", {"a": [1, 2.5]}, {"a": [1.0, 2.5]}),
        ("Literal['a', 'b']", "b", "b"),
        ("Covariance", [[2.0, 0.5], [0.5, 1.0]], [[2, 0.5], [0.5, 1]]),
        ("Covariance", "condition(100)", "condition(100)"),
        ("str", "a=b", "a=b"),
        ("bool", True, True),
        ("Annotated[float, 'any']", 0.25, 0.25),
    ],
)
def test_a_value_that_is_accepted(annotation, value, meant):
    checked = check_value(one(annotation), value)
    assert checked == meant
    assert type(checked) is type(meant)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        ("int", "3", "p: received '3', should be a valid integer; allowed: int"),
        ("int", True, "p: received True, should be a valid integer"),
        ("int", 2.5, "p: received 2.5, should be a valid integer"),
        ("bool", 1, "p: received 1, should be a valid boolean"),
        ("str", 1, "p: received 1, should be a valid string"),
        ("list[int]", 1, "p: received 1, should be a valid list"),
        ("list[int]", [1, "a"], "p[1]: received 'a', should be a valid integer"),
        ("list[list[int]]", [[1], [2, 2.5]], "p[1][1]: received 2.5, should be a valid integer"),
        ("dict[str, int]", {"a": "b"}, "p['a']: received 'b', should be a valid integer"),
        ("PromptLength", 0, "p: received 0, should be greater than or equal to 1; allowed: PromptLength (tokens in a"),
        ("Correlation", 1, "p: received 1, should be less than or equal to 0.99"),
        ("float", math.nan, "p: received nan, should be a finite number"),
        ("list[float]", [0.5, -math.inf], "p[1]: received -inf, should be a finite number"),
        ("Literal['a', 'b']", "c", "p: received 'c', should be 'a' or 'b'"),
        ("int | list[int]", "x", "p: received 'x', should be a valid integer or should be a valid list"),
        ("int | list[int]", [1, "x"], "p[1]: received 'x', should be a valid integer"),
        ("Covariance", "toeplitz(2)", "p: received 'toeplitz(2)', "),
        ("Covariance", [[1, 2], [2, 1]], "p: received [[1, 2], [2, 1]], covariance matrix: not positive semidefinite"),
        ("str", datetime.date(2020, 1, 1), "p: received datetime.date(2020, 1, 1), which YAML reads as a date"),
        ("dict[str, int]", {1: 2}, "p: received {1: 2}, the key 1 inside it must be text"),
        ("list[int]", {3}, "p: received {3}, a set, which is no number, text, list or mapping"),
        ("list[PromptLength]", [], "p: received [], an empty list"),
        ("Runs", 1, "p: received 1, should be greater than or equal to 2; allowed: Runs (independent runs, at least 2"),
        ("SlopeLengths", [100], "p: received [100], must hold at least 2 different entries"),
        ("GrowingLengths", [10], "p: received [10], must hold at least 2 different entries"),
        ("GrowingLengths", [10, 10], "p: received [10, 10], must hold at least 2 different entries"),
        ("Window", [10, 20, 30], "p: received [10, 20, 30], list should have at most 2 items"),
        ("Window", [20, 20], "p: received [20, 20], must hold at least 2 different entries"),
        ("list[list[int]]", [[1], []], "p: received [[1], []], an empty list"),
    ],
)
def test_a_value_that_is_refused(annotation, value, message):
    assert refusal(annotation, value).startswith(message)


def test_infinity_where_the_type_allows_it(monkeypatch):
    from pydantic import Field

    from lib.notebook import parameter_types as domains

    monkeypatch.setattr(domains, "Field", Field, raising=False)
    assert check_value(one("Annotated[float, Field(allow_inf_nan=True)]"), math.inf) == math.inf


def test_a_file_is_looked_for_beside_the_parameters_file(tmp_path):
    assert "there is no file 'c.npy' in" in refusal("Covariance", "c.npy", tmp_path)
    np.save(tmp_path / "c.npy", [[1.0, 2.0], [2.0, 1.0]])
    assert "not positive semidefinite" in refusal("Covariance", "c.npy", tmp_path)
    np.save(tmp_path / "c.npy", np.eye(2))
    assert check_value(one("Covariance"), "c.npy", tmp_path) == "c.npy"
    assert check_value(one("Covariance"), "elsewhere.npy") == "elsewhere.npy"  # without a folder it is not read
    assert "there is no file 'gone.npz'" in refusal("list[str]", ["c.npy", "gone.npz"], tmp_path)


def test_what_is_allowed_comes_from_the_descriptions_of_the_types():
    assert allowed(one("list[PromptLength]")) == "list[PromptLength] (tokens in a prompt, a whole number from 1)"
    assert allowed(one("list[int]")) == "list[int]"


def test_a_long_value_is_shortened():
    assert len(refusal("list[int]", [*range(1000), "x"])) < 200
    assert len(refusal("int", list(range(1000)))) < 200


def test_a_running_notebook_gives_the_type_itself():
    """Where the source of the cell is out of sight, its annotations are not: they check alike."""
    length = Parameter("length", list[PromptLength], None)
    assert check_value(length, [16, 1e3]) == [16, 1000]
    with pytest.raises(ParameterError, match=r"^length\[1\]: received 0, .*; allowed: \(tokens in a prompt"):
        check_value(length, [16, 0])
