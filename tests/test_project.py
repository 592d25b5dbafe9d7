"""The files around the code agree with each other."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split("\0") if name]


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line.split(";")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
    return dict(line.split("==") for line in wanted)


def test_every_requirement_is_pinned_without_a_local_label():
    assert pins()["torch"] == "2.13.0"
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)*(\.?(post|rc)[0-9]+)?", version) for version in pins().values())


def test_conda_users_get_the_same_environment():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    plain = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-r requirements.txt", "-e ."]
    assert "pip" in plain
    (python,) = [entry.removeprefix("python=") for entry in plain if entry.startswith("python=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    assert tuple(map(int, python.split("."))) >= tuple(map(int, oldest.split(".")))


def test_what_lib_imports_is_pinned():
    """Every third-party package imported anywhere in the project has its pin."""
    names = {"IPython": "ipython", "yaml": "pyyaml", "ruamel": "ruamel.yaml", "bs4": "beautifulsoup4"}
    names |= {"websocket": "websocket-client", "PIL": "pillow"}
    pinned = {name.lower().replace("_", "-") for name in pins()}
    local = {path.stem for path in ROOT.glob("tests/*.py")} | {"lib", "run_all"}
    for path in [*ROOT.glob("lib/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "run_all.py"]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        for name in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - local:
            package = names.get(name, name).lower().replace("_", "-")
            assert package in pinned, f"{path.relative_to(ROOT)} imports {name}, which requirements.txt does not pin"


def test_nothing_names_a_machine():
    """No absolute path of somebody's home or working folder, in any tracked text file."""
    pattern = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|opt)/\w", flags=re.ASCII)
    for path in tracked():
        if path.suffix in (".png", ".pdf") or path == Path(__file__):
            continue
        found = pattern.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)} names {found.group()}"


def test_versions_and_names_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"] == "MIT"
    assert citation["references"][0]["title"].startswith("Softmax as Linear Attention")


def test_continuous_integration_runs_the_test_command():
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "make test  " in (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "ruff check" in makefile and "pytest" in makefile


def test_the_readme_maps_every_claim_and_no_other():
    """Each claim of the reference run stands in the table of the README, beside the number of its notebook."""
    rows = re.findall(r"^\|[^|]*\| (\d\d) \|([^|]*)\|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    told = {(number, name) for number, names in rows for name in re.findall(r"`([^`]+)`", names)}
    records = [json.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("outputs/reference/*/results.json")]
    assert told == {(record["notebook"][:2], claim["id"]) for record in records for claim in record["claims"]}


def test_the_examples_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_every_claim_of_the_reference_stands_and_could_have_failed():
    """Its control fails, and a near miss does not pass, or the tasks that its constants were chosen on are named."""
    for path in ROOT.glob("outputs/reference/*/results.json"):
        for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]:
            name = f"{path.parent.name[:2]} {claim['id']}"
            assert claim["verdict"] == "PASS", name
            assert claim["control"]["verdict"] == "FAIL", name
            assert claim["chosen_on"] or claim["near_miss"]["verdict"] != "PASS", name
