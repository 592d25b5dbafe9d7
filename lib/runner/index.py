"""index.html, the page of a run: what failed first, then claims, comparison, figures, notebooks and parameters."""

from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from lib.notebook.files import write_text
from lib.notebook.numbers import caught, interval, number, reading
from lib.notebook.schema import ResultsRecord
from lib.runner.pages import POLICY, style, typeset
from lib.runner.report import clock, counts

TEMPLATE = Path(__file__).with_name("index.html.j2")


def write_index(
    folder: Path, run: dict[str, Any], results: dict[str, ResultsRecord], rows=(), remarks=(), base=""
) -> None:
    """Write the page of a run; it links only to what is there.

    Args:
        run: the content of run.json. results: of its notebooks that are ok.
        rows, remarks, base: the comparison, and the name of the run compared with (empty: none).
    """
    pages = {name: folder / name / f"{name}.html" for name in run["notebooks"]}
    texts = {name: page.read_text(encoding="utf-8") if page.is_file() else "" for name, page in pages.items()}

    def href(name: str, anchor: str) -> str:
        place = f"{name}/{name}.html" if texts[name] else f"{name}/"
        return f"{place}#{anchor}" if f'id="{anchor}"' in texts[name] else place

    def there(*names: str) -> list[str]:
        return [quote(path.relative_to(folder).as_posix()) for name in names for path in sorted(folder.glob(name))]

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"math": lambda text: Markup(typeset(text)), "clock": clock, "number": number}
    environment.filters["interval"] = lambda ends: interval(*ends)
    environment.filters["reading"] = lambda claim: reading(claim.estimate, claim.cases, claim.worst)
    environment.filters["caught"] = lambda claim: caught(claim.caught, claim.prediction)
    seconds = (datetime.fromisoformat(run["finished"]) - datetime.fromisoformat(run["started"])).total_seconds()
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        **{"run": run, "rows": rows, "remarks": remarks, "base": base, "href": href, "there": there},
        claims=[(name, claim) for name, result in results.items() for claim in result.claims],
        figures=[(name, figure) for name, result in results.items() for figure in result.figures],
        counts=counts(run["notebooks"], results),
        took=clock(seconds),
        style=Markup(style()),
        policy=POLICY,
    )
    write_text(folder / "index.html", page)
