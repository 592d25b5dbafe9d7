"""The folders of runs: each has its own, is found by name or path, and belongs to one runner at a time."""

from datetime import datetime

import pytest
from tiny import Collection, run

from lib.notebook.files import write_json
from lib.runner import files
from lib.runner.params import UsageError


def test_an_output_root_that_cannot_be_written(tmp_path):
    made = Collection(tmp_path, "01_first")
    (tmp_path / "file").touch()
    code, out, err = made.check("--output-root", tmp_path / "file/outputs")
    assert (code, out) == (2, "")
    assert err == f"--output-root {tmp_path}/file/outputs: cannot be written: not a directory\n"


def test_two_runs_started_in_the_same_second_do_not_share_a_folder(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    names = [files.new_folder(tmp_path / "outputs", "quick", now).name for _ in range(3)]
    assert names == ["2026-01-02_030405_quick", "2026-01-02_030405_quick_2", "2026-01-02_030405_quick_3"]


def test_a_run_is_found_by_its_name_or_its_path(tmp_path, monkeypatch):
    run = tmp_path / "outputs/2026-01-02_030405_quick"
    run.mkdir(parents=True)
    write_json(run / "run.json", {})
    monkeypatch.chdir(tmp_path / "outputs")
    for word, root in ((run.name, tmp_path / "outputs"), (run.name, tmp_path), (str(run), tmp_path)):
        assert files.find(word, root) == run.resolve()
    with pytest.raises(UsageError, match=r"^2026-01-02: no such run; did you mean '2026-01-02_030405_quick'\?$"):
        files.find("2026-01-02", tmp_path / "outputs")


def test_a_folder_is_locked_until_it_is_let_go(tmp_path):
    with files.locked(tmp_path), pytest.raises(UsageError, match="this run is still going on"), files.locked(tmp_path):
        raise AssertionError("two runners in one folder")
    with files.locked(tmp_path):
        pass


def test_the_last_good_run_with_the_preset_says_how_long_it_takes(tmp_path):
    def made(name: str, seconds: float, preset: str = "quick", **entry) -> None:
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "run.json", run(preset, {"01_first": {"seconds": seconds} | entry}))

    made("reference", 9.0)
    assert files.durations(tmp_path, "quick") == {"01_first": 9.0}
    made("2026-01-01_000000_quick", 2.0)
    made("2026-01-02_000000_quick", 3.0, status="failed")
    made("2026-01-03_000000_quick", 4.0, differs={"n": {"preset": 1, "here": 2}})
    made("2026-01-04_000000_paper", 5.0, preset="paper")
    (tmp_path / "2026-01-05_000000_quick").mkdir()
    (tmp_path / "2026-01-05_000000_quick/run.json").write_text("{}")
    assert files.durations(tmp_path, "quick") == {"01_first": 2.0}
