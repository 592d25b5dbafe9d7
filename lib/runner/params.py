"""What will run: the selected notebooks and their parameters, all of it checked before any kernel starts.

A parameter has the value of the last of these that names it: the notebook's default, the preset's file, ``--params``,
``--set``. Every mistake becomes one line that says where it is, what was given and what is allowed.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ..parameters import Parameter, ParameterError, check_value, file_names, read_parameters, suggest

PRESETS = ("paper", "quick")
OUTPUT_DIR = "output_dir"  # the parameter that the runner itself sets


class UsageError(Exception):
    """What the user must change, one line each; nothing has been started."""

    def __init__(self, *lines: str):
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True)
class Notebook:
    """A source notebook: its name as ``02_concentration``, its title, its parameters and a digest of its code."""

    path: Path
    title: str
    parameters: dict[str, Parameter]
    code: str

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Source:
    """Values for one notebook from one place; file names in them are relative to ``base``."""

    where: str
    notebook: str
    values: dict[str, Any]
    base: Path


@dataclass
class Task:
    """One notebook with its resolved parameters; ``files`` maps each ``inputs/<name>`` to the file it is a copy of."""

    notebook: Notebook
    parameters: dict[str, Any]
    preset: dict[str, Any]
    overrides: dict[str, Any]
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.notebook.name


def select(root: Path, only: Iterable[str] = ()) -> list[Path]:
    """The notebooks to run, in order: all, or those given by number or name."""
    paths = sorted(root.glob("notebooks/*.ipynb"))
    odd = [path.name for path in paths if not re.fullmatch(r"\d\d_\w+", path.stem)]
    if odd or not paths:
        raise UsageError(*(f"notebooks/{name}: must be named NN_name.ipynb" for name in odd or ["(none found)"]))
    chosen = set()
    for word in only:
        hits = [path for path in paths if word in (path.stem, path.stem[:2])]
        if len(hits) != 1:
            hint = suggest(word, [path.stem for path in paths]) if not hits else "; several have this number"
            raise UsageError(f"--only {word}: no such notebook{hint}" if not hits else f"--only {word}{hint}")
        chosen.add(hits[0])
    return [path for path in paths if path in chosen or not chosen]


def load(path: Path) -> Notebook:
    """Read a notebook and its parameters cell, without running anything."""
    where = f"notebooks/{path.name}"
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # bad JSON, bad encoding, not a notebook: the reason is in the message
        raise UsageError(f"{where}: not a valid notebook: {_first_line(error)}") from None
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    if language != "python":
        raise UsageError(f"{where}: written in {language}; only python notebooks run here")
    if any("injected-parameters" in cell.metadata.get("tags", []) for cell in code):
        raise UsageError(f"{where}: holds an injected-parameters cell, the mark of an executed copy; remove that cell")
    if len(tagged) != 1:
        raise UsageError(f"{where}: needs one code cell tagged 'parameters', has {len(tagged)}")
    try:
        parameters = {parameter.name: parameter for parameter in read_parameters(tagged[0].source)}
    except ParameterError as error:
        raise UsageError(f"{where}: {error}") from None
    if OUTPUT_DIR not in parameters:
        raise UsageError(f'{where}: its parameters cell needs `{OUTPUT_DIR}: str = ""`, where results are saved')
    title = next((line for _, line in headings(notebook) if line), path.stem)
    digest = hashlib.sha256("\0".join(cell.source for cell in code).encode()).hexdigest()
    return Notebook(path, title, parameters, digest)


def headings(notebook: nbformat.NotebookNode) -> Iterator[tuple[int, str]]:
    """For every cell its index and the nearest heading above it."""
    heading = ""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S)
            found = re.findall(r"^#{1,6} +(.+?)[ #]*$", prose, flags=re.M)
            heading = found[-1] if found else heading
        yield index, heading


def read_yaml(text: str, where: str) -> Any:
    """YAML by the rules of version 1.2, a duplicate key being an error."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or _first_line(error)
        raise UsageError(f"{where}: not valid YAML{line}: {_first_line(problem)}") from None


def read_mapping(path: Path, where: str) -> dict[str, Any]:
    """The flat mapping in a parameters file."""
    try:
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


def preset_sources(root: Path, preset: str, names: list[str]) -> list[Source]:
    """The preset's files of some notebooks; a file without its notebook is an error, and the reverse."""
    folder = root / "params" / preset
    stems = sorted(path.stem for path in root.glob("notebooks/*.ipynb"))
    stray = [p.name for p in sorted(folder.glob("*.y*ml")) if p.suffix != ".yaml" or p.stem not in stems]
    if stray:
        raise UsageError(*(f"params/{preset}/{name}: no notebook{suggest(Path(name).stem, stems)}" for name in stray))
    where = [f"params/{preset}/{name}.yaml" for name in names]
    return [Source(w, n, read_mapping(root / w, w), folder) for w, n in zip(where, names, strict=True)]


def file_sources(files: Iterable[Path], names: list[str]) -> list[Source]:
    """``--params FILE``: its stem names the notebook, or else exactly one notebook must be selected."""
    sources = []
    for path in files:
        if path.stem not in names and len(names) != 1:
            raise UsageError(f"--params {path}: name it after its notebook, or select one with --only")
        name = path.stem if path.stem in names else names[0]
        sources.append(Source(str(path), name, read_mapping(path, str(path)), path.parent))
    return sources


def set_sources(settings: Iterable[str], notebooks: list[Notebook], sources: list[Source]) -> list[Source]:
    """``--set [NN.]key=value``: one notebook, or every selected one that has the key."""
    bases = {source.notebook: source.base for source in sources}  # the last one that names it
    found = []
    for setting in settings:
        left, equals, text = setting.partition("=")
        target, _, key = left.strip().rpartition(".")
        if not equals or not key:
            raise UsageError(f"--set {setting}: must read [NN.]key=value")
        candidates = [n for n in notebooks if target in ("", n.name, n.name[:2])]
        if not candidates:
            raise UsageError(f"--set {setting}: no such notebook{suggest(target, [n.name for n in notebooks])}")
        value = read_yaml(text, f"--set {setting}")
        takers = [n for n in candidates if key in n.parameters]
        if not takers:
            known = dict.fromkeys(k for n in candidates for k in n.parameters if k != OUTPUT_DIR)
            raise UsageError(f"--set {setting}: no selected notebook has this key{suggest(key, known)}")
        found += [Source(f"--set {setting}", n.name, {key: value}, bases[n.name]) for n in takers]
    return found


def resolve(notebook: Notebook, preset: list[Source], given: list[Source]) -> Task:
    """Apply all sources in order, each value checked. Raises UsageError with a line for each mistake."""
    mistakes: list[str] = []
    defaults = {key: p.default for key, p in notebook.parameters.items() if key != OUTPUT_DIR}
    task = Task(notebook, dict(defaults), dict(defaults), {})
    for source in [*preset, *given]:
        if source.notebook != notebook.name:
            continue
        for key, value in source.values.items():
            try:
                value = _checked(notebook, key, value, source.base)
            except ParameterError as error:
                mistakes.append(f"{source.where}: {error}")
                continue
            value = _with_inputs(value, source.base, task.files)
            task.parameters[key] = value
            if source in preset:
                task.preset[key] = value
            else:
                task.overrides[key] = value
    if mistakes:
        raise UsageError(*mistakes)
    used = file_names(list(task.parameters.values()))
    task.files = {name: path for name, path in task.files.items() if name in used}
    return task


def plan(
    root: Path,
    preset: str,
    only: Iterable[str] = (),
    files: Iterable[Path] = (),
    settings: Iterable[str] = (),
    recorded: Iterable[Source] = (),
) -> list[Task]:
    """All that will run, or UsageError with every mistake found. ``recorded`` are the overrides of a resumed run."""
    notebooks = [load(path) for path in select(root, only)]
    names = [notebook.name for notebook in notebooks]
    presets = preset_sources(root, preset, names)
    given = [*recorded, *file_sources(files, names)]
    given += set_sources(settings, notebooks, presets + given)
    tasks, mistakes = [], []
    for notebook in notebooks:
        try:
            tasks.append(resolve(notebook, presets, given))
        except UsageError as error:
            mistakes += error.lines
    if mistakes:
        raise UsageError(*dict.fromkeys(mistakes))
    return tasks


def _checked(notebook: Notebook, key: Any, value: Any, base: Path) -> Any:
    if key == OUTPUT_DIR:
        raise ParameterError(f"{OUTPUT_DIR}: is set by run_all.py (choose the place with --output-root)")
    if key not in notebook.parameters:
        known = [name for name in notebook.parameters if name != OUTPUT_DIR]
        raise ParameterError(f"{key!r} is no parameter of {notebook.name}{suggest(str(key), known)}")
    return check_value(notebook.parameters[key], value, base)


def _with_inputs(value: Any, base: Path, files: dict[str, Path]) -> Any:
    """The value with each file name replaced by that of the copy the notebook will find beside its results."""
    if isinstance(value, list):
        return [_with_inputs(item, base, files) for item in value]
    if isinstance(value, dict):
        return {key: _with_inputs(item, base, files) for key, item in value.items()}
    if not file_names(value):
        return value
    source = (base / value).resolve()
    name, number = f"inputs/{source.name}", 1
    while files.get(name, source) != source:  # another file of the same name
        number += 1
        name = f"inputs/{source.stem}_{number}{source.suffix}"
    files[name] = source
    return name


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
