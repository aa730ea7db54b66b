"""The page in a real browser: light, dark and on a phone; it asks for nothing, says nothing, fits, and can be read.

Seen to fail on: a table that is wider than a phone, a colour too faint on dark ground, a style that the policy does not
name, a picture from the network, two elements of one id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.report.headline import File
from recover.core.report.page import page
from recover.core.report.story import story
from tests.browser import Browser, Page
from tests.core.test_page import HOSTILE, RECORD, told
from tests.scenarios.play import run

pytestmark = pytest.mark.xdist_group("browser")  # one browser serves all of them
SETTINGS = {
    "light": (1100, False, ("incident", "mute")),
    "dark": (1100, True, ("cut", "long")),
    "phone": (390, False, ("mute", "incident")),
    "small phone, dark": (320, True, ("cut",)),
}
FILES = (File("snapshot.json", 9, "evidence/snapshot.json"), File("a very long name " * 20 + ".txt", 9, "evidence/x"))

# What reaches over the right edge, but for what is hidden from sight on purpose.
OVER = """[...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect();
  return r.width > 1 && r.right > %d + 1 && !e.closest('thead');
}).map(e => `${e.tagName}.${e.getAttribute('class')} ${Math.round(e.getBoundingClientRect().right)}`).slice(0, 5)"""
# WCAG 2.1's contrast of each text against the ground that it stands on.
FAINT = """(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 10 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(linear); return .2126 * r + .7152 * g + .0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if ((rgb(c)[3] ?? 1) > .99) return c; } return 'rgb(255,255,255)'; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) found.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
  }
  return [...new Set(found)];
})()"""
NAMED = """[...document.querySelectorAll('[aria-labelledby]')]
  .flatMap(e => e.getAttribute('aria-labelledby').split(' '))"""
# Text in the drawing that is shown, and how small the smallest of it is.
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text')].filter(e => e.getBoundingClientRect().height)
  .map(e => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole run, a long one, one that was cut, one with GPUs that nobody could see, and one full of hostile words."""
    folder = tmp_path_factory.mktemp("pages")
    record = replace(RECORD, evidence="/var/lib/gpu-recover/" + "x" * 200, files=FILES)
    made = {name: page(story(run(name)[0].entries, record), record) for name in ("incident", "mute")}
    made["long"] = page(story(run("container-stop-hangs")[0].entries, record), record)
    entries = run("killed-while-the-vm-is-stopped")[0].entries
    made["cut"] = page(story(entries[: len(entries) // 2], record), record)
    for i, word in enumerate(("x" * 4096, "".join(w for w in HOSTILE if len(w) < 60), "\u05d0\u0627 " * 400)):
        made[f"hostile-{i}"] = page(*told(word))
    found = {}
    for name, html in made.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(html)
    return found


def judge(opened: Page, width: int) -> None:
    """`width` as it was asked for: a phone's own innerWidth grows with a page that does not fit."""
    seen = opened.seen()
    assert (seen.said, seen.asked) == ([], []), "no error, and nothing asked of any network"
    assert opened.run(OVER.replace("%d", str(width))) == []
    assert opened.run("document.documentElement.scrollWidth") <= width
    assert opened.run(FAINT) == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_in_every_setting(browser: Browser, pages: dict[str, Path], setting: str) -> None:
    width, dark, names = SETTINGS[setting]
    for name in names:
        opened = browser.open(pages[name].as_uri(), width, dark)
        judge(opened, width)
        ids: list[str] = opened.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
        named: list[str] = opened.run(NAMED)
        assert len(ids) == len(set(ids)) and set(named) <= set(ids)
        assert (
            opened.run("[...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width).length") == 1
        )
        assert opened.run(SMALLEST) >= 10
        ground = [int(v) for v in opened.run("getComputedStyle(document.body).backgroundColor")[4:-1].split(",")]
        assert (max(ground) < 60) is dark
        assert opened.run("document.documentElement.lang") == "en"
    picture = opened.picture()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000


@pytest.mark.parametrize("name", ["hostile-0", "hostile-1", "hostile-2"])
def test_hostile_words_break_neither_page_nor_width(browser: Browser, pages: dict[str, Path], name: str) -> None:
    for width, dark in ((1100, False), (390, True)):
        opened = browser.open(pages[name].as_uri(), width, dark)
        judge(opened, width)
        assert (
            opened.run("document.querySelectorAll('script, img, iframe, form, [onerror], [onload], [style]').length")
            == 0
        )


def test_what_slips_in_all_the_same_can_do_nothing(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """The policy itself: markup put into the page past our own escaping."""
    evil = (
        "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x.png'><style>body{display:none}</style>"
        "<link rel=stylesheet href='http://127.0.0.1:9/x.css'><p style='position:fixed' onclick='1'>x</p>"
        "<iframe src='http://127.0.0.1:9/'></iframe><base href='http://127.0.0.1:9/'>"
    )
    broken = tmp_path / "evil.html"
    broken.write_text(pages["incident"].read_text().replace("</main>", f"{evil}</main>"))
    opened = browser.open(broken.as_uri(), 1100)
    assert opened.run("document.title") != "owned"
    assert opened.run("getComputedStyle(document.body).display") == "block"
    assert opened.run("document.baseURI") == broken.as_uri()
    said = " ".join(opened.seen().said)
    assert all(
        word in said for word in ("script", "style", "img-src", "frame-src" if "frame-src" in said else "default-src")
    )
    assert opened.run("performance.getEntriesByType('resource').filter(e => e.transferSize > 0).length") == 0


def test_on_paper_it_is_dark_on_white(browser: Browser, pages: dict[str, Path]) -> None:
    opened = browser.open(pages["incident"].as_uri(), 1000, dark=True)
    browser.send("Emulation.setEmulatedMedia", opened.session, media="print")
    style: dict[str, Any] = opened.run(
        "(s => ({ground: s.backgroundColor, ink: s.color}))(getComputedStyle(document.body))"
    )
    assert style == {"ground": "rgb(255, 255, 255)", "ink": "rgb(0, 0, 0)"}
    pdf = browser.send("Page.printToPDF", opened.session)["data"]
    assert len(pdf) > 10_000
