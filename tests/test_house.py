"""The house: every package uses only what its first lines name, and no arrow goes back up."""

import ast
import json
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.glob("lib/**/*.py"))
}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("lib/*/__init__.py"))
THEORY = {"tokens", "prompts", "finite_prompt", "kernels", "regression"}


def imports(path: Path) -> set[str]:
    """The modules of lib that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys() or {node.module}
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name in MODULES}


def may_use(package: str) -> set[str]:
    """What the first lines of a package say that it may use."""
    text = ast.get_docstring(ast.parse((ROOT / f"lib/{package}/__init__.py").read_text(encoding="utf-8")))
    said = re.search(r"^May use: (nothing of lib|lib\.[\w., \n]+?)\.$", text, flags=re.MULTILINE)
    assert said, f"lib/{package}/__init__.py does not say what it may use"
    return set(re.findall(r"lib\.(\w+)", said[1]))


def test_a_package_uses_only_what_it_says():
    for name, path in MODULES.items():
        package = name.split(".")[1] if "." in name else ""
        if package:
            used = {other.split(".")[1] for other in imports(path) if "." in other} - {package}
            assert used <= may_use(package), f"{name} uses {used - may_use(package)}"


def test_no_arrow_goes_back_up():
    """Neither between packages nor between modules: a cycle raises CycleError, which names it."""
    assert set(TopologicalSorter({name: may_use(name) for name in PACKAGES}).static_order()) == set(PACKAGES)
    inner = {name: imports(path) - {name} for name, path in MODULES.items()}
    facades = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    list(TopologicalSorter({name: used for name, used in inner.items() if name not in facades}).static_order())


def test_theory_knows_no_notebook_and_the_runner_no_theory():
    for package in THEORY:
        assert may_use(package) <= THEORY
    assert may_use("runner") == {"notebook"}


def test_every_notebook_finds_its_experiments_by_name():
    for path in ROOT.glob("notebooks/*.ipynb"):
        name, text = path.stem[3:], path.read_text(encoding="utf-8")
        assert f"lib.experiments.{name}" in MODULES
        assert re.search(rf"from lib\.experiments(\.{name} import|\.?\w* import .*\b{name}\b)", text), path.name


def test_the_readme_names_every_module():
    """Its table has a row for each package, and in it every module and folder."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = {package: set(re.findall(r"`(\w+)`", text)) for package, text in rows}
    for package in PACKAGES:
        inside = {
            p.stem for p in (ROOT / "lib" / package).iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
        }
        assert told.get(package) == inside - {"__init__"}, f"{package}: {told.get(package, set()) ^ inside}"


def test_the_tests_mirror_the_library():
    for path in ROOT.glob("tests/*/test_*.py"):
        assert (ROOT / "lib" / path.parent.name).is_dir(), path
    for package in PACKAGES:
        assert list(ROOT.glob(f"tests/{package}/**/test_*.py")), f"no test of lib/{package}"


def test_the_notation_of_the_readme_is_that_of_notebook_01():
    cells = json.loads((ROOT / "notebooks/01_measure_limit.ipynb").read_text(encoding="utf-8"))["cells"]
    (text,) = ["".join(cell["source"]) for cell in cells if cell["id"] == "notation"]
    table = text[text.index("| symbol |") :].strip()
    assert len(table.splitlines()) > 10
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
