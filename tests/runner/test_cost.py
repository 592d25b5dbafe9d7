"""What will take long says so before it starts."""

import pytest
from tiny import Collection, notebook

from lib.runner import cost
from lib.runner.params import plan

PARAMETERS = (
    "n: int = 10  # how many; costs in proportion\nsizes: list[int] = [1, 3]  # L; costs its square\n"
    'free: int = 1  # costless\nseed: int = 0\noutput_dir: str = ""\n'
)


@pytest.fixture
def made(tmp_path):
    return Collection(tmp_path, n01_one=notebook("01_one", parameters=PARAMETERS))


def one(made, *settings):
    return plan(made.root, "quick", settings=settings)


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ([], {}),
        (["n=5", "free=1000"], {}),
        (["n=1000"], {"n": 100}),
        (["n=20", "sizes=[1, 7]"], {"n": 2, "sizes": 4}),
    ],
)
def test_only_what_is_declared_to_cost_counts(made, settings, factors):
    (task,) = one(made, *settings)
    assert cost.factors(task) == pytest.approx(factors)


def test_the_longest_time_is_the_recorded_one_times_all_factors(made):
    tasks = one(made, "n=20", "sizes=[1, 7]")
    assert cost.longest(tasks, {"01_one": 3.0}) == pytest.approx({"01_one": 24.0})
    assert cost.longest(tasks, {}) == {} == cost.longest(one(made), {"01_one": 3.0})


def test_check_and_run_tell(made):
    assert made.run("--preset", "quick").returncode == 0
    code, out, _ = made.check("--preset", "quick", "--check", "--set", "n=1000000")
    assert code == 0 and "01_one: up to " in out and "as n × 1e+05" in out
    assert "01_one: up to " in made.run("--preset", "quick", "--set", "n=20").stdout


def test_hours_are_asked_for_twice_on_a_terminal(made, monkeypatch):
    assert made.run("--preset", "quick").returncode == 0
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    code, _, error = made.check("--preset", "quick", "--set", "n=1000000000")
    assert code == 2 and error.endswith("--yes starts it all the same\n") and len(made.runs) == 1
