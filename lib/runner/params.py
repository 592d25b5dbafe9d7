"""What will run: the selected notebooks and their parameters, all of it checked before any kernel starts.

A parameter has the value of the last of these that names it: the notebook's default, the preset's file, ``--params``,
``--set``. Every mistake becomes one line that says where it is, what was given and what is allowed.
"""

import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent

from lib.notebook.parameters import Parameter, ParameterError, check_value, file_names, read_parameters, suggest
from lib.notebook.premises import Premise, read_premises

PRESETS = ("paper", "quick")
OUTPUT_DIR = "output_dir"  # the parameter that the runner itself sets
LARGEST_TEXT, DEEPEST = 200_000, 10  # characters of a parameters file, and nesting in it


class UsageError(Exception):
    """What the user must change; each argument is a line."""


@dataclass(frozen=True)
class Notebook:
    """A source notebook as it was read and checked; ``code`` is a digest of its code cells, ``text`` the whole file."""

    name: str
    title: str
    parameters: dict[str, Parameter]
    premises: list[Premise]
    code: str
    text: str


@dataclass(frozen=True)
class Source:
    """Values from one place; file names in them are relative to ``base``."""

    where: str
    values: dict[str, Any]
    base: Path


@dataclass
class Task:
    """One notebook with its resolved parameters: by the preset alone, what overrides them, and the result.

    ``files`` maps each ``inputs/<name>`` among the values to the file that it is a copy of.
    """

    notebook: Notebook
    preset: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.notebook.name

    @property
    def parameters(self) -> dict[str, Any]:
        return self.preset | self.overrides


def plan(
    root: Path,
    preset: str,
    only: Iterable[str] = (),
    files: Iterable[Path] = (),
    settings: Iterable[str] = (),
    recorded: dict[str, Source] | None = None,
) -> list[Task]:
    """All that will run, or a UsageError with every mistake found in the values.

    Args:
        only, files, settings: of ``--only``, ``--params`` and ``--set``. recorded: the overrides of a resumed run.
    """
    notebooks = {path.stem: load(path) for path in select(root, only)}
    sources = {name: [source] for name, source in preset_sources(root, preset, notebooks).items()}
    for name in notebooks.keys() & (recorded or {}):
        sources[name].append(recorded[name])
    for path in files:
        if path.stem not in notebooks and len(notebooks) != 1:
            raise UsageError(f"--params {path}: name it after its notebook, or select one with --only")
        name = path.stem if path.stem in notebooks else next(iter(notebooks))
        sources[name].append(Source(str(path), read_mapping(path, str(path)), path.parent))
    for setting in settings:
        key, value, names = read_setting(setting, notebooks)
        for name in names:
            sources[name].append(Source(f"--set {setting}", {key: value}, Path.cwd()))
    mistakes: dict[str, None] = {}  # in order, each once
    tasks = [resolve(notebook, *sources[name], mistakes=mistakes) for name, notebook in notebooks.items()]
    if mistakes:
        raise UsageError(*mistakes)
    return tasks


def select(root: Path, only: Iterable[str] = ()) -> list[Path]:
    """The notebooks to run, in order: all, or those given by number or name."""
    paths = {path.stem: path for path in sorted(root.glob("notebooks/[0-9][0-9]_*.ipynb"))}
    chosen = set()
    for word in only:
        hits = [name for name in paths if word in (name, name[:2])]
        if len(hits) != 1:
            raise UsageError(f"--only {word}: {len(hits) or 'no'} such notebook{suggest(word, paths)}")
        chosen.update(hits)
    return [path for name, path in paths.items() if name in chosen or not chosen]


def load(path: Path) -> Notebook:
    """Read a notebook and its parameters cell, without running anything."""
    where = f"notebooks/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings(action="ignore"):  # about ids, which are mended below
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
        text = _with_own_ids(text, notebook)
    except Exception as error:  # bad JSON, bad encoding, not a notebook: the reason is in the message
        raise UsageError(f"{where}: not a valid notebook: {_first_line(error)}") from None
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [(tag, cell.source) for cell in code for tag in cell.metadata.get("tags", [])]
    declared = [source for tag, source in tagged if tag == "parameters"]
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language != "python":
        raise UsageError(f"{where}: written in {language}; only Python runs here")
    if "injected-parameters" in dict(tagged):
        raise UsageError(f"{where}: holds an injected-parameters cell, the mark of an executed copy; remove that cell")
    if len(declared) != 1:
        raise UsageError(f"{where}: needs one code cell tagged 'parameters', has {len(declared)}")
    try:
        parameters = {parameter.name: parameter for parameter in read_parameters(declared[0])}
    except ParameterError as error:
        raise UsageError(f"{where}: {error}") from None
    if parameters.pop(OUTPUT_DIR, None) is None:
        raise UsageError(f'{where}: its parameters cell needs `{OUTPUT_DIR}: str = ""`, where results are saved')
    digest = hashlib.sha256("\0".join(cell.source for cell in code).encode()).hexdigest()
    try:
        premises = [premise for tag, source in tagged if tag == "premises" for premise in read_premises(source)]
    except (ParameterError, SyntaxError) as error:
        raise UsageError(f"{where}: {_first_line(error)}") from None
    title = next(filter(None, headings(notebook)), path.stem)
    return Notebook(path.stem, title, parameters, premises, digest, text)


def _with_own_ids(text: str, notebook: nbformat.NotebookNode) -> str:
    """The text with an id for each cell that has none or another's, the same in every run: nbformat draws one."""
    given = [cell.get("id") for cell in json.loads(text)["cells"]]
    lacking = [i for i, name in enumerate(given) if name is None or name in given[:i]]
    for i in lacking:
        notebook.cells[i].id = next(name for n in itertools.count() if (name := f"cell-{i + n}") not in given)
        given[i] = notebook.cells[i].id
    return nbformat.writes(notebook) if lacking else text


def headings(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """For every cell the nearest heading above it."""
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S)
            heading = [heading, *re.findall(r"^#{1,6} +(.+?)[ #]*$", prose, flags=re.M)][-1]
        yield heading


def read_yaml(text: str, where: str) -> Any:
    """YAML by the rules of version 1.2, a duplicate key being an error; short, flat and without references."""
    if len(text) > LARGEST_TEXT:
        raise UsageError(f"{where}: {len(text):,} characters, allowed are {LARGEST_TEXT:,}; put arrays in a .npy file")
    try:
        _refuse_odd(text, where)
        return YAML(typ="safe", pure=True).load(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a date that is none
        raise UsageError(f"{where}: cannot be read: {_first_line(error)}") from None
    except YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line = f" in line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}: not valid YAML{line}: {_first_line(problem)}") from None


def _refuse_odd(text: str, where: str) -> None:
    """References, which may unfold without end, deep nesting, and other versions of YAML, where `no` is false."""
    depth = 0
    for event in YAML(pure=True).parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(f"{where}: holds an anchor or an alias (& or *), which is not allowed; write it out")
        if depth > DEEPEST:
            raise UsageError(f"{where}: nested more than {DEEPEST} deep")
        if isinstance(event, DocumentStartEvent) and event.version:
            raise UsageError(f"{where}: holds a %YAML line, which is not allowed; version 1.2 is read")


def read_mapping(path: Path, where: str) -> dict[str, Any]:
    """The flat mapping in a parameters file."""
    try:
        if path.stat().st_size > 4 * LARGEST_TEXT:
            raise UsageError(f"{where}: a file of {path.stat().st_size:,} bytes, which is no parameters file")
        values = read_yaml(path.read_text(encoding="utf-8"), where)
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror.lower()}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    if values is None:
        raise UsageError(f"{where}: is empty; write {{}} if no parameter is to be set")
    if not isinstance(values, dict):
        raise UsageError(f"{where}: must hold lines of `key: value`, holds a {type(values).__name__}")
    return values


def preset_sources(root: Path, preset: str, names: Iterable[str]) -> dict[str, Source]:
    """The preset's file of each notebook; a file without its notebook is an error, and the reverse."""
    folder, stems = root / "params" / preset, [path.stem for path in select(root)]
    known = [f"{stem}.yaml" for stem in stems]
    stray = [path.name for path in sorted(folder.glob("*.y*ml")) if path.name not in known]
    if stray:
        lines = (f"params/{preset}/{name}: no notebook{suggest(name.partition('.')[0], stems)}" for name in stray)
        raise UsageError(*lines)
    where = {name: f"params/{preset}/{name}.yaml" for name in names}
    return {name: Source(where[name], read_mapping(root / where[name], where[name]), folder) for name in names}


def read_setting(setting: str, notebooks: dict[str, Notebook]) -> tuple[str, Any, list[str]]:
    """Key, value and notebooks of ``[NN.]key=value``: one notebook, or every selected one that has the key."""
    left, equals, text = setting.partition("=")
    target, _, key = left.strip().rpartition(".")
    if not equals or not key:
        raise UsageError(f"--set {setting}: must read [NN.]key=value")
    meant = [name for name in notebooks if target in ("", name, name[:2])]
    if not meant:
        raise UsageError(f"--set {setting}: no such notebook{suggest(target, notebooks)}")
    takers = [name for name in meant if key in (*notebooks[name].parameters, OUTPUT_DIR)]
    if not takers:
        known = dict.fromkeys(itertools.chain(*(notebooks[name].parameters for name in meant)))
        raise UsageError(f"--set {setting}: no selected notebook has this key{suggest(key, known)}")
    return key, read_yaml(text, f"--set {setting}"), takers


def resolve(notebook: Notebook, preset: Source, *given: Source, mistakes: dict[str, None]) -> Task:
    """Apply the sources in order, each value checked; what is refused becomes a line in ``mistakes``."""
    known = notebook.parameters
    task = Task(notebook, {key: parameter.default for key, parameter in known.items()})
    for source in (preset, *given):
        for key, value in source.values.items():
            try:
                if key == OUTPUT_DIR:
                    raise ParameterError(f"{OUTPUT_DIR}: is set by run_all.py (choose the place with --output-root)")
                if key not in known:
                    raise ParameterError(f"{key!r} is no parameter of {task.name}{suggest(str(key), known)}")
                value = check_value(known[key], value, source.base)
                values = task.preset if source is preset else task.overrides
                values[key] = _renamed(value, partial(_copied, base=source.base, files=task.files))
            except ParameterError as error:
                mistakes[f"{source.where}: {error}"] = None
    if not mistakes:
        values = _renamed(task.parameters, lambda copy: str(task.files.get(copy, copy)))  # nothing is copied yet
        for premise in notebook.premises:
            setters = [source.where for source in (preset, *given) if set(premise.names) & set(source.values)]
            if problem := premise.broken(values):
                mistakes[f"{setters[-1] if setters else notebook.name}: {problem}"] = None
    return task


def _renamed(value: Any, names: Callable[[str], str]) -> Any:
    """The value with each file name in it replaced."""
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    return names(value) if file_names(value) else value


def _copied(name: str, base: Path, files: dict[str, Path]) -> str:
    """The name of the copy of a file that the notebook will find beside its results."""
    source = (base / name).resolve()
    copy, number = f"inputs/{source.name}", 1
    while files.setdefault(copy, source) != source:  # another file of the same name
        number += 1
        copy = f"inputs/{source.stem}_{number}{source.suffix}"
    return copy


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
