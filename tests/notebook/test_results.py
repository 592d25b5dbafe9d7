"""What a notebook leaves behind, and what it refuses."""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lib.notebook.claims import Claim
from lib.notebook.comparison import Comparison
from lib.notebook.parameter_types import PromptLength, Seed
from lib.notebook.results import Results
from lib.notebook.schema import read_results
from lib.prompts.estimate import Estimate

CELL = 'lengths: list[PromptLength] = [1, 2]  # L\nseed: Seed = 0  # root\noutput_dir: str = ""  # where'


def namespace(**values):
    """What a notebook's names are after its parameters cell, and after values were injected."""
    names = {"PromptLength": PromptLength, "Seed": Seed}
    exec(CELL, names)
    return names | values


def claim(name="c"):
    return Claim(name, "statement", "Prop. 1", "exact here", 1.0, (0.9, 1.1), "a control")


def filled(folder) -> Results:
    results = Results("00_tiny", str(folder), namespace(output_dir=str(folder)))
    results.declare(claim())
    results.judge("c", Comparison(measured=Estimate(1, 0.95, 1.05), control=Estimate(2, 1.9, 2.1)))
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
        Results("00_tiny", "", namespace(lengths=[1, 0]))
    assert "\n" not in str(error.value)


def test_injected_values_count_and_other_names_do_not():
    results = Results("00_tiny", "", namespace(seed=3, other="no parameter"))
    assert results.parameters == {"lengths": [1, 2], "seed": 3}


def test_a_verdict_is_shown_where_the_claim_is_judged(capsys):
    results = Results("00_tiny", "", {})
    results.declare(claim())
    results.judge("c", Comparison(measured=Estimate(1, 0.95, 1.05), control=Estimate(2, 1.9, 2.1)))
    assert capsys.readouterr().out.startswith("PASS c")
    assert results.claims["c"].verdict == "PASS"


def test_a_claim_needs_a_measurement_and_a_control():
    results = Results("00_tiny", "", {})
    results.declare(claim())
    with pytest.raises(ValueError, match="c: nothing was measured, or no control"):
        results.judge("c", Comparison(measured=Estimate(1, 1, 1)))


def test_numbers_that_json_does_not_know_are_null(tmp_path):
    results = Results("00_tiny", str(tmp_path), {})
    results.declare(claim())
    results.judge("c", Comparison(measured=Estimate.unknown(), control=Estimate(2, 1.9, float("inf"))))
    results.save()
    record = read_results(tmp_path).claims[0]
    assert (record.estimate, record.interval, record.verdict) == (None, (None, None), "INCONCLUSIVE")
    assert record.control.interval == (1.9, None)


def test_a_claim_never_judged_is_an_error():
    results = Results("00_tiny", "", {})
    results.declare(claim("forgotten"))
    with pytest.raises(RuntimeError, match="never judged: forgotten"):
        results.save()
