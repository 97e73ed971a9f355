"""The check of the built site finds links that lead nowhere and pages that ask other hosts."""

import sys
from pathlib import Path

import pytest

from tests.scripts import script

pytestmark = pytest.mark.source
CHECK = script(Path(__file__).resolve().parents[2] / "tools/check_site.py")
GOOD = (
    '<link rel="stylesheet" href="a.css"><link rel="canonical" href="https://a.org/"><h2 id="there">x</h2>'
    '<a href="sub/#here">x</a><a href="#there">x</a><a href="https://a.org/">x</a><a href="mailto:a@b">x</a>'
    '<img src="data:image/png;base64,AA==">'
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub/index.html").write_text('<h1 id="here">x</h1><a href="../index.html#there">x</a>')
    (tmp_path / "a.css").touch()
    return tmp_path


def checked(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["check_site.py", str(site)])
    with pytest.raises(SystemExit) as ended:
        CHECK.main()
    return int(str(ended.value.code)), capsys.readouterr().out


def test_a_good_site_has_none(site, monkeypatch, capsys) -> None:
    code, said = checked(site, monkeypatch, capsys)
    assert (code, said.splitlines()[0].split(". ")[0]) == (0, "2 pages, 7 links: 0 faults")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="none.html">x</a>', "none.html"),
        ('<a href="sub/index.html#nowhere">x</a>', "sub/index.html#nowhere"),
        ('<a href="#nowhere">x</a>', "#nowhere"),
        ('<img src="none.png">', "none.png"),
        ('<script src="https://cdn.example/a.js"></script>', "asks cdn.example"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "asks fonts.example"),
    ],
)
def test_every_fault_is_told(site, monkeypatch, capsys, text, fault) -> None:
    (site / "index.html").write_text(GOOD + text)
    code, said = checked(site, monkeypatch, capsys)
    assert code == 1
    assert said.splitlines()[0] == f"index.html: {fault}"


def test_no_site_is_no_good_site(tmp_path, monkeypatch, capsys) -> None:
    assert checked(tmp_path, monkeypatch, capsys)[0] == 1
