"""Every notebook keeps the form that its readers, papermill and a small diff rely on."""

import ast
import json
import re
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from ruamel.yaml import YAML

from lib.notebook.parameters import read_parameters

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PRESETS = [ROOT / "params" / preset / f"{path.stem}.yaml" for preset in ("paper", "quick") for path in NOTEBOOKS]
by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind="code"):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def parameters_cell(path):
    (cell,) = [cell for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]
    return cell


def test_there_are_notebooks_and_each_has_its_presets():
    assert NOTEBOOKS
    names = {path.stem for path in NOTEBOOKS}
    for preset in ("paper", "quick"):
        assert {path.stem for path in (ROOT / "params" / preset).glob("*.yaml")} == names


@by_name
def test_source_is_valid_stripped_and_stable(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in cells(path))
    identifiers = [cell.id for cell in notebook.cells]
    assert len(set(identifiers)) == len(identifiers)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in identifiers), "an id is a name, so that diffs stay small"
    assert json.loads(path.read_text(encoding="utf-8"))["nbformat_minor"] == 5


@by_name
def test_cells_are_short_and_define_no_long_function(path):
    for cell in cells(path):
        is_list = "parameters" in cell.metadata.get("tags", [])  # one line a parameter
        assert is_list or len(cell.source.splitlines()) <= 15, cell.id
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 5, f"{cell.id}: {node.name} belongs in lib"


@by_name
def test_every_section_says_something(path):
    """A heading is followed by prose in its own cell; the first cell states the result, the last what is missing."""
    prose = [cell.source for cell in cells(path, "markdown")]
    for text in prose:
        body = re.sub(r"^#{1,6} .*$", "", text, flags=re.MULTILINE).strip()
        assert len(body) >= 40, f"{text!r} says nothing"
    assert re.search(r"^\*\*.+\*\*$", prose[0], flags=re.MULTILINE), "the title states the result in bold"
    assert "What was not shown" in prose[-1]


@by_name
def test_the_computation_is_in_sight_before_the_experiments(path):
    """One prompt, or one step, by hand: a cell that needs no experiment comes before the first that does."""
    order = [cell.id for cell in cells(path)]
    first = next(cell.id for cell in cells(path) if re.search(r"results\.(table|figure|judge)\(", cell.source))
    assert order.index("in-sight") < order.index(first)
    (shown,) = [cell.source for cell in cells(path) if cell.id == "in-sight"]
    assert "print(" in shown and "experiments" not in shown


@by_name
def test_claims_are_called_by_name(path):
    source = "\n".join(cell.source for cell in cells(path))
    assert not re.search(r"claims\[\d", source)
    declared, judged = (re.findall(p, source) for p in (r'Claim\("([\w-]+)"', r'\.judge\(\s*f?"([^"]+)"'))
    assert len(set(declared)) == len(declared)
    plain = {name for name in judged if "{" not in name}
    assert plain <= set(declared), plain - set(declared)


@by_name
def test_every_claim_is_declared_before_anything_is_computed(path):
    """Declarations come first; a figure, a table or a verdict after them."""
    source = "\n".join(cell.source for cell in cells(path))
    first_result = min(
        source.find(word) for word in ("results.table(", "results.judge(", "results.figure(") if word in source
    )
    assert source.rfind("results.declare(") < first_result
    assert "results.save()" in cells(path)[-1].source


@by_name
def test_papermill_reads_the_same_parameters_as_we_do(path):
    ours = {p.name: p for p in read_parameters(parameters_cell(path).source)}
    theirs = papermill.inspect_notebook(str(path))
    assert list(theirs) == list(ours)
    assert {name: theirs[name]["help"] for name in ours} == {name: p.help for name, p in ours.items()}
    assert all(p.help for p in ours.values()), "every parameter says what it is"


@by_name
def test_the_quick_preset_is_the_default(path):
    ours = {p.name: p.default for p in read_parameters(parameters_cell(path).source) if p.name != "output_dir"}
    assert YAML(typ="safe").load(ROOT / "params" / "quick" / f"{path.stem}.yaml") == ours


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_papermill_reads_the_same_values_as_we_do(path):
    """Plain papermill reads YAML 1.1, run_all.py 1.2: the shipped files mean the same to both."""
    ours = YAML(typ="safe").load(path)
    theirs = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert ours == theirs
    assert json.dumps(ours) == json.dumps(theirs), "types differ"
