"""Conditions on several parameters: read from a cell, checked before a kernel starts and in the notebook."""

import pytest
from tiny import Collection, notebook

from lib.notebook.parameters import ParameterError
from lib.notebook.premises import definite, fits, multiples, read_premises, slow_enough
from lib.notebook.results import Results

CELL = 'results.require(all(n < 5 for n in sizes), "sizes: all below 5")'


def test_a_premise_says_what_it_asks_for_and_what_was_given():
    (premise,) = read_premises(CELL)
    assert premise.broken({"sizes": [1, 2]}) == ""
    assert premise.broken({"sizes": [1, 9]}) == "sizes: all below 5; received sizes = [1, 9]"
    (failing,) = read_premises('results.require(1 / n > 0, "n: not zero")')
    assert failing.broken({"n": 0}) == "n: not zero; division by zero"


@pytest.mark.parametrize("line", ["x = 1", "results.require(True)", "print(1)", 'results.require(True, f"{x}")'])
def test_a_cell_of_premises_holds_nothing_else(line):
    with pytest.raises(ParameterError, match="line 2 of the premises cell must read"):
        read_premises(f"{CELL}\n{line}")


def test_in_the_notebook_a_broken_premise_ends_it():
    results = Results("01_none", "", {"__annotations__": {}})
    results.require(True, "anything")
    with pytest.raises(ParameterError, match="sizes: all below 5"):
        results.require(False, "sizes: all below 5")


def test_the_words_of_conditions():
    assert fits(["isotropic", "rank(2)"], [2, 3]) and not fits(["rank(2)"], [1])
    assert definite(["toeplitz(0.9)"], [4]) and not definite(["rank(2)"], [3]) and not definite(["rank(2)"], [1])
    assert not definite([[[1.0, 0.0], [0.0, 1e-14]]], [2])
    assert slow_enough(0.22, "isotropic", 5, 0.0)  # whose stable step is 1 / sqrt(5)
    with pytest.raises(ValueError, match=r"received 0\.23, allowed for this covariance are steps up to 0\.22"):
        slow_enough(0.23, "isotropic", 5, 0.0)
    assert multiples([8, 16], 4) and not multiples([8, 9], 4)


@pytest.fixture
def made(tmp_path):
    made = notebook("01_one", parameters='n: int = 3  # how many\nm: int = 5\noutput_dir: str = ""\n')
    made.cells.insert(2, made.cells[1].copy())
    made.cells[2].update(id="premises", metadata={"tags": ["premises"]}, source='results.require(n < m, "n: below m")')
    return Collection(tmp_path, n01_one=made)


def test_a_broken_premise_is_refused_before_a_kernel_starts(made):
    assert made.check("--check")[0] == 0
    code, _, error = made.check("--check", "--set", "n=7")
    assert (code, error) == (2, "--set n=7: n: below m; received n = 7, m = 5\n")
    assert "together:\n    n: below m" in made.check("--describe", "01")[1]
    made.params("01_one", "m: 2")
    assert "params/paper/01_one.yaml: n: below m; received n = 3, m = 2" in made.check("--check")[2]


def test_a_malformed_cell_is_refused(made):
    made.add("02_two", notebook("02_two").copy())
    odd = notebook("02_two")
    odd.cells[2].metadata["tags"] = ["premises"]
    odd.cells[2].source = "x ="
    made.add("02_two", odd)
    code, _, error = made.check("--check")
    assert code == 2 and error.startswith("notebooks/02_two.ipynb: ")
