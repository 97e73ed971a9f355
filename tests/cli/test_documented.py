"""Pages of docs/ show the outputs of the commands."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.invented import FOUR_CONDITIONS, call, invented, solved, solved_json, succeed, verify_s
from tests.support.slow import parameter
from treeopt.engines import ENGINES
from treeopt.engines.exporters import speculation_profile
from treeopt.records.profile import Profile
from treeopt.report.profile_text import profile_summary
from treeopt.trees.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "docs" / "profiles" / "bundled-2-cores.yaml"
PAGES = sorted((ROOT / "docs" / "reference" / "engines").glob("*.md"))
README = ROOT / "docs" / "reference" / "engines" / "README.md"
COMPARING = ROOT / "docs" / "guides" / "compare.md"
PUBLISHED = ROOT.parent / "shared" / "data"
NAMES = [*(target.name for target in (*FORMATS, *ENGINES)), speculation_profile.NAME]

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"^> ((?:Warning|Error): .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the output below it."""

    command: str
    output: str


def shown(page: str) -> list[Shown]:
    """Return the commands of the page's console blocks, in order."""
    parts = [part for block in BLOCK.findall(page) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Shown(command.strip(), output) for command, _, output in (part.partition("\n") for part in parts)]


def run(command: str) -> tuple[str, str]:
    """Return standard output and standard error of a command."""
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
    """Return where a page differs from the outputs of its commands, errors and quoted warnings included."""
    stderr_lines = [line for _, stderr in printed for line in stderr.splitlines()]
    quoted = QUOTED.findall(page)
    return [
        *(block.command for block, (stdout, _) in zip(shown(page), printed, strict=True) if block.output != stdout),
        *(line for line in quoted if line not in stderr_lines),
        *(line for line in stderr_lines if line.startswith("Error: ") and line not in quoted),
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the input files of the pages."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copy(PROFILE, folder / "profile.yaml")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(folder)
        succeed("solve", "--budget", 64)
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


def check(page: Path) -> None:
    text = page.read_text("utf-8")
    assert differences(text, [run(block.command) for block in shown(text)]) == []


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(
    "page",
    [parameter(page, *([pytest.mark.slow] if page.stem == "sequoia" else [])) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_page_shows_the_outputs_of_its_commands(page: Path) -> None:
    check(page)


@pytest.mark.source
def test_guide_shows_the_comparison(prepared: Path) -> None:
    published = [path for path in PUBLISHED.rglob("*") if path.is_file()]
    if not published:
        pytest.skip("../shared/data is not there")
    for path in published:
        shutil.copy(path, prepared / path.name)
    check(COMPARING)


@pytest.mark.usefixtures("prepared")
def test_a_changed_digit_a_missing_error_and_a_foreign_warning_are_found() -> None:
    """Negative control of `differences`."""
    page = "```console\n$ treeopt show tree.json\n```\n"
    (stdout, _), *_ = printed = [run(block.command) for block in shown(page)]
    page = page.replace("tree.json\n", f"tree.json\n{stdout}")
    assert differences(page, printed) == []
    digits = [at for at in range(page.index(stdout), len(page)) if page[at].isdecimal()]
    assert len(digits) > 10
    for at in digits:
        assert differences(page[:at] + str((int(page[at]) + 1) % 10) + page[at + 1 :], printed), at
    page = "```console\n$ treeopt export tree.json --to gguf\n```\n"
    printed = [run(block.command) for block in shown(page)]
    (error,) = differences(page, printed)
    assert error.startswith("Error: Invalid value for '--to': expected one of ")
    assert differences(f"{page}\n> {error}\n", printed) == []
    assert differences(f"{page}\n> {error}\n> Warning: no.\n", printed) == ["Warning: no."]


def test_every_name_has_a_page_with_its_command() -> None:
    rows = re.findall(r"^\| \[`(\S+)`\]\((\S+\.md)(?:#\S+)?\) \|", README.read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == NAMES
    for name, page in rows:
        commands = [block.command for block in shown((README.parent / page).read_text("utf-8"))]
        assert any(re.search(rf"--to {name}(?!\S)", command) for command in commands), name


@pytest.mark.usefixtures("prepared")
def test_page_lists_the_fields_of_the_sidecar() -> None:
    _, _, section = README.read_text("utf-8").partition("## The sidecar")
    rows = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    written: dict[str, object] = {}
    for name in ("vllm", "nxdi"):
        run(f"treeopt export tree.json --to {name} -o file.json --force")
        written |= json.loads(Path("file.json.provenance.json").read_text("utf-8"))

    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(written)


DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(
        r"^```\w*\n(.*?)^```$", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


def test_guide_shows_the_summary_of_a_profile() -> None:
    printed = profile_summary(Profile.load(DOCS / "profiles" / "bundled-2-cores-outcomes.yaml"))

    assert f"```\n{printed}\n```" in (DOCS / "guides" / "profile.md").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_guide_shows_the_table_of_the_bundled_pair(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("bundled target"))

    assert printed.startswith(shown)
    assert printed[len(shown) :].startswith("\nWritten to tree.json.")


@pytest.mark.usefixtures("folder")
def test_guide_shows_the_table_of_rules(blocks: list[str]) -> None:
    printed = call("solve", "--profile", DOCS / "profiles" / "bundled-2-cores-rules.yaml").stdout
    (shown,) = (block for block in blocks if block.startswith("  rule "))

    assert f"\n\n{shown}" in printed


def test_guide_shows_the_schedule_of_the_invented_machine(blocks: list[str], folder: Path) -> None:
    printed = solved(folder, invented(conditions=FOUR_CONDITIONS))
    (shown,) = (block for block in blocks if block.startswith("What to run where"))

    assert f"\n\n{shown}\n" in printed


def test_guide_lists_keys_of_the_json(folder: Path) -> None:
    printed = solved_json(folder, invented())
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "guides" / "plan.md").read_text("utf-8"), re.MULTILINE)

    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert len(keys) > 10
    assert keys <= set(printed)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("shown", "options"), [("as measured", ()), ("64", ("--new-tokens", 64))])
def test_guide_shows_plans_for_short_outputs(shown: str, options: tuple[object, ...]) -> None:
    profile = DOCS / "profiles" / "bundled-2-cores-surface.yaml"
    plan = json.loads(call("solve", "--profile", profile, "--json", *options).stdout)

    choice = plan["candidates"][plan["choice"]]
    fastest = f"a {plan['choice']} of {choice['depth']} draft tokens"
    row = f"| {shown} | {fastest} | {choice['tokens_per_step']:.2f} | {choice['speedup']:.2f} |"
    assert row in (DOCS / "guides" / "plan.md").read_text("utf-8")
