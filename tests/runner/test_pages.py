"""The pages as a reader meets them: offline, on a phone, in the dark, on paper, without a mouse or without eyes."""

import html
import itertools
import re

import pytest
from browser import PROGRAM, Browser
from tiny import CLAIM, Collection, notebook, save

from lib.runner.pages import typeset

FIGURE = """import base64, io, pathlib
import matplotlib.pyplot as plt
from IPython.display import HTML, display
pathlib.Path("figures").mkdir(exist_ok=True)
figure, axes = plt.subplots(figsize=(12, 4))
axes.plot([3, 2, 1])
figure.savefig("figures/curve.png")
figure.savefig("figures/curve.pdf")
plt.close(figure)
display(HTML('<a id="figure-curve"></a>'))
png = pathlib.Path("figures/curve.png").read_bytes()
display({"image/png": png, "text/plain": "-"}, raw=True, metadata={"image/png": {"alt": "a falling line"}})
"""
WIDE = """import pandas as pd
from lib.notebook.claims import Claim
from lib.prompts.estimate import Estimate
print("a very long line " * 100)
pd.DataFrame([[0.123456789] * 30] * 3)"""
CLAIMED = """from lib.notebook.comparison import Comparison
claim = Claim("claim-one", "one", "Theorem 1", "exact here", 1.0, (0.9, 1.1), "a wrong constant")
claim.judge(Comparison(measured=Estimate(1.0, 0.99, 1.01), control=Estimate(2.0, 1.9, 2.1)))
claim"""
MATH = r"""# A heading with $\mu$

A long formula $M(2a) / M(a)^2 \operatorname{tr} V [C_{2a} + (m_{2a} - m_a)(m_{2a} - m_a)^\top] V^\top$ in a sentence.

$$\begin{aligned} a &= b + \sum_{i=1}^L p_i^2 + \mathbb{E}\,[X e^{X \cdot a}] + \int_0^\infty e^{-s^2/2}\,ds \\
c &= d \end{aligned}$$

| name | formula |
|---|---|
| one | $\mathcal N(0, \Sigma)$ |

`$not math$` costs $5 or $6."""
SHOWN = [
    {"file": "figures/curve.png", "caption": "It falls as $L^{-1}$.", "alt": "a falling line", "cell": "figure-curve"}
]
CLAIMS = [
    {**CLAIM, "cell": "claim-claim-one"},
    {**CLAIM, "id": "claim-one-of-many", "cases": 24, "worst": True, "near_miss": CLAIM["control"]},
    {
        **CLAIM,
        "id": "claim-two",
        "chosen_on": "seeds 100 to 104",
        "verdict": "FAIL",
        "statement": "An estimate of $\\|x\\|$ that fails & is < 1.",
    },
    {**CLAIM, "id": "claim-three", "verdict": "INCONCLUSIVE", "estimate": None, "interval": [None, None]},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with all that a page may hold: figures, formulas, failures, a comparison."""
    made = Collection(tmp_path_factory.mktemp("pages"), n02_broken=["# Breaks", "print('last words')\n1 / 0"])
    made.add("01_pages", notebook("01_pages", MATH, FIGURE, WIDE, CLAIMED, last=save("01_pages", CLAIMS, None, SHOWN)))
    first = made.run("--preset", "quick", "--only", "01")
    other = save("01_pages", CLAIMS, {"mean": {"value": 2.0, "tolerance": 0.1}}, SHOWN)
    made.add("01_pages", notebook("01_pages", MATH, FIGURE, WIDE, CLAIMED, last=other))
    made.run("--preset", "quick", "--set", "n=5", "--compare", made.runs[0].name)
    assert "2 claims" not in first.stdout
    return made.runs[-1]


@pytest.fixture(scope="module")
def browser():
    if PROGRAM is None:
        pytest.skip("no browser here: install chromium to test the pages in it")
    with Browser() as opened:
        yield opened


PAGES = ("index.html", "01_pages/01_pages.html", "02_broken/02_broken.html")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_no_network_and_no_script(run, page):
    text = (run / page).read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)
    assert re.match(r'<!DOCTYPE html>\s*<html lang="en">', text)


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_dead(run, page):
    text = (run / page).read_text(encoding="utf-8")
    links = {html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]*)"', text)} - {""}
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        if path.startswith("data:"):
            continue
        target = ((run / page).parent / path) if path else run / page
        assert target.exists(), link
        if anchor:
            assert f'id="{html.escape(anchor)}"' in target.read_text(encoding="utf-8"), link


def test_the_index_puts_failures_first_and_links_into_the_cells(run):
    text = (run / "index.html").read_text(encoding="utf-8")
    problems = text[text.index('id="problems"') : text.index('id="claims"')]
    order = ["02_broken", "claim-two", "claim-three", "01 mean"]
    assert [problems.index(f">{word}" if word[0] == "0" else word) for word in order] == sorted(
        problems.index(f">{word}" if word[0] == "0" else word) for word in order
    )
    assert "last words" in problems and "ZeroDivisionError" in problems
    assert 'href="01_pages/01_pages.html#claim-claim-one"' in text
    assert 'href="01_pages/01_pages.html#figure-curve"' in text
    assert 'href="02_broken/02_broken.html#stopped-here"' in text
    assert 'alt="a falling line"' in text and 'href="01_pages/figures/curve.pdf"' in text
    assert "An estimate of <math" in text and "that fails &amp; is &lt; 1." in text
    parameters = text[text.index('id="parameters"') :]
    assert "<code>5</code></td>\n<td><strong" in parameters and "<code>3</code></strong>" in parameters


def test_formulas_become_mathml():
    page = typeset(
        r"$\mathbb{E}\,x_1 < \mathcal N$, costs $5 or $6; $$\begin{aligned}a &= b\end{aligned}$$ & $\unknown$"
    )
    assert page.count("<math") == 2
    assert "&#x1D53C;" in page and "&#x1D4A9;" in page  # double-struck E, script N
    assert "costs $5 or $6;" in page
    assert 'display="block"' in page and "<mtable" in page
    assert '&amp; <code class="latex">\\unknown</code>' in page
    assert typeset("a < b & $c") == "a &lt; b &amp; $c"


def test_a_formula_in_code_stays_code_and_images_have_alternatives(run):
    text = (run / "01_pages/01_pages.html").read_text(encoding="utf-8")
    assert "<code>$not math$</code>" in text
    assert "\\mathbb" not in text and "\\begin" not in text
    assert re.findall(r"<img alt=['\"]a falling line['\"]", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_the_screen_without_complaints(run, browser, page, width, scheme):
    browser.open(run / page, width, scheme=scheme)
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")


@pytest.mark.parametrize("page", PAGES)
def test_text_stands_out_from_its_background(run, browser, page):
    """At least 4.5 : 1, the level AA of the Web Content Accessibility Guidelines, in both color schemes."""
    weak = """(() => {
      const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255)
          .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b };
      const solid = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (c !== 'rgba(0, 0, 0, 0)') return c } return 'rgb(255, 255, 255)' };
      const found = [];
      for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        if (e.closest('.anchor-link, [style*=color]')) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(solid(e))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30));
      }
      return found })()"""
    for scheme in ("light", "dark"):
        browser.open(run / page, 1200, scheme=scheme)
        assert browser.evaluate(weak) == []


def test_a_reader_without_eyes_or_mouse(run, browser):
    browser.open(run / "index.html")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
    assert {"main", "navigation", "heading", "table", "rowheader", "columnheader", "image"} <= set(roles)
    names = {node["name"]["value"] for node in nodes if not node["ignored"] and node["role"]["value"] == "link"}
    assert "" not in names
    assert browser.evaluate("[...document.querySelectorAll('.wide, pre')].every(e => e.tabIndex === 0)")
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_print_shows_everything(run, browser):
    for page in PAGES:
        browser.open(run / page, 800, scheme="dark", media="print")
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.evaluate(
            "[...document.querySelectorAll('pre, .wide')].every(e => e.clientHeight >= e.scrollHeight - 1)"
        )
        assert browser.call("Page.printToPDF")["data"]


def test_what_is_wide_scrolls_inside_its_own_box(run, browser):
    browser.open(run / "01_pages/01_pages.html", 375)
    boxes = browser.evaluate(
        "[...document.querySelectorAll('pre, .wide, p')].filter(e => e.scrollWidth > e.clientWidth)"
        ".map(e => getComputedStyle(e).overflowX)"
    )
    assert len(boxes) >= 3  # the long line, the wide table, the long formula
    assert set(boxes) == {"auto"}


LIVE = """from IPython.display import HTML, display
display(HTML('<b onclick="act()" style="color:red">kept</b><script>act()</script><iframe src="x"></iframe>'
             '<a href="javascript:act()">link</a><form action="x"><button>go</button></form><style>b {}</style>'
             '</main><script>act()</script><main>'))"""


def test_nothing_in_a_page_acts(tmp_path):
    """Neither what Markdown, outputs and formulas hold, nor the text of an error."""
    text = "# Live\n\n<img src=x onerror=act()> <object data=x></object> [link](javascript:act())"
    text += " $\\href{javascript:act()}{x}$"
    made = Collection(
        tmp_path, n01_live=notebook("01_live", text, LIVE, "raise ValueError('<img src=x onerror=act()>')")
    )
    made.run("--preset", "quick")
    page = next(made.runs[-1].glob("01_live/*.html")).read_text(encoding="utf-8")
    assert 'style="color:red">kept</b>' in page
    tags = re.findall(r"<[a-z][^>]*>", page)
    for word in ("javascript:", "onclick", "onerror"):
        assert not [tag for tag in tags if word in tag.lower()], word
    for word in ("script", "iframe", "object", "form", "button"):
        assert f"<{word}" not in page, word
    for each in (page, (made.runs[-1] / "index.html").read_text(encoding="utf-8")):
        assert "default-src 'none'" in html.unescape(each)
