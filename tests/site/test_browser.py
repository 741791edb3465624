"""The site of `make site` in headless Chromium: its search, and each page on a desktop and, dark, on a phone.

Pictures of all pages go into build/site-pictures, for people to look at.
"""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "site-pictures"
NAMES = ("chromium", "chromium-browser", "google-chrome")
VIEWS = {"desktop": (1280, "light", "default"), "phone": (390, "dark", "slate")}
"""Width, what the system prefers, and the theme's name for it."""
TALLEST = 8_000
"""Pixels of a picture: a few pages are longer."""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the built site is served."""
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: `make site`")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[site]'")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as p:
        if path is None and not Path(p.chromium.executable_path).is_file():
            pytest.skip("no Chromium: `apt-get install chromium`, or `.venv/bin/python -m playwright install chromium`")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # as root, Chromium starts no other way
        opened = p.chromium.launch(executable_path=path, args=sandbox)
        yield opened
        opened.close()


def test_the_search_leads_to_a_page(browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("sliding_window")  # key by key: the search listens to keys
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    first.click()
    page.wait_for_function("document.title != 'attngen'")
    assert page.url.startswith(address) and page.url != address
    assert "sliding_window" in page.locator("article").inner_text()
    page.close()


def test_pages(browser, address: str) -> None:
    """No page has a fault, asks another host for anything, is wider than the window, or has a link to nowhere."""
    paths = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    assert len(paths) > 100
    shutil.rmtree(PICTURES, ignore_errors=True)
    page = browser.new_page()
    faults: list[str] = []
    page.on("console", lambda m: faults.append(f"{page.url}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on("requestfailed", lambda request: faults.append(f"{page.url}: {request.url}: {request.failure}"))
    page.on("request", lambda r: None if r.url.startswith(address) else faults.append(f"{page.url} asks {r.url}"))
    links: dict[str, str] = {}
    anchors: set[str] = set()
    for path in paths:
        page.goto(address + path)
        anchors |= {address + path, *(f"{address}{path}#{i}" for i in page.evaluate(IDS))}
        links |= {to: path for to in page.evaluate(LINKS) if to.startswith(address)}
        faults += [f"{path}: no image at {source}" for source in page.evaluate(BROKEN)]
        for name, (width, scheme, theme) in VIEWS.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(SHOWN, arg=theme)
            if page.evaluate("document.querySelector('main').scrollWidth > innerWidth"):
                faults.append(f"{path}: wider than a {name}")
            at = PICTURES / name / f"{path.removesuffix('.html').replace('/', '-')}.png"
            height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
            clip = {"x": 0, "y": 0, "width": width, "height": height}
            page.screenshot(path=at, full_page=True, clip=clip, animations="disabled")
    page.close()
    files = {f"{address}{path.relative_to(SITE).as_posix()}" for path in SITE.rglob("*") if path.is_file()}
    known = anchors | files | {address}
    faults += [f"{path}: a link to {to}" for to, path in links.items() if to.rstrip("#") not in known]
    assert faults == []


IDS = "[...document.querySelectorAll('[id], a[name]')].map(x => encodeURI(x.id || x.name))"
LINKS = "[...document.querySelectorAll('a[href]')].map(x => x.href)"
BROKEN = "[...document.images].filter(x => !x.complete || !x.naturalWidth).map(x => x.src)"
SHOWN = "scheme => document.body.getAttribute('data-md-color-scheme') == scheme"
