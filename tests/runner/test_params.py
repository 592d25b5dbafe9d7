"""Everything that is refused before a kernel starts: one line, exit code 2, no folder; and who wins otherwise."""

import json

import numpy as np
import pytest
import yaml
from tiny import PARAMETERS, REPOSITORY, Collection, notebook

from lib.runner.params import plan, read_mapping

TWO = ("01_first", "02_second")
SHAPES = 'size: int = 2\nn: int = 3\nratio: float = 0.5\nname: str = "a"\nmatrix: Covariance = "isotropic"\n'


@pytest.fixture
def collection(tmp_path):
    """In a folder whose name has spaces and braces, which papermill would format."""
    made = Collection(tmp_path / "a folder {with} braces", *TWO)
    made.add("03_shapes", notebook("03_shapes", parameters=SHAPES + PARAMETERS.partition("\n")[2]))
    return made


def refusal(collection, *arguments) -> str:
    code, out, err = collection.check(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert not collection.runs
    return err.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m: 4", "params/paper/01_first.yaml: 'm' is no parameter of 01_first; known: n, seed"),
        ("sed: 4", "params/paper/01_first.yaml: 'sed' is no parameter of 01_first; did you mean 'seed'?"),
        ("n: three", "params/paper/01_first.yaml: n: received 'three', should be a valid integer; allowed: int"),
        ("n: 1.5", "params/paper/01_first.yaml: n: received 1.5, should be a valid integer; allowed: int"),
        ("n: .nan", "params/paper/01_first.yaml: n: received nan, should be a valid integer; allowed: int"),
        ("n:", "params/paper/01_first.yaml: n: received None, should be a valid integer; allowed: int"),
        ("n: 1\nn: 2", 'params/paper/01_first.yaml: not valid YAML in line 2: found duplicate key "n"'),
        ("n: 2020-01-01", "params/paper/01_first.yaml: n: received datetime.date(2020, 1, 1), which YAML reads as"),
        ("n: {1: 2}", "params/paper/01_first.yaml: n: received {1: 2}, the key 1 inside it must be text"),
        ("1: 2", "params/paper/01_first.yaml: 1 is no parameter of 01_first; known: n, seed"),
        ("lambda: 2", "params/paper/01_first.yaml: 'lambda' is no parameter of 01_first"),
        ("output_dir: x", "params/paper/01_first.yaml: output_dir: is set by run_all.py"),
        ("", "params/paper/01_first.yaml: is empty; write {} if no parameter is to be set"),
        ("# nothing\n", "params/paper/01_first.yaml: is empty; write {} if no parameter is to be set"),
        ("- n", "params/paper/01_first.yaml: must hold lines of `key: value`, holds a list"),
        ("n", "params/paper/01_first.yaml: must hold lines of `key: value`, holds a str"),
        ("n: [1, 2", "params/paper/01_first.yaml: not valid YAML in line 1: "),
        ("n: 1\n---\nn: 2", "params/paper/01_first.yaml: not valid YAML in line 2: "),
        ("n: !!python/name:os.system x", "params/paper/01_first.yaml: not valid YAML in line 1: "),
        (b"n: \xff", "params/paper/01_first.yaml: not UTF-8 text: invalid start byte at byte 3"),
    ],
)
def test_a_parameters_file_that_is_refused(collection, text, message):
    collection.params("01_first", text)
    assert refusal(collection).startswith(message)


def test_a_parameters_file_without_its_notebook_and_the_reverse(collection):
    stray = collection.params("04_thrid", "{}")
    assert refusal(collection) == "params/paper/04_thrid.yaml: no notebook; known: 01_first, 02_second, 03_shapes"
    stray.unlink()
    misnamed = collection.params("01_first", "{}").rename(stray.with_name("01_first.yml"))
    assert refusal(collection).startswith("params/paper/01_first.yml: no notebook; did you mean '01_first'?")
    misnamed.unlink()
    assert refusal(collection) == "params/paper/01_first.yaml: cannot be read: no such file or directory"


def changed(**changes):
    made = notebook("01_first")
    made.update(changes)
    return made


def with_cells(*cells, drop: int | None = None):
    made = notebook("01_first")
    if drop is not None:
        del made.cells[drop]
    made.cells += cells
    return made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (with_cells(drop=1), "needs one code cell tagged 'parameters', has 0"),
        (with_cells({**notebook("x").cells[1], "id": "second"}), "needs one code cell tagged 'parameters', has 2"),
        (
            with_cells({**notebook("x").cells[1], "metadata": {"tags": ["injected-parameters"]}, "id": "injected"}),
            "holds an injected-parameters cell, the mark of an executed copy; remove that cell",
        ),
        (notebook("x", parameters="n: int = 1"), 'its parameters cell needs `output_dir: str = ""`'),
        (notebook("x", parameters="n = 1"), "line 1 must read `name: type = literal`, received 'n = 1'"),
        (notebook("x", parameters="n: int = 1\nm: int = 2 * n"), "m: the default must be a literal"),
        (notebook("x", parameters="sum: int = 1"), "sum: a parameter must not have the name of a builtin"),
        (changed(metadata={"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}), "written in R"),
        ("{", "not a valid notebook: "),
        ("[]", "not a valid notebook: "),
    ],
)
def test_a_notebook_that_is_refused(collection, made, message):
    collection.add("01_first", made)
    assert refusal(collection).startswith(f"notebooks/01_first.ipynb: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "07"], "--only 07: no such notebook; known: 01_first, 02_second, 03_shapes"),
        (["--only", "03_shape"], "--only 03_shape: no such notebook; did you mean '03_shapes'?"),
        (["--set", "n"], "--set n: must read [NN.]key=value"),
        (["--set", "=3"], "--set =3: must read [NN.]key=value"),
        (["--set", "rati=3"], "--set rati=3: no selected notebook has this key; did you mean 'ratio'?"),
        (["--set", "01.ratio=3"], "--set 01.ratio=3: no selected notebook has this key; known: n, seed"),
        (["--only", "01", "--set", "ratio=3"], "--set ratio=3: no selected notebook has this key; known: n, seed"),
        (["--set", "07.n=3"], "--set 07.n=3: no such notebook; known: "),
        (["--set", "03.ratio=[1"], "--set 03.ratio=[1: not valid YAML in line 1: "),
        (["--set", "03.ratio=.inf"], "--set 03.ratio=.inf: ratio: received inf, should be a finite number; allowed"),
        (["--set", "03.n=x"], "--set 03.n=x: n: received 'x', should be a valid integer; allowed: int"),
        (["--set", "03.matrix=x.npy"], "--set 03.matrix=x.npy: matrix: received 'x.npy', there is no file 'x.npy' in"),
        (["--set", "output_dir=x"], "--set output_dir=x: output_dir: is set by run_all.py"),
        (["--params", "gone.yaml"], "--params gone.yaml: name it after its notebook, or select one with --only"),
        (["--params", "01_first.yaml"], "01_first.yaml: cannot be read: no such file or directory"),
        (["--resume", "gone"], "gone: no such run; known: none"),
        (["--resume", "gone", "--only", "01"], "--resume: goes with none of --preset --only --params --set"),
        (["--compare", "reference"], "reference: no such run; known: none"),
        (["--accept", "gone"], "gone: no such run; known: none"),
        (["--describe", "3"], "--only 3: no such notebook; known: "),
        (["--jobs", "0"], "run_all.py: argument --jobs: a whole number from 1 is needed, received '0'"),
        (["--presets", "quick"], "run_all.py: unrecognized arguments: --presets quick; did you mean '--preset'?"),
        (["--preset", "big"], "run_all.py: argument --preset: invalid choice: 'big'"),
    ],
)
def test_a_command_that_is_refused(collection, monkeypatch, arguments, message):
    monkeypatch.chdir(collection.root)
    assert refusal(collection, *arguments).startswith(message)


def test_every_mistake_is_told_at_once(collection):
    collection.params("01_first", "n: x\nm: 1")
    code, _, err = collection.check("--set", "03.n=x")
    assert code == 2
    assert [line.split(": ")[0] for line in err.splitlines()] == ["params/paper/01_first.yaml"] * 2 + ["--set 03.n=x"]


def test_the_last_source_wins(collection, tmp_path):
    collection.params("03_shapes", "n: 10\nratio: 1\nsize: 1e1")
    mine = tmp_path / "03_shapes.yaml"
    mine.write_text("ratio: 2\nname: b = c\n")
    task = plan(collection.root, "paper", ["03"], [mine], ["03.name=x=y", "size=7", "03_shapes.size=8"])[0]
    expected = {"size": 8, "n": 10, "ratio": 2.0, "name": "x=y", "matrix": "isotropic", "seed": 0}
    assert task.parameters == expected
    assert task.preset == {**expected, "ratio": 1.0, "name": "a", "size": 10}
    assert task.overrides == {"ratio": 2.0, "name": "x=y", "size": 8}


def test_set_reaches_every_selected_notebook_that_has_the_key(collection):
    tasks = plan(collection.root, "paper", settings=["seed=5", "02.n=9", "size=1"])
    assert [task.parameters["seed"] for task in tasks] == [5, 5, 5]
    assert [task.parameters["n"] for task in tasks] == [3, 9, 3]
    assert tasks[2].parameters["size"] == 1


def test_a_params_file_of_any_name_for_the_only_notebook_selected(collection, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("n: 4\n")
    assert plan(collection.root, "paper", ["02"], [mine])[0].parameters["n"] == 4


def test_files_are_copied_beside_the_results_under_their_own_names(collection, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "c.npy", np.eye(2))
    cell = 'covariances: list[Covariance] = ["isotropic"]\noutput_dir: str = ""'
    collection.add("01_first", notebook("01_first", parameters=cell))
    mine = tmp_path / "mine.yaml"
    mine.write_text("covariances: [a/c.npy, b/c.npy, ./a/c.npy, isotropic]")
    task = plan(collection.root, "paper", ["01"], [mine])[0]
    assert task.parameters["covariances"] == ["inputs/c.npy", "inputs/c_2.npy", "inputs/c.npy", "isotropic"]
    assert task.files == {"inputs/c.npy": tmp_path / "a/c.npy", "inputs/c_2.npy": tmp_path / "b/c.npy"}


def test_check_list_and_describe_start_nothing(collection):
    assert collection.check("--check") == (0, "in order: 3 notebooks with the paper preset\n", "")
    code, out, _ = collection.check("--list", "--preset", "quick")
    assert (code, out.splitlines()[1]) == (0, "01_first   unknown  Title of 01_first")
    collection.params("03_shapes", "n: 12")
    code, out, _ = collection.check("--describe", "03")
    assert code == 0
    assert "n = 3   (here 12)" in out
    assert "seed = 0\n    root of all draws\n    int" in out
    assert "Covariance (isotropic, toeplitz(0.5)" in out
    assert not collection.runs


def test_yaml_follows_version_1_2(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("a: 1e-3\nb: yes\nc: 010\nd: 1:30\ne: [1., .5]\nf: ~\n")
    assert read_mapping(path, "p") == {"a": 0.001, "b": "yes", "c": 10, "d": "1:30", "e": [1.0, 0.5], "f": None}


def test_plain_papermill_reads_the_shipped_files_the_same():
    files = sorted(REPOSITORY.glob("params/*/*.yaml"))
    assert files
    for path in files:
        ours = json.dumps(read_mapping(path, path.name))
        assert ours == json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_the_shipped_notebooks_and_parameters_are_in_order(preset):
    tasks = plan(REPOSITORY, preset)
    assert tasks
    if preset == "quick":  # the defaults are those of the quick preset, so that Run All takes seconds
        for task in tasks:
            assert task.parameters == {n: p.default for n, p in task.notebook.parameters.items() if n != "output_dir"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [1]\nb: *a", "holds an anchor or an alias"),
        ("a: &a [*a]", "holds an anchor or an alias"),
        ("n: " + "9" * 5000, "cannot be read: Exceeds the limit"),
        ("n: " + "[" * 12 + "]" * 12, "nested more than 10 deep"),
        ("n: " + "[" * 3000, "nested more than 10 deep"),
        ("%YAML 1.1\n---\nn: 1", "holds a %YAML line"),
        ("# " + "x" * 200_000, "characters, allowed are 200,000"),
        ("# " + "x" * 900_000, "which is no parameters file"),
        ('n: "\\uD800"', ""),
        ("n: 2024-02-31", ""),
    ],
)
def test_odd_yaml_is_refused_in_one_line(tmp_path, text, said):
    made = Collection(tmp_path, "01_one")
    path = made.params("01_one", text)
    code, out, error = made.check("--check")
    assert (code, out) == (2, "") and error.count("\n") == 1 and len(error) < 300
    assert error.startswith(f"params/paper/{path.name}: ") and said in error


def test_files_on_the_command_line_are_relative_to_the_working_directory(tmp_path, monkeypatch):
    parameters = 'gamma: Covariance = "isotropic"\noutput_dir: str = ""\n'
    made = Collection(tmp_path / "made", n01_one=notebook("01_one", parameters=parameters))
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "here/gamma.npy", np.eye(2))
    monkeypatch.chdir(tmp_path / "here")
    assert made.check("--check", "--set", "gamma=gamma.npy")[0] == 0
    made.params("01_one", "gamma: gamma.npy")
    code, _, error = made.check("--check")
    assert code == 2 and "there is no file 'gamma.npy'" in error
