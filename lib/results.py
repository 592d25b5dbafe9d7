"""What a notebook leaves behind: figures, tables and results.json, in ``output_dir`` or nowhere.

A notebook makes one :class:`Results` right after its parameters and saves it in its last cell. With an empty
``output_dir`` everything is shown and nothing is written.
"""

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display

from . import parameters as cells
from .claims import Claim, Claims

SCHEMA = 1


class Results:
    """The record of one run of a notebook.

    Args:
        notebook: its name, as ``02_concentration``.
        namespace: ``globals()`` of the notebook, which holds its parameters. Each is checked against its type.

    Raises:
        ValueError: one line for the first parameter whose value is not allowed.
    """

    def __init__(self, notebook: str, namespace: Mapping[str, Any]):
        self.notebook = notebook
        self.parameters = _parameters(namespace)
        output_dir = self.parameters.pop("output_dir", "")
        self.folder = Path(output_dir) if output_dir else None
        self.claims: list[Claim] = []
        self.metrics: dict[str, dict] = {}
        self.figures: list[dict] = []

    def declare(self, *claims: Claim) -> Claims:
        """Record the claims before anything is computed; the display is their table."""
        self.claims.extend(claims)
        return Claims(list(claims))

    def judge(self, claim_id: str, measured, control) -> Claim:
        """Judge a declared claim by an estimate, or by a curve, which must lie in the band as a whole.

        Args:
            claim_id: as declared.
            measured, control: each an :class:`~lib.claims.Estimate`, or anything with an ``estimate(band)``.

        Returns:
            The claim, whose display is the verdict.
        """
        claim = Claims(self.claims)[claim_id]
        measured, control = (x.estimate(claim.band) if hasattr(x, "estimate") else x for x in (measured, control))
        return claim.verdict(measured, control)

    def verdicts(self, *claim_ids: str) -> None:
        """Display several claims, judged, in one cell."""
        for claim_id in claim_ids:
            display(Claims(self.claims)[claim_id])

    def figure(self, figure: plt.Figure, name: str, caption: str, alt: str) -> None:
        """Show a figure with its caption (the message first) and its text alternative; save PNG and PDF."""
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        figure.set_layout_engine("none")  # the PDF keeps the layout, and costs half
        if self.folder:
            (self.folder / "figures").mkdir(parents=True, exist_ok=True)
            (self.folder / "figures" / f"{name}.png").write_bytes(png.getvalue())
            try:
                figure.savefig(self.folder / "figures" / f"{name}.pdf", metadata={"CreationDate": None})
            except Exception as error:  # the PNG is there, and a print version is not worth losing the results
                warnings.warn(f"no PDF of figure {name}: {error}", stacklevel=2)
        plt.close(figure)
        display(HTML(f'<a id="figure-{name}"></a>'))
        display({"image/png": png.getvalue(), "text/plain": alt}, raw=True, metadata={"image/png": {"alt": alt}})
        display(Markdown(f"*{caption}*"))
        self.figures.append({"file": f"figures/{name}.png", "caption": caption, "alt": alt, "cell": f"figure-{name}"})

    def table(self, data: pd.DataFrame, name: str) -> pd.DataFrame:
        """Save a tidy table as ``data/<name>.csv`` and hand it back."""
        if self.folder:
            (self.folder / "data").mkdir(parents=True, exist_ok=True)
            data.to_csv(self.folder / "data" / f"{name}.csv", index=False)
        return data

    def metric(self, name: str, value: float, tolerance: float) -> None:
        """Record a number to be compared with other runs: |value - reference| <= tolerance."""
        self.metrics[name] = {"value": float(value), "tolerance": float(tolerance)}

    def save(self) -> Claims:
        """Write results.json; the display is the table of verdicts.

        Raises:
            RuntimeError: if a declared claim was never judged.
        """
        forgotten = [claim.id for claim in self.claims if claim.estimate is None]
        if forgotten:
            raise RuntimeError(f"declared but never judged: {', '.join(forgotten)}")
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_json(self.folder / "results.json", self.record())
        return Claims(self.claims)

    def record(self) -> dict:
        """The content of results.json."""
        metrics = {f"claim.{claim.id}": claim.metric() for claim in self.claims}
        return {
            "schema": SCHEMA,
            "notebook": self.notebook,
            "parameters": self.parameters,
            "claims": [claim.record() for claim in self.claims],
            "metrics": metrics | self.metrics,
            "figures": self.figures,
        }


def _parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of the names that the notebook's parameters cell annotates.

    The cell is found among those executed so far, which works alike under papermill and in JupyterLab.
    """
    sources = [source for source in namespace.get("In", []) if "output_dir: str" in source]
    if not sources:
        return {}
    return {
        parameter.name: cells.check_value(parameter, namespace[parameter.name])
        for parameter in cells.read_parameters(sources[-1])
    }


def _write_json(path: Path, content: dict) -> None:
    """Write in one go, so that a reader never sees half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
