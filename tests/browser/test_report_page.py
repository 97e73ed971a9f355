"""The report page in Chromium: no requests, no foreign scripts, no overflow.

`make browser-test` runs it; it is skipped without playwright or a browser.
"""

import csv
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.invented import invented
from tests.support.pages import BATCHES, ENGINE, GRID, ROW, Page, bench_of, everything, planned
from treeopt.records.bench_file import BenchHeading, MethodsBench
from treeopt.records.profile import Profile
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import page
from treeopt.trees import Provenance, TokenTree, TreeFile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser-test")
ROOT = Path(__file__).parents[2]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (390, 1280)
THEMES = ("light", "dark")
WIDE = ("W" * 10_000, "模型" * 5_000, "GPT-OSS-120B-INSTRUCT-" * 500, "क्षत्रिय" * 1_000, "\N{LLAMA}" * 5_000)
"""Of which no program but the browser knows how wide they are."""
HOSTILE = (
    "<script>document.title='gone'</script><img src=http://127.0.0.1:9/x onerror=\"document.title='gone'\">",
    "\"' onmouseover=\"document.title='gone'\" style='position:fixed'",
    "n" * 10_000,
    "מודל עברי גדול",
    "</title></svg></script><b>bold</b>",
)
pytestmark = [pytest.mark.slow, pytest.mark.process]


@dataclass
class Seen:
    """A tab, with what it complained about and what it asked for."""

    tab: "Tab"
    errors: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    with playwright.sync_playwright() as running:
        if program is None and not Path(running.chromium.executable_path).exists():
            pytest.skip("no Chromium is installed: apt-get install chromium")
        opened = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(everything()))
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(page(_named(HOSTILE)))
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "report.html"
    path.write_text(page(_named(WIDE)))
    return path


def _named(names: tuple[str, ...]) -> Contents:
    """Return contents in which every text that others give is one of some names."""
    profile = invented()
    pair = replace(profile.pair, target=names[0], draft=names[1], dtype=names[2])
    machine = replace(profile.machine, processor=names[0], device=names[3], system=names[4])
    found = planned(replace(profile, pair=pair, machine=machine, tool=names[0]))
    heading = BenchHeading(tool=names[0], created=names[1], pair=replace(pair, draft=names[2]), machine=machine)
    known = [Provenance(pair=name, machine=name, rule=name, source=name) for name in names]
    trees = [TreeFile(tree=TokenTree([-1, 0, 0]), provenance=each) for each in known]
    benches = (
        bench_of(found, 1.5, rule=names[3], drafter=names[2]),
        replace(GRID, rule=names[1]),
        MethodsBench(rows=(replace(ROW, method=names[0], rule=names[2], setting=names[2], evidence=names[4]),)),
        replace(ENGINE, engine=names[2], version=names[0]),
        replace(BATCHES, rule=names[2]),
    )
    return Contents(
        planned=found,
        trees=tuple((name, tree) for name, tree in zip(names, trees, strict=True)),
        benches=tuple(LabelledBench(names[place % len(names)], each, heading) for place, each in enumerate(benches)),
    )


@contextmanager
def seen(browser: "Browser", path: Path, **context: Any) -> Iterator[Seen]:
    """Open a page in a window of its own, which accepts downloads and listens to everything."""
    window = browser.new_context(accept_downloads=True, **context)
    found = Seen(window.new_page(), [], [])
    found.tab.on("console", lambda message: found.errors.append(message.text))
    found.tab.on("pageerror", lambda error: found.errors.append(str(error)))
    found.tab.on("request", lambda request: found.requests.append(request.url))
    found.tab.goto(path.as_uri())
    yield found
    window.close()


@pytest.mark.parametrize("javascript", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_errors_no_requests_and_no_overflow(
    browser: "Browser", written: Path, hostile: Path, wide: Path, width: int, javascript: bool
) -> None:
    for path in (written, hostile, wide):
        for theme in THEMES:
            size = {"width": width, "height": 900}
            with seen(browser, path, viewport=size, color_scheme=theme, java_script_enabled=javascript) as found:
                assert found.errors == []
                assert [url for url in found.requests if not url.startswith("data:")] == [path.as_uri()]
                _check_layout(found.tab, width)


def test_text_from_files_is_inert(browser: "Browser", hostile: Path) -> None:
    with seen(browser, hostile, viewport={"width": 1280, "height": 900}) as found:
        title = found.tab.title()
        assert title.startswith("<script>document.title=")
        for each in found.tab.query_selector_all("figure svg [data-tip], bdi")[:400]:
            each.dispatch_event("pointermove", {"clientX": 50, "clientY": 50, "bubbles": True})
            each.dispatch_event("mouseover", {"bubbles": True})
        found.tab.wait_for_timeout(200)
        assert found.tab.title() == title
        assert found.tab.evaluate("document.querySelectorAll('img, b, iframe').length") == 0
        assert found.errors == []
        # the same elements as with innocent names, but for the script's own
        innocent = Page(page(_named(("a", "b", "c", "d", "e"))))
        assert [tag for tag, _ in Page(hostile.read_text()).skeleton] == [tag for tag, _ in innocent.skeleton]


def test_right_to_left_text_stays_in_its_element(browser: "Browser", tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(_named(("מודל", "עברי", "א", "ב", "ג"))))
    with seen(browser, path, viewport={"width": 800, "height": 600}) as found:
        dates = found.tab.evaluate(
            "[...document.querySelectorAll('#facts dd')].map(each => each.getBoundingClientRect().left)"
        )
        assert len(set(dates)) == 1
        assert found.tab.evaluate("getComputedStyle(document.body).direction") == "ltr"


def test_pointer_shows_tooltips(browser: "Browser", written: Path) -> None:
    with seen(browser, written, viewport={"width": 1280, "height": 900}) as found:
        nodes = found.tab.locator("#tree-0 [data-tip^='node ']")
        assert nodes.count() == 6
        node = found.tab.locator("#tree-0 [data-tip^='node 4']")
        _shown(found.tab, node).hover()
        tip = found.tab.locator("#tip")
        assert tip.is_visible()
        assert tip.inner_text() == "node 4, depth 2, ranks 0, 1: reached by 10 %"
        box = tip.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1280
        found.tab.locator("h2").first.hover()
        assert not tip.is_visible()
        for figure, said in (
            ("answer", "times plain decoding"),
            ("verification", "tokens: "),
            ("benches", "measured 1.90"),
        ):
            _shown(found.tab, found.tab.locator(f"#{figure} [data-tip*='{said}']").first).hover()
            assert said in tip.inner_text()


def _shown(tab: "Tab", element: "Locator") -> "Locator":
    """Return an element that the page was scrolled to: what the pointer is told is gone when it scrolls."""
    element.scroll_into_view_if_needed()
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return element


def test_downloads_contain_their_tables(browser: "Browser", written: Path) -> None:
    expected = Page(written.read_text())
    for javascript in (True, False):
        with seen(browser, written, java_script_enabled=javascript) as found:
            links = found.tab.locator("a.download")
            for place in range(links.count()):
                found.tab.locator("summary").nth(place).click()
                with found.tab.expect_download() as started:
                    links.nth(place).click()
                name = started.value.suggested_filename
                text = Path(started.value.path()).read_text("utf-8")
                assert list(csv.reader(io.StringIO(text))) == expected.file(name)
            assert links.count() > 10
            assert found.errors == []


def test_the_tree_is_zoomed_and_the_theme_is_switched(browser: "Browser", written: Path) -> None:
    with seen(browser, written, viewport={"width": 1280, "height": 900}, color_scheme="light") as found:
        drawing = found.tab.locator("#tree-0 .frame svg")
        before = drawing.bounding_box()
        found.tab.get_by_role("button", name="Larger").click()
        after = drawing.bounding_box()
        assert before is not None
        assert after is not None
        assert after["width"] == pytest.approx(1.4 * before["width"], abs=1)
        assert after["height"] == pytest.approx(1.4 * before["height"], abs=1)
        found.tab.get_by_role("button", name="Own size").click()
        assert drawing.bounding_box()["width"] == pytest.approx(before["width"], abs=1)  # type: ignore[index]
        paper = "getComputedStyle(document.body).backgroundColor"
        light = found.tab.evaluate(paper)
        found.tab.locator("#theme").click()
        dark = found.tab.evaluate(paper)
        assert light != dark
        found.tab.emulate_media(media="print")
        assert found.tab.evaluate(paper) == light
        assert not found.tab.locator("nav").is_visible()


def test_it_prints_with_its_tables(browser: "Browser", written: Path, tmp_path: Path) -> None:
    with seen(browser, written) as found:
        found.tab.pdf(path=str(tmp_path / "page.pdf"))
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
        assert found.tab.locator("details[open]").count() == 0  # closed again


LAYOUT = """
() => {
  const box = (each) => each.getBoundingClientRect();
  const visible = (each) => box(each).width > 0 && box(each).height > 0;
  const meets = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push(`page: ${document.documentElement.scrollWidth}`);
  const blocks = [...document.querySelectorAll("h1, h2, h3, figure, details, dl, nav, #warnings li")].filter(visible);
  for (const each of blocks)
    if (box(each).right > innerWidth + 1 || box(each).left < -1) found.push(`outside: ${each.tagName} ${each.id}`);
  const figures = [...document.querySelectorAll("figure")];
  figures.forEach((a, i) => figures.slice(i + 1).forEach((b) => { if (meets(box(a), box(b))) found.push(`${a.id} ${b.id}`); }));
  for (const figure of figures) {
    const parts = [...figure.children].filter(visible);
    parts.forEach((a, i) => parts.slice(i + 1).forEach((b) => { if (meets(box(a), box(b))) found.push(`in ${figure.id}`); }));
    const svg = figure.querySelector(".frame > svg");
    const zoomed = figure.classList.contains("zoomed");
    const texts = [...svg.querySelectorAll("text")].map((each) => [each, box(each)]);
    for (const [each, at] of texts) {
      const frame = box(svg);
      if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.top < frame.top - 1 || at.bottom > frame.bottom + 1)
        found.push(`cut in ${figure.id}: ${each.textContent}`);
      if (!zoomed && at.height < 8 && !each.hasAttribute("transform")) found.push(`small in ${figure.id}: ${each.textContent}`);
    }
    // a line is higher than its letters: a quarter of it may be on another
    const letters = (at) => ({ left: at.left, right: at.right, top: at.top + at.height / 4, bottom: at.bottom - at.height / 4 });
    texts.forEach(([a, at], i) => texts.slice(i + 1).forEach(([b, other]) => {
      if (meets(letters(at), letters(other))) found.push(`texts in ${figure.id}: ${a.textContent} / ${b.textContent}`);
    }));
  }
  return found;
}
"""


def test_layout_check_detects_overflow(browser: "Browser", written: Path) -> None:
    """Negative control of what all others rely on."""
    with seen(browser, written, viewport={"width": 1280, "height": 900}) as found:
        assert found.tab.evaluate(LAYOUT) == []
        found.tab.evaluate("document.querySelector('#map text').setAttribute('x', '-40')")
        found.tab.evaluate("document.querySelector('#steps text').textContent = 'x'.repeat(300)")
        found.tab.evaluate("document.querySelector('#benches text').setAttribute('font-size', '3')")
        found.tab.evaluate("document.querySelector('h2').style.width = '2000px'")
        faults = found.tab.evaluate(LAYOUT)
        for start in ("page: ", "outside: H2", "cut in map", "cut in steps", "texts in steps", "small in benches"):
            assert any(each.startswith(start) for each in faults), faults


FIRST_SCREEN = """
() => {
  const box = (each) => each.getBoundingClientRect();
  return {
    sentence: box(document.querySelector("h1")).bottom,
    figure: box(document.querySelector("#answer svg")).bottom,
    command: box(document.querySelector("#next code")).top,
    end: innerHeight,
  };
}
"""


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_first_screen_contains_answer_figure_and_commands(
    browser: "Browser", tmp_path: Path, width: int, height: int
) -> None:
    for name in ("bundled-2-cores", "nvidia-h100-80gb-hbm3-7b-68m-bfloat16-graphs"):
        profile = f"docs/profiles/{name}.yaml"
        path = tmp_path / f"{name}.html"
        path.write_text(page(Contents(planned=planned(Profile.load(ROOT / profile)), profile_name=profile)))
        with seen(browser, path, viewport={"width": width, "height": height}) as found:
            at = found.tab.evaluate(FIRST_SCREEN)
            assert 0 < at["sentence"] < at["figure"] < at["end"], name
            assert at["command"] < at["end"], name


def test_both_themes_show_every_figure(browser: "Browser", written: Path) -> None:
    """Colours of a figure are those of the theme: the same element differs, and no variable is missing."""
    colours = "[...document.querySelectorAll('figure svg [fill]')].map(each => getComputedStyle(each).fill)"
    shown = []
    for theme in THEMES:
        with seen(browser, written, viewport={"width": 1280, "height": 900}, color_scheme=theme) as found:
            shown.append(found.tab.evaluate(colours))
    light, dark = shown
    assert len(light) == len(dark) > 100
    assert len({one for one, other in zip(light, dark, strict=True) if one != other}) >= 6


def _check_layout(tab: "Tab", width: int) -> None:
    """Compare boxes: nothing wider than the window, no figure on another, no text cut off or on another."""
    assert tab.evaluate(LAYOUT) == [], f"at {width} pixels"
