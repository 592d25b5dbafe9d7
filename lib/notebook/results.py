"""What a notebook leaves behind: figures, tables and results.json, in ``output_dir`` or nowhere.

A notebook makes one :class:`Results` right after its parameters and saves it in its last cell. With an empty
``output_dir`` everything is shown and nothing is written.
"""

import io
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display

from lib.notebook.claims import Claim, Claims
from lib.notebook.comparison import Comparison
from lib.notebook.files import write_json
from lib.notebook.parameters import Parameter, ParameterError, check_value
from lib.notebook.schema import FigureRecord, MetricRecord, ResultsRecord
from lib.notebook.sources import check_beside, digest


class Results:
    """The record of one run of a notebook.

    Args:
        notebook: its name, as ``02_concentration``.
        output_dir: the folder to save in; empty: nothing is saved.
        namespace: ``globals()`` of the notebook. The names that its parameters cell annotates are its parameters, and
            each is checked against its type and put back as :func:`check_value` leaves it.

    Attributes:
        parameters: their checked values. claims: by id, as declared.

    Raises:
        ValueError: one line for the first parameter whose value is not allowed.
        ImportError: if another lib was imported than the one that lies beside the notebook.
    """

    def __init__(self, notebook: str, output_dir: str, namespace: MutableMapping[str, Any]):
        check_beside(notebook, Path.cwd())
        self.notebook, self.lib = notebook, digest()
        self.folder = Path(output_dir).absolute() if output_dir else None  # a cell may change the working directory
        self.parameters = _parameters(namespace)
        namespace.update(self.parameters)  # a list may have lost its repeats
        self.claims = Claims()
        self.metrics: dict[str, MetricRecord] = {}
        self.figures: list[FigureRecord] = []

    def require(self, condition: bool, text: str) -> None:
        """A premise of the whole notebook (:mod:`lib.notebook.premises`). Raises ParameterError with its text."""
        if not condition:
            raise ParameterError(text)

    def declare(self, *claims: Claim) -> Claims:
        """Record claims before anything is computed; the display is their table."""
        declared = Claims({claim.id: claim for claim in claims})
        self.claims.update(declared)
        return declared

    def judge(self, claim_id: str, found: Comparison) -> None:
        """Judge a declared claim by what an experiment found, and show the verdict at once.

        Args:
            claim_id: as declared.
            found: its ``measured``, ``control`` and ``near_miss`` are judged; a curve must lie in the band as a whole.
        """
        claim = self.claims[claim_id]
        claim.judge(found)
        display(claim)

    def say(self, text: str) -> None:
        """A sentence of the notebook whose numbers were computed: Markdown, an f-string in the notebook's source."""
        display(Markdown(text))

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
        record = FigureRecord(file=f"figures/{name}.png", caption=caption, alt=alt, cell=f"figure-{name}")
        self.figures.append(record)

    def table(self, found: Comparison | pd.DataFrame, name: str) -> pd.DataFrame:
        """Save a tidy table as ``data/<name>.csv`` and hand it back."""
        data = found.table if isinstance(found, Comparison) else found
        if self.folder:
            (self.folder / "data").mkdir(parents=True, exist_ok=True)
            data.to_csv(self.folder / "data" / f"{name}.csv", index=False)
        return data

    def metric(self, name: str, value: float, tolerance: float) -> None:
        """Record a number to be compared with other runs: |value - reference| <= tolerance."""
        self.metrics[name] = MetricRecord(value=float(value), tolerance=float(tolerance))

    def save(self) -> Claims:
        """Write results.json; the display is the table of verdicts.

        Raises:
            RuntimeError: if a declared claim was never judged.
        """
        forgotten = [claim.id for claim in self.claims.values() if claim.estimate is None]
        if forgotten:
            raise RuntimeError(f"declared but never judged: {', '.join(forgotten)}")
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "results.json", self.record())
        return self.claims

    def record(self) -> ResultsRecord:
        """The content of results.json."""
        return ResultsRecord(
            notebook=self.notebook,
            lib=self.lib,
            parameters=self.parameters,
            claims=[claim.record() for claim in self.claims.values()],
            metrics={f"claim.{claim.id}": claim.metric() for claim in self.claims.values()} | self.metrics,
            figures=self.figures,
        )


def _parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of the annotated names of a notebook, which are its parameters."""
    annotations = namespace.get("__annotations__")
    if annotations is None and "__annotate__" in namespace:  # from Python 3.14 on they are made on request
        annotations = namespace["__annotate__"](1)
    names = [name for name in annotations or {} if name != "output_dir"]
    return {name: check_value(Parameter(name, annotations[name], None), namespace[name]) for name in names}
