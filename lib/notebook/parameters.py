"""The ``parameters`` cell of a notebook: read as Python, and its values checked against their types.

The cell is the one source of names, types, defaults and help:

    prompt_lengths: list[PromptLength] = [16, 64, 256]  # L, tokens a prompt

Entries of a list are a set: those that are there twice are taken once, and numbers are put in rising order.

An annotation is evaluated in the namespace of ``lib.notebook.parameter_types``, ``typing`` and the builtins; a pydantic
``TypeAdapter`` checks values against it, strictly: the text "3" is no number and ``True`` no integer. Only a
whole-valued float passes as an integer, because YAML and people write 1e5. NaN and infinities need a type that
allows them. Used by the runner before any kernel starts, and by the notebooks themselves.
"""

import ast
import builtins
import datetime
import difflib
import functools
import io
import keyword
import math
import tokenize
import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

CONFIG = ConfigDict(strict=True, allow_inf_nan=False)
FILE_SUFFIXES = (".npy", ".npz")  # a text with one of these endings names a file


class ParameterError(ValueError):
    """One line that says what is wrong with a parameters cell or with a value."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell: its name, its type (as written, or in a running notebook itself), its default, and
    its comment."""

    name: str
    annotation: Any
    default: Any
    help: str = ""


def read_parameters(source: str) -> list[Parameter]:
    """The parameters that a cell declares, in order.

    Every statement must read ``name: type = literal``. Defaults are checked against their types.

    Raises:
        ParameterError: one line for the first statement that is anything else.
    """
    try:
        statements = ast.parse(source).body
        comments = _comments(source)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ParameterError(f"the parameters cell is not Python: {error}") from None
    parameters: dict[str, Parameter] = {}
    for statement in statements:
        parameter = _read(statement, source, comments)
        if parameter.name in parameters:
            raise ParameterError(f"{parameter.name}: declared twice")
        default = check_value(parameter, parameter.default)
        parameters[parameter.name] = replace(parameter, default=default)
    return list(parameters.values())


def check_value(parameter: Parameter, value: Any, base: Path | str | None = None) -> Any:
    """The value as the notebook receives it, made of None, bool, int, float, str, list and dict only.

    Args:
        parameter: what the value is for.
        value: as read from YAML or as typed in a cell.
        base: folder that file names are relative to; None leaves files unread (the defaults, a running notebook).

    Raises:
        ParameterError: one line with the key, the place inside it, what was given and what is allowed.
    """
    try:
        adapter = _adapter(parameter.annotation)
    except ParameterError as error:
        raise ParameterError(f"{parameter.name}: {error}") from None
    try:
        value = _plain(value)
        for name in file_names(value) if base is not None else ():
            if not (Path(base) / name).is_file():
                raise ParameterError(f"there is no file {name!r} in {base}")
        return _in_order(adapter.validate_python(value, context={"base": base}), parameter.annotation)
    except ValidationError as error:
        place, given, reason = _explain(error, value)
    except ParameterError as error:
        place, given, reason = "", value, str(error)
    reason = " ".join(reason.split())  # always one line
    raise ParameterError(
        f"{parameter.name}{place}: received {_short(given)}, {reason}; allowed: {allowed(parameter)}"
    ) from None


def allowed(parameter: Parameter) -> str:
    """What a parameter may be: its type as written and what the type's description says."""
    try:
        descriptions = dict.fromkeys(_descriptions(_adapter(parameter.annotation).json_schema()))
    except Exception:  # pydantic cannot draw a schema of every type; the name of the type still says something
        descriptions = {}
    written = [parameter.annotation] if isinstance(parameter.annotation, str) else []
    return " ".join([*written, *(f"({text})" for text in descriptions)])


def file_names(value: Any) -> list[str]:
    """The texts inside a value that name files."""
    if isinstance(value, str):
        return [value] if value.endswith(FILE_SUFFIXES) else []
    if isinstance(value, dict):
        value = list(value.values())
    return [name for item in value for name in file_names(item)] if isinstance(value, list) else []


def suggest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for the nearest of some names, or else what there is to choose from."""
    known = list(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"


def _read(statement: ast.stmt, source: str, comments: dict[int, str]) -> Parameter:
    text = _short(ast.get_source_segment(source, statement))
    named = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    if not named or statement.value is None:
        raise ParameterError(f"line {statement.lineno} must read `name: type = literal`, received {text}")
    name = statement.target.id
    if keyword.issoftkeyword(name) or hasattr(builtins, name):
        raise ParameterError(f"{name}: a parameter must not have the name of a builtin or a keyword")
    try:
        default = ast.literal_eval(statement.value)
    except ValueError:
        given = ast.get_source_segment(source, statement.value)
        raise ParameterError(f"{name}: the default must be a literal, received {_short(given)}") from None
    return Parameter(name, ast.unparse(statement.annotation), default, _help(statement, comments))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("#").strip() for t in tokens if t.type == tokenize.COMMENT}


def _help(statement: ast.stmt, comments: dict[int, str]) -> str:
    """The comment beside a statement (its first or last line), or else the one right above it."""
    places = (statement.lineno, statement.end_lineno, statement.lineno - 1)
    return next((comments[line] for line in places if line in comments), "")


def _adapter(annotation: Any) -> TypeAdapter:
    """What checks values of a type, which is given as it was written or, in a running notebook, itself."""
    if isinstance(annotation, str):
        return _adapter_named(annotation)
    return TypeAdapter(annotation, config=CONFIG)


@functools.cache
def _adapter_named(annotation: str) -> TypeAdapter:
    from lib.notebook import parameter_types  # here: reading a cell must not cost the import of numpy before its time

    names = {**vars(builtins), **vars(typing), **vars(parameter_types)}
    try:
        return TypeAdapter(eval(annotation, {"__builtins__": {}}, names), config=CONFIG)  # its text, which runs anyway
    except NameError as error:
        raise ParameterError(f"unknown type {annotation!r}{suggest(error.name, parameter_types.__all__)}") from None
    except Exception as error:
        raise ParameterError(f"{annotation!r} is not a type: {str(error).splitlines()[0]}") from None


def _plain(value: Any) -> Any:
    """The value with whole floats as integers (pydantic turns them back where a float is meant)."""
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else value
    if isinstance(value, str) and not value.isprintable():
        raise ParameterError("a text with characters that cannot be printed")
    if isinstance(value, int) and abs(value) > 10**300:
        raise ParameterError("a number too large to compute with")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        if not value:
            raise ParameterError("an empty list, which leaves nothing to compute")
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise ParameterError(f"the key {odd[0]!r} inside it must be text, in quotes")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, datetime.date):
        raise ParameterError("which YAML reads as a date; put it in quotes if text is meant")
    raise ParameterError(f"a {type(value).__name__}, which is no number, text, list or mapping")


def _in_order(value: Any, annotation: Any) -> Any:
    """The value, its repeated entries taken once and numbers in rising order, if the type is a plain list."""
    plain = annotation.startswith("list[") if isinstance(annotation, str) else typing.get_origin(annotation) is list
    if not plain or not isinstance(value, list):
        return value
    distinct = [entry for k, entry in enumerate(value) if entry not in value[:k]]
    return sorted(distinct) if all(isinstance(entry, int | float) for entry in distinct) else distinct


def _explain(error: ValidationError, value: Any) -> tuple[str, Any, str]:
    """Where in the value the first error is, what is there, and why it is refused."""
    errors = error.errors(include_url=False)
    deepest = max(errors, key=lambda e: len(_place(e["loc"], value)[0]))
    place, given = _place(deepest["loc"], value)
    reasons = dict.fromkeys(e["msg"] for e in errors if _place(e["loc"], value)[0] == place)
    reason = (
        " or ".join(reasons)
        .removeprefix("Value error, ")
        .replace("Input should", "should")
        .replace(" after validation", "")
    )
    return place, given, reason[0].lower() + reason[1:]


def _place(location: tuple, value: Any) -> tuple[str, Any]:
    """'[2][0]' and the value there; the names of union members, which pydantic puts in between, lead nowhere."""
    place = ""
    for step in location:
        inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if inside or (isinstance(value, dict) and step in value):
            value, place = value[step], f"{place}[{step!r}]"
    return place, value


def _descriptions(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["description"]] if isinstance(schema.get("description"), str) else []
        return own + [text for value in schema.values() for text in _descriptions(value)]
    return [text for value in schema for text in _descriptions(value)] if isinstance(schema, list) else []
