"""Files written in one go, and what becomes of numbers that JSON does not know."""

import json
import math

import pytest

from lib.notebook.files import read_json, write_json, write_text
from lib.notebook.schema import MetricRecord, ResultsRecord, read_results


def test_what_is_written_is_read_again(tmp_path):
    write_json(tmp_path / "a.json", {"x": [1, 2.5], "text": "é", "far": math.inf})
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5], "text": "é", "far": "Infinity"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_read_is_none(tmp_path):
    assert read_json(tmp_path / "missing.json") is None
    (tmp_path / "half.json").write_text('{"x": ')
    assert read_json(tmp_path / "half.json") is None


def test_a_failed_write_leaves_the_old_file_and_names_the_one_that_was_meant(tmp_path):
    target = tmp_path / "page.html"
    write_text(target, "old")
    (tmp_path / "page.html.partial").mkdir()  # in the way
    with pytest.raises(OSError) as error:
        write_text(target, "new")
    assert error.value.filename == str(target)
    assert target.read_text() == "old"


def record(**metrics) -> ResultsRecord:
    return ResultsRecord(notebook="00_tiny", parameters={"n": 3}, claims=[], metrics=metrics, figures=[])


def test_results_keep_their_schema_and_have_null_for_what_is_not_finite(tmp_path):
    write_json(tmp_path / "results.json", record(m=MetricRecord(value=math.nan, tolerance=0.1)))
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert content["schema"] == 2
    assert content["metrics"] == {"m": {"value": None, "tolerance": 0.1}}
    assert read_results(tmp_path) == record(m=MetricRecord(value=None, tolerance=0.1))


def test_results_that_are_missing_or_malformed_are_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^it wrote no results\.json$"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": 2, "notebook": "00_tiny"}')
    with pytest.raises(ValueError, match=r"^its results\.json is malformed: parameters: Field required$"):
        read_results(tmp_path)
