"""The faults that `make mutants` plants: each still fits the library, and is one that Python would run."""

from mutants import ROOT, faults, suite_of


def test_every_fault_still_applies():
    """Its text occurs exactly once in its module, and what replaces it is another program."""
    for fault in faults():
        source = fault.planted()
        compile(source, fault.module, "exec")
        assert fault.old != fault.new, fault.what


def test_every_fault_has_its_own_name_and_tests():
    planted = faults()
    assert len(planted) >= 150
    assert len({(fault.module, fault.what) for fault in planted}) == len(planted)
    for fault in planted:
        assert "|" not in fault.what + fault.kind
        assert suite_of(fault.module), fault.module
        assert all((ROOT / test).exists() for test in suite_of(fault.module))


def test_the_tests_of_a_module_are_found():
    assert suite_of("regression/sgd")[0] == "tests/regression/test_sgd.py"
    assert "tests/finite_prompt/test_finite_prompt.py" in suite_of("finite_prompt/one_query")  # through its package
    assert "tests/regression/test_task.py" in suite_of("regression/softmax_risk")  # through the module that uses it
