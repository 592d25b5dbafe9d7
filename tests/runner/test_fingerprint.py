"""Whether a kept result is still valid: every part that it depends on is noticed, and nothing else is."""

import pytest
from tiny import Collection, notebook

from lib.notebook import sources
from lib.runner import fingerprint, machine
from lib.runner.params import plan

ABOUT = {"python": "3.12", "versions": {"numpy": "2.0"}, "device": "cpu", "commit": "a"}


def test_all_that_counts_is_noticed_part_by_part(tmp_path):
    collection = Collection(tmp_path, "01_first")
    (task,) = plan(tmp_path, "quick")
    mark = fingerprint.fingerprint(task, ABOUT)
    status = {"status": "ok", "fingerprint": mark}

    def changed(task=task, **about) -> list[str]:
        return fingerprint.changes(status, fingerprint.fingerprint(task, ABOUT | about))

    assert changed() == []
    assert changed(commit="b") == []
    assert changed(device="gpu") == ["device"]
    assert changed(versions={"numpy": "2.1"}) == changed(python="3.13") == ["packages"]
    assert changed(plan(tmp_path, "quick", settings=["n=4"])[0]) == ["parameters"]
    collection.add("01_first", notebook("01_first", "# Only words"))
    assert changed(plan(tmp_path, "quick")[0]) == []
    collection.add("01_first", notebook("01_first", "1 + 1"))
    assert changed(plan(tmp_path, "quick")[0]) == ["code cells"]
    assert mark["lib sources"] == sources.digest()


@pytest.mark.parametrize("status", [{}, {"status": "failed", "fingerprint": {}}])
def test_what_is_not_ok_is_executed_again(status):
    assert fingerprint.changes(status, {}) == [status.get("status", "no status")]


def test_a_record_says_what_it_ran_on_and_not_whose_machine(tmp_path):
    about = machine.describe(tmp_path)  # no repository
    assert about["commit"] is None and about["dirty"] is False
    assert about["versions"]["numpy"] and about["machine"]["cores"] >= 1
    assert str(tmp_path) not in str(about)
