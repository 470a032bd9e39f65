"""The site builds without a warning, needs no network, and lists every page."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.documentation.blocks import DOCS, PAGES, name
from tests.documentation.pages import listing


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning as an error: broken links and anchors, pages outside the navigation."""
    place = tmp_path_factory.mktemp("site")
    command = [
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        str(DOCS / "site" / "mkdocs.yml"),
        "--site-dir",
        str(place),
    ]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = processes.run(
        [sys.executable, "-m", *command], env=settings, capture_output=True, text=True, timeout=480, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_the_site_has_every_page(site: Path) -> None:
    built = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    for page in PAGES:
        assert name(page).removesuffix(".md").replace("README", "index") in built
    assert "changelog" in built
    for target in re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text()):
        assert (site / target).exists(), target


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r"<(?:link|script|img|iframe)\b[^>]*?(?:href|src)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text()) == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style.name


def test_the_search_works_from_a_file_system(site: Path) -> None:
    # A browser neither fetches files nor starts workers from them: the index is a script, and a script replaces Worker.
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    for page in ("index.html", "reference/errors/QueueFullError.html"):
        (script,) = re.findall(r'<script src="([^"]*iframe-worker.js)"', (site / page).read_text())
        assert "window.Worker=" in ((site / page).parent / script).read_text()


def test_a_browser_finds_pages_without_a_web_server(site: Path, tmp_path: Path) -> None:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium (not installed: apt-get install chromium)")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    # Without a network: a request to another host fails.
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}", "--virtual-time-budget=30000"]
    address = f"{(site / 'index.html').as_uri()}?q=delay+retry"
    done = processes.run(
        [program, *flags, "--dump-dom", address],
        capture_output=True, text=True, timeout=240, check=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    results = re.findall(r'<a href="([^"?#]*)[^"]*" class="md-search-result__link"', done.stdout)
    assert (site / "do" / "delay.html").as_uri() in results[:5]


def test_the_reference_shows_the_docstrings(site: Path) -> None:
    page = (site / "reference" / "api" / "queue.html").read_text()
    for method in ("put", "get", "consumer", "close", "statistics"):
        assert f'id="apressure.AsyncQueue.{method}"' in page
    assert "Cancelled" in page


def test_the_list_of_pages_is_complete() -> None:
    assert (DOCS / "llms.txt").read_text() == listing(), "python -m tests.documentation.pages"
