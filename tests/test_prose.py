"""Prose contradicts no output: a number in it is a constant of the theory, or it was computed.

Numbers that a run finds or a parameter sets go into a text through an f-string: ``results.say``, a caption, a
statement. What is left to be typed are references, small integers in formulas, and the exceptions below.
"""

import ast
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
REFERENCES = (
    r"`[^`]*`",  # code
    r"\]\([^)]*\)",  # the target of a link
    r"(?:Lemmas?|Thms?\.?|Theorems?|Props?\.?|Propositions?|Sections?|Equations?|[Nn]otebooks?)"
    r"(?: and|,)? ?[\d.]+(?:(?:,| and| to|–) [\d.]+)*",
    r"\(v\d\)",  # a version of the paper
    r"arXiv[: ]\d+\.\d+(?:v\d)?",
    r"ICML \d{4}",
    r"^# \d\d ·",  # the title of a notebook
    r"bfloat16|float(?:8|16|32|64)|int8",
    r"95 %",  # the confidence of every interval of the collection
    r"eq\. \(\d+\)",
    r"(?:min|max)\(\d,",
)
OPERATOR = r"[→=≤≥<>+−*/^√·|²³-]"
PLAIN_FORMULA = (
    rf"(?<={OPERATOR})\(?\d(?![\d.,]*\d)|(?<={OPERATOR} )\(?\d(?![\d.,]*\d)|(?<![\d.])\d(?= ?{OPERATOR}|[a-zλσ])"
)
SMALL = r"(?<![\d.])\d(?![\d.]*\d)"  # one digit, in a formula
# What may be typed, and why: (notebook, cell, number).
EXCEPTIONS = {}


def typed_numbers(text: str) -> list[str]:
    """Numbers of a text that are neither references nor the small integers of a formula."""
    for pattern in REFERENCES:
        text = re.sub(pattern, " ", text, flags=re.MULTILINE)
    formulas = re.findall(r"\$\$.*?\$\$|\$[^$]*\$", text, flags=re.DOTALL)
    rest = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", " ", text, flags=re.DOTALL)
    rest = re.sub(PLAIN_FORMULA, " ", rest)  # 1/L, e^(3s²/2), η = 0
    found = re.findall(r"\d[\d.,]*\d|\d", rest)
    for formula in formulas:
        # 10^{-3} is a number, \tfrac12 and x_{12} are not
        plain = re.sub(
            r"\\[tdc]?frac\s*\d\d?|[_^]\{?\d+\}?|\d+\s*\^", lambda m: " " if "^" not in m[0][-1] else m[0], formula
        )
        found += [x for x in re.findall(r"\d[\d.]*\d|\d", plain) if not re.fullmatch(SMALL, x)]
    return found


def texts(source: str) -> list[str]:
    """The literal parts of what a code cell shows to a reader: claims, captions, sentences."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        chosen = {"Claim": call.args[1:2] + call.args[6:], "say": call.args, "figure": call.args[2:]}.get(name, [])
        chosen = [*chosen, *(k.value for k in call.keywords if name in ("Claim", "figure") and k.arg != "chosen_on")]
        for argument in chosen:
            # Of f"{a} of 12" only the literal parts count, and the {a} between them keeps them apart.
            if isinstance(argument, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in argument.values]
                found.append("".join(parts))
            else:
                found += [
                    c.value for c in ast.walk(argument) if isinstance(c, ast.Constant) and isinstance(c.value, str)
                ]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_number_is_typed_into_prose(path):
    typed = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        for text in [source] if cell["cell_type"] == "markdown" else texts(source):
            numbers = [x for x in typed_numbers(text) if (path.stem[:2], cell["id"], x) not in EXCEPTIONS]
            typed += [f"{cell['id']}: {number} in {text[:60]!r}" for number in numbers]
    assert not typed, "\n".join(typed)


def test_what_counts_as_typed():
    assert typed_numbers("Proposition 3.1 and notebooks 02 and 05, Theorem 5.1 (v1), `n = 12`, bfloat16") == []
    assert typed_numbers(r"$\frac12 e^{-s^2/2}$, $\tfrac12$, $x_{12}$, $3s^2/2$, $\rho(\lambda)=1$") == []
    assert typed_numbers("1/L, e^(3s²/2), λ ≤ 1/4, η = 0, 2 / (1 + 2λ), σ ≥ 1") == []
    assert typed_numbers("dimension 4, L = 200, over [0, 10], 0.5, x = 0.25") == ["4", "200", "0", "10", "0.5", "0.25"]
    assert typed_numbers("within 15 %, of 1,000 prompts") == ["15", "1,000"]
    assert typed_numbers(r"$L=1000$ and $0.62$") == ["1000", "0.62"]
    assert texts('results.say(f"{a:.2f} of 12")\nClaim("a", "S = 3", "Thm 4.3", "x", 1.0, (0, 1), "half of 4")') == [
        "{} of 12",
        "S = 3",
        "half of 4",
    ]
