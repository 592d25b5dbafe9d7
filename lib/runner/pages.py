"""Pages that read without a network and without a script: the HTML of a notebook, formulas as MathML."""

import html
import re
from pathlib import Path

import nbformat
import nh3
from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from lib.notebook.files import write_text

STYLE = Path(__file__).with_name("style.css")
TEMPLATE = Path(__file__).with_name("page.html.j2")
# What a notebook may hold as math: $$...$$, $...$ (no space inside the dollars, no digit after), environments.
MATH = re.compile(
    r"\$\$(?P<display>.+?)\$\$|(?<![\\$])\$(?P<inline>[^\s$](?:[^$]*[^\s$\\])?)\$(?!\d)"
    r"|(?P<whole>\\begin\{(?P<env>equation|align|gather)(?P<star>\*?)\}.*?\\end\{(?P=env)(?P=star)\})",
    re.S,
)
# What outputs, Markdown and the error text in it may bring into a page: nothing that acts.
ELEMENTS = (nh3.ALLOWED_TAGS | {"main", "nav", "section", "figure", "figcaption", "input", "label"}) - {"map", "area"}
ATTRIBUTES = {
    **nh3.ALLOWED_ATTRIBUTES,
    "*": {"class", "id", "style", "title", "lang", "role", "tabindex", "scope", "align", "colspan", "rowspan", "dir"},
    "a": {"href", "name", "target"},
    "input": {"type", "checked", "disabled"},
}
CONTENT = re.compile(r"(.*?<main>)(.*)(</main>.*?)", re.S)  # what is not of the template, whatever it holds
POLICY = "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'"
SKIP = {"pre", "code", "script", "style", "math", "title", "svg", "textarea"}


def typeset(text: str) -> str:
    """Plain text as HTML, its LaTeX as MathML."""
    parts, end = [], 0
    for found in MATH.finditer(text):
        parts += [html.escape(text[end : found.start()], quote=False), _mathml(found)]
        end = found.end()
    return "".join(parts) + html.escape(text[end:], quote=False)


def export(notebook: Path) -> list[str]:
    """Write the page of a notebook beside it. Returns warnings, such as a formula that could not be typeset."""
    template = TEMPLATE.read_text(encoding="utf-8")
    exporter = HTMLExporter(raw_template=template, exclude_anchor_links=False, anchor_link_text="#")
    exporter.extra_template_basedirs = []
    exporter.register_filter("clean_html", lambda text: str(text))  # the whole page is cleaned below
    resources = {"metadata": {"name": notebook.stem}, "style": style(), "policy": POLICY}
    source = nbformat.read(notebook, as_version=4)
    source.metadata.pop("widgets", None)  # a page has no script to show them, and stale ones fail the export
    page, _ = exporter.from_notebook_node(source, resources=resources)
    above, body, below = CONTENT.fullmatch(page).groups()
    soup = BeautifulSoup(above + harmless(body) + below, "html.parser")
    for text in soup.find_all(string=MATH):
        if not SKIP & {parent.name for parent in text.parents}:
            text.replace_with(BeautifulSoup(typeset(str(text)), "html.parser"))
    box = {"class": "wide", "tabindex": "0", "role": "region", "aria-label": "table"}
    for table in soup.find_all("table"):
        table.wrap(soup.new_tag("div", attrs=box))
    write_text(notebook.with_suffix(".html"), str(soup))
    odd = {code.get_text() for code in soup.select("code.latex")}
    return [f"formula not understood: {latex}" for latex in sorted(odd)]


def harmless(page: str) -> str:
    """HTML without scripts, handlers, frames, forms and links that act."""
    return nh3.clean(
        page,
        tags=ELEMENTS,
        clean_content_tags={"script", "style"},
        attributes=ATTRIBUTES,
        generic_attribute_prefixes={"aria-", "data-"},
        url_schemes={"http", "https", "mailto", "data"},
        link_rel=None,
    )


def style() -> str:
    """The style of all pages, code colors included."""
    colors = "\n".join(
        f"@media (prefers-color-scheme: {mode}) {{ {HtmlFormatter(style=name).get_style_defs('.highlight')} }}"
        for mode, name in (("light", "default"), ("dark", "github-dark"))
    )
    return colors + STYLE.read_text(encoding="utf-8")


def _mathml(found: re.Match) -> str:
    latex = found["display"] or found["inline"] or found["whole"]
    plain = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex)  # two forms the converter does not know
    plain = re.sub(r"\\(math[a-z]+|boldsymbol)(?![a-z])\s*([A-Za-z0-9])", r"\\\1{\2}", plain)
    try:
        made = convert(plain.strip(), display="inline" if found["inline"] else "block")
    except Exception:
        made = "\\"
    if "\\" in made or "href" in made:  # it raised, passed on a command that it does not know, or made a link
        return f'<code class="latex">{html.escape(latex)}</code>'
    return re.sub(r"&(?!#?\w+;)", "&amp;", made)
