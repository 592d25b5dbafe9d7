"""index.html, the page of a run: what failed first, then claims, comparison, figures, notebooks and parameters."""

from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .compare import Difference
from .pages import style, typeset
from .record import write_text
from .report import clock, counts, interval, number
from .results import Results

FILES = ("{}.html", "{}.ipynb", "results.json", "parameters.yaml", "timings.json", "data")


def write_index(
    folder: Path,
    run: dict[str, Any],
    results: dict[str, Results],
    rows: list[Difference] = (),
    remarks: list[str] = (),
    base: str = "",
) -> None:
    """Write the page of a run; it links only to what is there.

    Args:
        run: the content of run.json. results: of its notebooks that are ok.
        rows, remarks, base: the comparison, and the name of the run compared with (empty: none).
    """
    names = list(run["notebooks"])
    pages = {name: _text(folder / name / f"{name}.html") for name in names}

    def href(name: str, anchor: str) -> str:
        place = f"{name}/{name}.html" if pages[name] else f"{name}/"
        return f"{place}#{anchor}" if f'id="{anchor}"' in pages[name] else place

    def listed(kind: str) -> list[dict]:
        items = [(name, item) for name, result in results.items() for item in getattr(result, kind)]
        return [{**item.model_dump(), "notebook": name, "href": href(name, item.cell)} for name, item in items]

    claims = listed("claims")
    figures = [f for f in listed("figures") if (folder / f["notebook"] / f["file"]).exists()]
    for figure in figures:
        figure["file"] = f"{figure['notebook']}/{figure['file']}"
        pdf = Path(figure["file"]).with_suffix(".pdf").as_posix()
        figure["pdf"] = pdf if (folder / pdf).exists() else ""
    problems = [
        (entry["status"], name, href(name, "stopped-here"), entry["error"], entry["excerpt"])
        for name, entry in run["notebooks"].items()
        if entry["status"] != "ok"
    ]
    for verdict in ("FAIL", "INCONCLUSIVE"):
        failing = (claim for claim in claims if claim["verdict"] == verdict)
        problems += [(verdict, f"{c['notebook'][:2]} {c['id']}", c["href"], c["statement"], []) for c in failing]
    drifted = (row for row in rows if row.drifted)
    problems += [
        ("drifted", f"{r.notebook[:2]} {r.name}", "#comparison", f"{r.now}, was {r.then}", []) for r in drifted
    ]
    shown = {"problems": problems, "claims": claims, "comparison": base, "figures": figures}
    titles = {"problems": "What went wrong" if run["exit_code"] else "What is undecided"}
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"math": lambda text: Markup(typeset(text)), "number": number, "interval": interval}
    environment.filters |= {"clock": clock}
    page = environment.from_string(Path(__file__).with_name("index.html.j2").read_text(encoding="utf-8")).render(
        run=run,
        style=Markup(style()),
        sections=[(k, titles.get(k, k.capitalize())) for k in shown if shown[k]]
        + [("notebooks", "Notebooks"), ("parameters", "Parameters"), ("machine", "Machine")],
        counts=counts(run["notebooks"], results),
        took=clock((datetime.fromisoformat(run["finished"]) - datetime.fromisoformat(run["started"])).total_seconds()),
        problems=problems,
        claims=claims,
        figures=figures,
        rows=rows,
        remarks=remarks,
        base=base,
        files={n: [f for f in (x.format(n) for x in FILES) if (folder / n / f).exists()] for n in names},
    )
    write_text(folder / "index.html", page)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
