"""Which lib runs: every source counts, and another lib than the one beside a notebook is refused."""

import shutil

import pytest
from tiny import REPOSITORY

from lib.notebook import sources


def test_the_sources_are_all_of_lib_but_the_runner(tmp_path):
    lib = tmp_path / "lib"
    shutil.copytree(REPOSITORY / "lib", lib, ignore=shutil.ignore_patterns("__pycache__"))
    assert sources.digest(lib) == sources.digest()
    for folder in (lib, *(path.parent for path in lib.glob("*/__init__.py"))):
        before = sources.digest(lib)
        with (folder / "__init__.py").open("a", encoding="utf-8") as file:
            file.write("# more\n")
        assert (sources.digest(lib) != before) is (folder.name != "runner"), folder.name


def test_another_lib_than_the_one_beside_the_notebook_is_refused(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/01_first.ipynb").touch()
    sources.check_beside("01_first", tmp_path / "notebooks")  # there is no lib, so the installed one is meant
    (tmp_path / "lib").mkdir()
    for place in (tmp_path, tmp_path / "notebooks", tmp_path / "outputs/a run/01_first"):
        with pytest.raises(
            ImportError, match=r"^01_first would run with the lib of .*, not with the one beside it in .*$"
        ):
            sources.check_beside("01_first", place)
    sources.check_beside("02_other", tmp_path)
    sources.check_beside("01_measure_limit", REPOSITORY / "notebooks")
