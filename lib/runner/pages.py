"""Notebook pages."""

from pathlib import Path

import nbformat
from nbconvert import HTMLExporter


def export(notebook: Path) -> list[str]:
    """stub"""
    html, _ = HTMLExporter().from_notebook_node(nbformat.read(notebook, as_version=4))
    notebook.with_suffix(".html").write_text(html, encoding="utf-8")
    return []
