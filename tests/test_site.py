"""The documentation site: builds without a warning, names all that is public, leads nowhere that is not there."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sphinx.util.inventory import InventoryFile

import dpdist
from dpdist.inference.moves.accept import Reason
from tests.browser import Browser, browser

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: What fetches by itself when a page is opened, by tag; links that people follow may lead outside.
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors of a page, what it links to and what it fetches."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get(FETCHED.get(tag, "")) and given.get("rel") not in ("canonical", "next", "prev", "search"):
            self.fetched.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site with its gallery run, from a copy, so that nothing is written into the tree; warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    copy = shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("_build", "gallery"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(copy), str(folder / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def public_names() -> Iterator[str]:
    """Every public class and function, by the name that people import it by."""
    for name in dpdist.__all__:
        thing = getattr(dpdist, name)
        if isinstance(thing, ModuleType):
            yield from (f"dpdist.{name}.{inner}" for inner in getattr(thing, "__all__", ()) if _is_one(thing, inner))
        else:
            yield f"dpdist.{name}"


def _is_one(module: ModuleType, name: str) -> bool:
    return callable(getattr(module, name)) and not name.isupper()


def names_told() -> Iterator[str]:
    """Names of which the sources of the reference have Sphinx tell."""
    for path in (DOCS / "api").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", path.read_text(), re.MULTILINE):
            module = name if directive == "currentmodule" else module
            yield f"{module}.{name}"


def test_the_reference_is_told_of_every_public_name() -> None:
    names = set(public_names())
    assert len(names) > 40
    assert sorted(names - set(names_told())) == []


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    told = {name for kind in found.data.values() for name in kind}
    assert sorted(set(public_names()) - told) == []
    assert {f"dpdist.DPMixture.{method}" for method in ("fit", "predict", "tree", "cut", "iter_fit", "save")} <= told


@pytest.mark.slow
def test_every_link_leads_to_something_and_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 25
    for path, page in pages.items():
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert link in page.links and link not in page.fetched, f"{path.name} fetches {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name} leads to {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name} leads to {link}"


def texts_of(folder: str) -> str:
    """All texts of sources, docstrings and what is filled in among them, one after the other."""
    found = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def quoted_refusals() -> list[str]:
    """What the page about refusals quotes of them."""
    lines = re.findall(r'^(".*")$', (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [quote for line in lines for quote in re.findall(r'"([^"]+)"', line)]


def test_the_refusals_that_are_explained_are_refusals_of_the_package() -> None:
    texts, quotes = texts_of("dpdist"), quoted_refusals()
    assert len(quotes) > 8
    for quote in quotes:
        words = [
            part
            for part in re.split(r"'[^']*'|\S*\d\S*|\S+\.(?:csv|zarr)\b|DPMixture|\.\.\.", quote)
            if len(part.split()) > 1
        ]
        assert words, quote
        assert all(part.strip(" ;,") in texts for part in words), quote


def test_the_page_about_runs_has_every_reason_as_the_history_has_it() -> None:
    page = (DOCS / "reading.md").read_text()
    assert [reason.value for reason in Reason if f"\n| {reason.value} | " not in page] == []


def test_pages_name_commands_and_files_that_are_there() -> None:
    app = texts_of("dpdist") + texts_of("workflows")
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for name in re.findall(r"(?:workflows|cluster_configs|tests|docs)/[\w./-]*\w", path.read_text()):
            assert (ROOT / name).exists() or name.startswith("docs/_build"), f"{path.name}: {name}"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text()):
            known = option.removeprefix("--").replace("-", "_")
            assert option in app or known in app, f"{path.name}: {option}"


def test_the_readme_is_short_and_has_one_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    (picture,) = re.findall(r"!\[.+\]\((.+)\)", text)
    assert (ROOT / picture).stat().st_size < 200_000


@pytest.mark.slow
def test_the_python_of_the_readme_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some of its rows, which is faster; counts and a vocabulary are the reader's own."""
    (written,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    block = written.replace("load_digits().data", "load_digits().data[:400]")
    assert block != written
    monkeypatch.chdir(tmp_path)
    counts = np.random.default_rng(0).poisson(0.5, size=(60, 30))
    names: dict[str, object] = {"counts": counts, "vocabulary": [f"word {w}" for w in range(30)]}
    with matplotlib.rc_context({"backend": "agg"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        exec(block, names)
    assert (tmp_path / "model.zarr").is_dir()


@pytest.mark.slow
def test_the_gallery_runs_and_every_page_of_it_has_a_picture_and_a_thumbnail(site: Path) -> None:
    names = [path.stem for path in (DOCS / "examples").glob("plot_*.py")]
    assert len(names) >= 8
    front = Page(site / "gallery" / "index.html")
    for name in names:
        page = Page(site / "gallery" / f"{name}.html")
        assert [each for each in page.fetched if f"sphx_glr_{name}_" in each], name
        assert [each for each in front.fetched if f"sphx_glr_{name}_thumb" in each], name


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_pages_and_says_nothing(site: Path, tmp_path: Path, width: int, dark: bool) -> None:
    with browser(tmp_path) as opened:
        for name in ("index", "gallery/index", "gallery/plot_01_clusters", "api/estimators", "choosing", "how"):
            look(opened, site / f"{name}.html", width, dark)


def look(opened: Browser, page: Path, width: int, dark: bool) -> None:
    """A page as a person has it: all pictures there, nothing said, nothing wider than the screen."""
    opened.open(page, width=width, dark=dark, drawn="document.readyState === 'complete'")
    assert opened.said == []
    assert opened.evaluate("[...document.images].every(i => i.naturalWidth > 0 || i.loading === 'lazy')")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") != (
        "rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)"
    )
