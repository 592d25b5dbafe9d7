"""What a notebook leaves behind, and what it refuses."""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lib.claims import Claim, Estimate
from lib.results import Results

CELL = 'lengths: list[PromptLength] = [1, 2]  # L\nseed: Seed = 0  # root\noutput_dir: str = ""  # where'


def namespace(**values):
    return {"In": ["", CELL], "lengths": [1, 2], "seed": 0, "output_dir": "", **values}


def claim(name="c"):
    return Claim(name, "statement", "Prop. 1", "exact here", 1.0, (0.9, 1.1), "a control")


def filled(folder) -> Results:
    results = Results("00_tiny", namespace(output_dir=str(folder)))
    results.declare(claim())
    results.judge("c", Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1))
    figure, axis = plt.subplots()
    axis.plot([1, 2])
    results.figure(figure, "line", "A line.", "a line going up")
    results.table(pd.DataFrame({"x": [1]}), "numbers")
    results.metric("m", 0.5, 0.1)
    return results


def test_everything_lands_in_the_output_folder(tmp_path):
    filled(tmp_path / "out").save()
    assert {p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {
        "results.json",
        "figures/line.png",
        "figures/line.pdf",
        "data/numbers.csv",
    }
    record = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert record["parameters"] == {"lengths": [1, 2], "seed": 0}  # not where it was saved
    assert record["claims"][0]["verdict"] == "PASS"
    assert record["claims"][0]["control"]["verdict"] == "FAIL"
    assert record["metrics"]["m"] == {"value": 0.5, "tolerance": 0.1}
    assert record["metrics"]["claim.c"]["value"] == 1
    assert record["figures"][0]["alt"] == "a line going up"


def test_saving_twice_writes_the_same_bytes(tmp_path):
    for name in "ab":
        filled(tmp_path / name).save()
    for file in ("results.json", "figures/line.png", "figures/line.pdf"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_without_an_output_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled("").save()
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_parameter_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"lengths\[1\]: received 0") as error:
        Results("00_tiny", namespace(lengths=[1, 0]))
    assert "\n" not in str(error.value)


def test_the_latest_parameters_cell_counts():
    values = namespace(seed=3)
    values["In"] = ["", CELL.replace("seed", "old_seed"), CELL, "seed = 3"]
    assert Results("00_tiny", values).parameters == {"lengths": [1, 2], "seed": 3}


def test_a_claim_never_judged_is_an_error():
    results = Results("00_tiny", {})
    results.declare(claim("forgotten"))
    with pytest.raises(RuntimeError, match="never judged: forgotten"):
        results.save()
