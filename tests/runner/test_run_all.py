"""The command as a stranger uses it: what it says, what it leaves, and how it ends."""

import os
import subprocess
import sys

import nbformat
import pytest
from tiny import CLAIM, REPOSITORY, Collection, notebook, save

from lib.notebook.files import read_json
from lib.runner.params import plan
from lib.runner.session import Session

# Results that would show any dependence on threads, on hashing, or on the order of notebooks.
SUMS = (
    "import numpy as np\nrng = np.random.default_rng(seed)\n"
    "a = rng.standard_normal((300, 300))\nvalue = float((a @ a.T).sum()) + float(np.linalg.norm(a @ a))\n"
    "order = list({'alpha', 'beta', 'gamma', 'delta'})"
)
METRICS = "{'sum': {'value': value, 'tolerance': 1e-6}, **{name: {'value': 0.0, 'tolerance': 0.0} for name in order}}"


def unsettled(name: str, verdict: str):
    return notebook(name, last=save(name, claims=[{**CLAIM, "verdict": verdict}]))


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    made = Collection(tmp_path_factory.mktemp("collection"))
    for name in ("01_sums", "02_sums", "03_sums"):
        made.add(name, notebook(name, SUMS, last=save(name, metrics=METRICS)))
    made.first = made.run("--preset", "quick", "--jobs", 1)
    assert made.first.returncode == 0, made.first
    made.accepted = made.run("--accept", made.runs[0].name, "--force")
    made.second = made.run("--preset", "quick", "--jobs", 3)
    return made


def test_same_parameters_give_the_same_bytes_whatever_jobs_is(collection):
    assert collection.second.returncode == 0, collection.second
    for name in ("01_sums", "02_sums", "03_sums"):
        one, two = ((run / name / "results.json").read_bytes() for run in collection.runs)
        assert one == two


def test_a_run_is_compared_with_the_reference_by_itself(collection):
    assert collection.accepted.stdout == f"{collection.runs[0].name} is now the reference\n"
    assert "compared with" not in collection.first.stdout
    assert "compared with reference: 18 quantities, 0 different" in collection.second.stdout
    assert "Compared with reference" in (collection.runs[1] / "index.html").read_text()


def test_a_run_leaves_what_it_promises(collection):
    folder = collection.runs[0] / "02_sums"
    names = {path.name for path in folder.iterdir()}
    assert names == {"02_sums.ipynb", "02_sums.html", "results.json", "parameters.yaml", "status.json"}
    assert {path.name for path in collection.runs[0].iterdir() if path.is_file()} == {
        "index.html",
        "run.json",
        "timings.json",
    }
    run = read_json(collection.runs[0] / "run.json")
    assert (run["status"], run["exit_code"], run["preset"]) == ("ok", 0, "quick")
    assert {"commit", "dirty", "python", "platform", "machine", "device", "versions", "seed"} <= run.keys()
    assert run["versions"]["papermill"] and run["seed"] == {"01_sums": 0, "02_sums": 0, "03_sums": 0}
    assert list(read_json(collection.runs[0] / "timings.json")) == ["01_sums", "02_sums", "03_sums"]


def test_it_says_how_long_it_will_take_once_it_knows(collection):
    assert "time unknown for 3 of them" in collection.first.stdout
    assert "3 notebooks, quick preset: about 0:0" in collection.second.stdout


def test_a_difference_is_told_and_fails(collection):
    answer = collection.run("--preset", "quick", "--only", "02", "--set", "seed=1", "--compare", "reference")
    assert answer.returncode == 1, answer
    assert "02_sums: other seed" in answer.stdout
    assert "1 different" in answer.stdout and "x tolerance" in answer.stdout
    answer = collection.run("--preset", "quick", "--only", "02", "--set", "seed=1")
    assert answer.returncode == 0, answer
    assert "02_sums: other seed; not compared" in answer.stdout


@pytest.mark.parametrize(("preset", "code"), [("quick", 0), ("paper", 1)])
def test_an_inconclusive_claim_fails_the_paper_preset_only(tmp_path, preset, code):
    made = Collection(tmp_path)
    made.add("01_open", unsettled("01_open", "INCONCLUSIVE"))
    answer = made.run("--preset", preset)
    assert answer.returncode == code, answer
    assert "1 claims: 1 INCONCLUSIVE" in answer.stdout


def test_a_failing_claim_fails_the_run(tmp_path):
    made = Collection(tmp_path)
    made.add("01_wrong", unsettled("01_wrong", "FAIL"))
    answer = made.run("--preset", "quick")
    assert answer.returncode == 1, answer
    assert made.status("01_wrong")["status"] == "ok"
    assert read_json(made.runs[0] / "run.json")["status"] == "failed"


def test_without_the_packages_one_line_says_what_to_do(tmp_path):
    for script in (REPOSITORY / "run_all.py", Collection(tmp_path).root / "run_all.py"):
        command = [sys.executable, "-S", str(script), "--help"]
        answer = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, timeout=60)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert answer.stderr.count("\n") == 1
        assert "make setup" in answer.stderr and ".venv/bin/python run_all.py" in answer.stderr


def test_a_check_imports_nothing_heavy(tmp_path):
    command = Collection(tmp_path, "01_first").command("--check")
    command["args"].insert(1, "-Ximporttime")
    answer = subprocess.run(**command, capture_output=True, timeout=60)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in answer.stderr.splitlines()}
    assert "papermill" in imported and answer.returncode == 0
    assert not imported & {"torch", "scipy", "matplotlib", "pandas"}


def test_a_session_is_read_without_a_word_and_before_anything_is_written(tmp_path, capsys):
    Collection(tmp_path, "01_first")
    folder = tmp_path / "run"
    folder.mkdir()
    made = Session.read(tmp_path, folder, 0, "quick", plan(tmp_path, "quick"))
    assert made.again == {"01_first": ["not started"]}
    assert made.summary["notebooks"]["01_first"]["error"] == "not started"
    assert capsys.readouterr().out == "" and not list(folder.iterdir())


@pytest.mark.parametrize("ids", [[None, None, None, None], ["a", "b", "a", "cell-2"]])
def test_cells_without_an_id_of_their_own_get_the_same_in_every_run(tmp_path, ids):
    made = notebook("01_first", "1 + 1")
    for cell, name in zip(made.cells, ids, strict=True):
        cell.pop("id")
        cell |= {"id": name} if name else {}
    collection = Collection(tmp_path / "c", n01_first=made)
    answer = [collection.run("--preset", "quick") for _ in range(2)]
    assert [(a.returncode, a.stderr) for a in answer] == [(0, "")] * 2
    written = [nbformat.read(run / "01_first/01_first.ipynb", as_version=4).cells for run in collection.runs]
    kept = [[cell.id for cell in cells if "injected-parameters" not in cell.metadata.tags] for cells in written]
    assert kept[0] == kept[1] and len(set(kept[0])) == 4


def test_help_fits_a_screen(tmp_path):
    code, out, _ = Collection(tmp_path).check("--help")
    assert code == 0
    assert out.count("\n") <= 45
    assert max(map(len, out.splitlines())) <= 120


THREADS = """import pathlib, numpy as np, torch
numbers = torch.from_numpy(np.random.default_rng(seed).standard_normal((600, 600)))
value = float((numbers @ numbers).norm() + numbers.sum())
pathlib.Path("threads").write_text(str(torch.get_num_threads()))"""
SUM = "{'sum': {'value': value, 'tolerance': 1e-6}}"


class Again:
    """The collection's first notebook and one that sums on several threads, with a library of their own."""

    def __init__(self, root):
        self.made = Collection(root).keep_library()
        (source,) = REPOSITORY.glob("notebooks/01_*.ipynb")
        self.made.add(source.stem, source.read_text(encoding="utf-8"))
        values = REPOSITORY / f"params/quick/{source.stem}.yaml"
        self.made.params(source.stem, values.read_text(encoding="utf-8"), "quick")
        self.made.add("02_threads", notebook("02_threads", THREADS, last=save("02_threads", metrics=SUM)))
        self.first = self.run()

    def run(self, *arguments, core: str = "Haswell", change: tuple[str, str, str] | None = None):
        """Run it on matrix kernels of OpenBLAS, with one line of the library changed."""
        command = self.made.command("--preset", "quick", *arguments)
        command["env"]["OPENBLAS_CORETYPE"] = core
        if change:
            file, old, new = change
            path = self.made.root / "lib" / file
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1
            path.write_text(text.replace(old, new), encoding="utf-8")
        answer = subprocess.run(**command, capture_output=True, timeout=400)
        if change:
            path.write_text(text, encoding="utf-8")
        return answer

    def compare(self, **change) -> None:
        """Run it changed, and find the same within the tolerances."""
        answer = self.run("--compare", self.made.runs[0].name, **change)
        assert answer.returncode == 0, answer
        assert ", 0 different" in answer.stdout and "warning" not in answer.stdout

    def threads(self) -> str:
        return (self.made.runs[-1] / "02_threads/threads").read_text()


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    made = Again(tmp_path_factory.mktemp("again"))
    assert made.first.returncode == 0, made.first
    assert made.threads() == "1"
    return made


def test_another_blas_kernel_stays_within_the_tolerances(again):
    again.compare(core="Prescott")


def test_another_number_of_threads_stays_within_the_tolerances(again):
    again.compare(change=("runner/execute.py", 'dict.fromkeys(SINGLE, "1")', 'dict.fromkeys(SINGLE, "2")'))
    assert again.threads() == "2"


def test_another_seed_of_the_bootstrap_stays_within_the_tolerances(again):
    again.compare(change=("prompts/curve.py", "rng.integers(groups, size", "rng.spawn(1)[0].integers(groups, size"))
    records = [read_json(next(run.glob("01_*/results.json"))) for run in (again.made.runs[0], again.made.runs[-1])]
    first, last = ([claim["interval"] for claim in record["claims"]] for record in records)
    assert first != last
