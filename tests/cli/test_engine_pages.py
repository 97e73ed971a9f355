"""What docs/reference/engines/ and docs/guides/compare.md show is what the commands print and write."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, verify_s
from tests.support.slow import parameter
from treeopt.engines import ENGINES
from treeopt.engines.importers import ACCEPTANCE_FORMATS
from treeopt.trees.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "docs" / "profiles" / "bundled-2-cores.yaml"
PAGES = sorted((ROOT / "docs" / "reference" / "engines").glob("*.md"))
README = ROOT / "docs" / "reference" / "engines" / "README.md"
COMPARING = ROOT / "docs" / "guides" / "compare.md"
PUBLISHED = ROOT.parent / "shared" / "data"
NAMES = [each.name for each in (*FORMATS, *ENGINES, *ACCEPTANCE_FORMATS)]

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"^> ((?:Warning|Error): .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the output that stands below it."""

    command: str
    output: str


def shown(page: str) -> list[Shown]:
    """Return what stands behind `$` in the page's console blocks, in order."""
    parts = [part for block in BLOCK.findall(page) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(command.strip(), output) for command, _, output in (part.partition("\n") for part in parts)]


def ran(command: str) -> tuple[str, str]:
    """Return what a command prints on standard output and on standard error."""
    program, *arguments = shlex.split(command)
    if program == "cat":
        return "".join(Path(path).read_text("utf-8") for path in arguments), ""
    if program == "python":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        return done.stdout, ""
    assert program == "treeopt", f"a page may show treeopt, cat and python, not {command}"
    result = call(*arguments)
    return result.stdout, result.stderr


def differences(page: str, printed: list[tuple[str, str]]) -> list[str]:
    """Return where a page departs from what its commands print, errors and quoted warnings included."""
    said = [line for _, stderr in printed for line in stderr.splitlines()]
    quoted = QUOTED.findall(page)
    return [
        *(each.command for each, (stdout, _) in zip(shown(page), printed, strict=True) if each.output != stdout),
        *(line for line in quoted if line not in said),
        *(line for line in said if line.startswith("Error: ") and line not in quoted),
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the pages begin with."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copy(PROFILE, folder / "profile.yaml")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(folder)
        assert call("solve", "--budget", 64).exit_code == 0
    crowded = invented(
        conditions=[(256, batch) for batch in (1, 16, 64)],
        verify=lambda tokens, context, batch: verify_s(tokens, context, batch) + 2e-3 * tokens * (batch - 1),
    )
    crowded.save(folder / "batches.yaml")
    return folder


@pytest.fixture
def prepared(folder: Path, inputs: Path) -> Path:
    shutil.copytree(inputs, folder, dirs_exist_ok=True)
    return folder


def checked(page: Path) -> None:
    text = page.read_text("utf-8")
    assert differences(text, [ran(each.command) for each in shown(text)]) == []


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    "page",
    [parameter(page, *([pytest.mark.slow] if page.stem == "sequoia" else [])) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_a_page_shows_what_its_commands_print_and_write(page: Path) -> None:
    checked(page)


@pytest.mark.source
def test_the_comparison_is_what_the_command_prints(prepared: Path) -> None:
    published = [path for path in PUBLISHED.rglob("*") if path.is_file()]
    if not published:
        pytest.skip("../shared/data is not there")
    for path in published:
        shutil.copy(path, prepared / path.name)
    checked(COMPARING)


@pytest.mark.usefixtures("prepared")
def test_one_digit_changed_in_a_page_is_found() -> None:
    text = (ROOT / "docs" / "reference" / "engines" / "sglang.md").read_text("utf-8")
    printed = [ran(each.command) for each in shown(text)]
    blocks = [range(*found.span(1)) for found in BLOCK.finditer(text)]
    output = {at for block in blocks for at in block if not text[text.rfind("\n", 0, at) + 1 :].startswith("$ ")}
    digits = [at for at in sorted(output) if text[at].isdecimal()]
    assert len(digits) > 50
    for at in digits:
        changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        assert differences(changed, printed), text[at - 20 : at + 20]


@pytest.mark.usefixtures("prepared")
def test_an_error_that_is_not_quoted_and_a_warning_that_is_not_given_are_found() -> None:
    page = "```console\n$ treeopt export tree.json --to gguf\n```\n"
    printed = [ran(each.command) for each in shown(page)]
    (error,) = differences(page, printed)
    assert error.startswith("Error: --to: expected one of ")
    assert differences(f"{page}\n> {error}\n", printed) == []
    assert differences(f"{page}\n> {error}\n> Warning: no.\n", printed) == ["Warning: no."]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_page_with_its_command(name: str) -> None:
    row = re.search(rf"^\| \[`{name}`\]\((\S+\.md)(?:#\S+)?\) \|", README.read_text("utf-8"), re.MULTILINE)
    assert row is not None
    commands = [each.command for each in shown((README.parent / row[1]).read_text("utf-8"))]
    assert any(re.search(rf"--to {name}(?!\S)", command) for command in commands)


def test_the_table_lists_no_other_name() -> None:
    assert re.findall(r"^\| \[`(\S+)`\]", README.read_text("utf-8"), re.MULTILINE) == NAMES


@pytest.mark.usefixtures("prepared")
def test_the_fields_of_the_sidecar() -> None:
    _, _, section = README.read_text("utf-8").partition("## The sidecar")
    rows = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    written: dict[str, object] = {}
    for name in ("vllm", "nxdi"):
        ran(f"treeopt export tree.json --to {name} -o file.json --force")
        written |= json.loads(Path("file.json.provenance.json").read_text("utf-8"))

    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(written)
