"""Whether a result still holds: differences within and beyond tolerances, and what becomes the reference."""

import math

import pytest
import tiny
from tiny import CLAIM, Collection

from lib.notebook.files import read_json, write_json
from lib.runner.compare import compare

METRICS = {"mean": {"value": 1.0, "tolerance": 0.1}, "exact": {"value": 2.0, "tolerance": 0.0}}


def made(
    root,
    run: str,
    metrics=METRICS,
    verdict="PASS",
    claims=None,
    preset="quick",
    status="ok",
    altered=None,
    **parameters,
):
    """A run with one notebook, written by hand."""
    folder = root / "outputs" / run
    (folder / "01_first").mkdir(parents=True)
    entry = {"status": status, "parameters": {"n": 3, "seed": 0} | parameters, "differs": altered or {}}
    write_json(folder / "run.json", tiny.run(preset, {"01_first": entry}))
    claims = [{**CLAIM, "verdict": verdict}] if claims is None else claims
    results = {"schema": 2, "notebook": "01_first", "parameters": entry["parameters"], "claims": claims}
    write_json(folder / "01_first/results.json", results | {"metrics": metrics, "figures": []})
    return folder


def distances(run, base) -> dict[str, float]:
    return {row.name: row.distance for row in compare(run, base)[0]}


@pytest.mark.parametrize(
    ("value", "distance", "differs"),
    [(1.0, 0, False), (1.05, 0.5, False), (1.0999, 0.999, False), (0.85, 1.5, True), (None, math.inf, True)],
)
def test_a_metric_is_compared_with_the_tolerance_of_the_reference(tmp_path, value, distance, differs):
    base = made(tmp_path, "base")
    run = made(tmp_path, "run", METRICS | {"mean": {"value": value, "tolerance": 9.0}})
    row = next(row for row in compare(run, base)[0] if row.name == "mean")
    assert row.distance == pytest.approx(distance)
    assert row.differs is differs


def test_no_tolerance_means_equal(tmp_path):
    base = made(tmp_path, "base", {"a": {"value": 2.0, "tolerance": 0.0}, "b": {"value": None, "tolerance": None}})
    assert set(distances(base, base).values()) == {0.0}
    run = made(tmp_path, "run", {"a": {"value": 2.0000001, "tolerance": 1.0}, "b": {"value": 1.0, "tolerance": None}})
    assert {name for name, distance in distances(run, base).items() if distance > 1} == {"a", "b"}


def test_what_is_missing_differs_and_what_is_new_does_not(tmp_path):
    base = made(tmp_path, "base")
    run = made(tmp_path, "run", {"other": {"value": 1.0, "tolerance": 0.1}}, claims=[{**CLAIM, "id": "claim-two"}])
    found = distances(run, base)
    assert found == {
        "exact": math.inf,
        "mean": math.inf,
        "verdict of claim-one": math.inf,
        "other": 0,
        "verdict of claim-two": 0,
    }


def test_a_verdict_that_changed_comes_first(tmp_path):
    base = made(tmp_path, "base")
    run = made(tmp_path, "run", METRICS | {"mean": {"value": 1.2, "tolerance": 0.1}}, verdict="INCONCLUSIVE")
    first, second = compare(run, base)[0][:2]
    assert (first.name, first.now, first.then) == ("verdict of claim-one", "INCONCLUSIVE", "PASS")
    assert second.name == "mean"


def test_results_that_cannot_be_read_differ(tmp_path):
    base, run = made(tmp_path, "base"), made(tmp_path, "run")
    (run / "01_first/results.json").unlink()
    rows, _ = compare(run, base)
    assert [(row.name, row.differs) for row in rows] == [("results", True)]


def test_other_parameters_are_told_and_by_default_not_compared(tmp_path):
    base, run = made(tmp_path, "base"), made(tmp_path, "run", seed=5)
    rows, remarks = compare(run, base)
    assert rows and remarks == ["01_first: other seed"]
    assert compare(run, base, same_parameters=True) == ([], ["01_first: other seed; not compared"])


def test_two_runs_are_compared_without_running_anything(tmp_path):
    collection = Collection(tmp_path, "01_first")
    made(tmp_path, "2026-01-01_000000_quick")
    made(tmp_path, "2026-01-02_000000_quick", METRICS | {"mean": {"value": 1.3, "tolerance": 0.1}})
    code, out, _ = collection.check("--compare", "2026-01-01_000000_quick", "2026-01-01_000000_quick")
    assert (code, out) == (0, "compared with 2026-01-01_000000_quick: 3 quantities, 0 different\n")
    code, out, _ = collection.check("--compare", "2026-01-02_000000_quick", "2026-01-01_000000_quick")
    assert code == 1
    assert "3 quantities, 1 different" in out and "3 x tolerance" in out
    assert len(collection.runs) == 2


def test_a_run_becomes_the_reference_without_what_only_weighs(tmp_path):
    collection = Collection(tmp_path, "01_first")
    for number, mean in ((1, 1.0), (2, 7.0)):
        run = made(tmp_path, f"2026-01-0{number}_000000_quick", METRICS | {"mean": {"value": mean, "tolerance": 1.0}})
        for name in ("figures/a.png", "figures/a.pdf", "__pycache__/x.pyc", "01_first.html"):
            (run / "01_first" / name).parent.mkdir(exist_ok=True)
            (run / "01_first" / name).touch()
        assert collection.check("--accept", run.name, "--force") == (0, f"{run.name} is now the reference\n", "")
    reference = tmp_path / "outputs/reference"
    files = {str(path.relative_to(reference)) for path in reference.rglob("*") if path.is_file()}
    assert files == {
        "run.json",
        "index.html",
        "01_first/01_first.html",
        "01_first/results.json",
        "01_first/figures/a.png",
    }
    assert read_json(reference / "01_first/results.json")["metrics"]["mean"]["value"] == 7.0
    assert sorted(path.name for path in reference.parent.iterdir()) == [
        "2026-01-01_000000_quick",
        "2026-01-02_000000_quick",
        "reference",
    ]


def test_only_a_whole_run_that_is_ok_becomes_the_reference(tmp_path):
    collection = Collection(tmp_path, "01_first", "02_second")
    run = made(tmp_path, "2026-01-01_000000_quick", status="failed")
    code, _, err = collection.check("--accept", run.name)
    assert code == 2
    assert err.endswith("a reference is a whole collection that is ok; 01_first failed, 02_second not in it\n")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"preset": "quick"}, "it is of the quick preset"),
        ({"verdict": "FAIL"}, "01 claim-one FAIL"),
        ({"verdict": "INCONCLUSIVE"}, "01 claim-one INCONCLUSIVE"),
        ({"altered": {"n": {"preset": 3, "here": 4}}}, "other parameters in 01_first"),
    ],
)
def test_a_run_that_others_cannot_be_held_against_becomes_no_reference(tmp_path, changes, reason):
    collection, reference = Collection(tmp_path, "01_first"), tmp_path / "outputs/reference"
    run = made(tmp_path, "2026-01-01_000000_x", **({"preset": "paper"} | changes))
    (tmp_path / "elsewhere").mkdir()
    reference.symlink_to(tmp_path / "elsewhere")
    code, _, err = collection.check("--accept", run.name)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{reason}; --force makes it" in err
    assert not list((tmp_path / "elsewhere").iterdir())
    assert collection.check("--accept", run.name, "--force")[0] == 0
    assert reference.is_symlink() and (tmp_path / "elsewhere/run.json").is_file()


DAMAGE = {
    "empty": "",
    "foreign": "[1, 2]",
    "truncated": '{"schema": 1, "status": "ok", "noteb',
    "newer": '{"schema": 99}',
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_costs_one_line_where_it_is_meant_and_nothing_elsewhere(tmp_path, content):
    collection = Collection(tmp_path, "01_first")
    good, bad = (made(tmp_path, f"2026-01-0{n}_000000_quick") for n in (1, 2))
    (bad / "run.json").write_text(content)
    assert "01_first  0:02" in collection.check("--list", "--preset", "quick")[1]
    assert collection.check("--check")[0] == 0
    for words in (["--accept", bad.name], ["--resume", bad.name], ["--compare", good.name, bad.name]):
        code, _, err = collection.check(*words)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(f"{bad.name}: its run.json is damaged or not ours: ")


def test_recorded_durations_say_how_long_it_will_take(tmp_path):
    collection = Collection(tmp_path, "01_first")
    made(tmp_path, "2026-01-01_000000_quick")
    assert "01_first  0:02" in collection.check("--list", "--preset", "quick")[1]
    assert "01_first  unknown" in collection.check("--list", "--preset", "paper")[1]


def test_json_knows_no_infinity(tmp_path):
    write_json(tmp_path / "x.json", {"a": [math.inf, math.nan], "b": "é"})
    assert read_json(tmp_path / "x.json") == {"a": ["Infinity", "NaN"], "b": "é"}
