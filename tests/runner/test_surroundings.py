"""A run survives its surroundings: closed pipes, poor locales, damaged folders, and a lib that is not its own."""

import shutil
import subprocess

import pytest
from tiny import Collection

from lib.notebook.files import read_json

SHOWS_LIB = "import lib\nprint('lib of', lib.__file__)"


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Two notebooks that have run once."""
    made = Collection(
        tmp_path_factory.mktemp("surroundings"), "01_first", n02_greek=["# σ", "print('σ', open('σ', 'w'))"]
    )
    assert made.run("--preset", "quick").returncode == 0
    return made


@pytest.mark.parametrize("where", ["| head -1", "> /dev/full", ">&-"])
def test_output_that_goes_nowhere_costs_nothing(collection, where):
    command = collection.command("--preset", "quick", "--only", "01")
    shell = " ".join(command.pop("args")) + f" {where}"
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", shell], **command, stderr=subprocess.PIPE, timeout=300)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert read_json(collection.runs[-1] / "run.json")["status"] == "ok"


def test_a_locale_that_knows_few_letters(collection):
    command = collection.command("--preset", "quick", "--only", "02")
    command["env"] |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    answer = subprocess.run(**command, capture_output=True, timeout=300)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\\u03c3" in answer.stdout, "the heading, escaped"


def test_what_is_damaged_is_executed_again_and_troubles_no_other(collection):
    """A notebook whose folder cannot be removed fails alone; damaged records cost the repetition of their notebook."""
    run = collection.runs[0]
    (run / "01_first/status.json").write_text('{"status": "ok"')
    answer = collection.run("--resume", run.name)
    assert answer.returncode == 0, answer
    assert "01_first  again: its status.json is damaged or not ours" in answer.stdout
    assert "02_greek  kept" in answer.stdout
    (run / "02_greek/results.json").write_text("")
    answer = collection.run("--resume", run.name)
    assert answer.returncode == 0, answer
    assert "02_greek  again: its results.json is malformed" in answer.stdout
    shutil.rmtree(run / "01_first")
    (run / "01_first").touch()  # not a folder, so that it can neither be removed nor made
    (run / "02_greek/results.json").unlink()
    answer = collection.run("--resume", run.name)
    assert answer.returncode == 1, answer
    record = read_json(run / "run.json")
    assert record["status"] == "failed"
    assert [record["notebooks"][name]["status"] for name in ("01_first", "02_greek")] == ["failed", "ok"]
    assert record["notebooks"]["01_first"]["error"].startswith("NotADirectoryError")


def test_the_lib_beside_run_all_is_the_one_that_runs(tmp_path):
    """Of a copied clone too, whatever is installed and whatever is on the path of the user."""
    made = Collection(tmp_path / "copy", n01_shows=[SHOWS_LIB]).keep_library()
    other = tmp_path / "other/lib"
    shutil.copytree(made.root / "lib", other)
    (other / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    command = made.command("--preset", "quick")
    command["env"] |= {"PYTHONPATH": str(other.parent), "PYTHONSAFEPATH": "1"}
    answer = subprocess.run(**command, capture_output=True, timeout=300)
    assert answer.returncode == 0, answer
    (text,) = (
        o["text"] for c in read_json(made.runs[0] / "01_shows/01_shows.ipynb")["cells"] for o in c.get("outputs", [])
    )
    assert "".join(text) == f"lib of {made.root}/lib/__init__.py\n"


def test_a_temporary_folder_given_relative_to_the_working_one(collection, tmp_path):
    command = collection.command("--preset", "quick", "--only", "01")
    answer = subprocess.run(**command | {"env": command["env"] | {"TMPDIR": "."}}, capture_output=True, timeout=300)
    assert answer.returncode == 0, answer


@pytest.mark.parametrize(
    "words", [["--resume", ""], ["--accept", ""], ["--only", ""], ["--compare", ""], ["--describe", ""]]
)
def test_an_empty_word_starts_nothing(collection, words):
    before = len(collection.runs)
    code, out, err = collection.check(*words)
    assert (code, out, err) == (2, "", f"{words[0]}: was given an empty word\n")
    assert len(collection.runs) == before
