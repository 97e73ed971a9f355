"""Faults as patches: each is one, applies to today's code, and is planted, found or not found as it should be."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scripts import together

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "faults"
PRODUCT = ("treeopt", "profiler", "trees", "cli", "tools")
LEAST = 165
ADD = "def add(a, b):\n    return a + b\n"
FAULT = """One number is taken from the other.

Tests: tests/test_sums.py

diff --git a/sums.py b/sums.py
--- a/sums.py
+++ b/sums.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a - b
"""
HARMLESS = FAULT.replace("return a - b", "return (a + b)")
TESTED = "from sums import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n"

pytestmark = [pytest.mark.source, pytest.mark.skipif(shutil.which("git") is None, reason="needs git")]


@pytest.fixture(scope="module")
def tools():
    """Return the modules of the command."""
    return together("tools", "faults", "fault_files", "fault_copy", "fault_caches")


@pytest.fixture
def project(tmp_path):
    """Return a project of one function, one test and one fault, and an interpreter that only pretends to run tests."""
    root, python = tmp_path / "project", tmp_path / "python"
    for name, content in {"sums.py": ADD, "tests/test_sums.py": TESTED, "tests/faults/minus.patch": FAULT}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    python.write_text(PRETENDED)
    python.chmod(0o755)
    return root


PRETENDED = """#!/bin/sh
echo "$*" >> ../../../asked
grep -q "a - b" sums.py && echo "FAILED tests/test_sums.py::test_add - assert 1 == 3" && exit 1
exit 0
"""


def run(tools, root, *arguments, python=None):
    return tools[0].main(["--jobs", "1", *arguments], root=root, python=python or str(root.parent / "python"))


class TestPatches:
    def test_each_is_a_sentence_about_product_code_and_names_tests_that_are_there(self, tools):
        faults = tools[1].read_faults(FOLDER)
        assert len(faults) >= LEAST
        for fault in faults:
            assert fault.sentence.endswith("."), fault.name
            assert {Path(file).parts[0] for file in fault.files} <= set(PRODUCT), fault.name
            for test in fault.tests:
                assert test.startswith("tests/"), (fault.name, test)
                assert (ROOT / test).exists(), (fault.name, test)

    def test_each_applies_to_the_code_of_today(self, tools, tmp_path):
        _, files, copies, _ = tools
        faults = files.read_faults(FOLDER)
        copies.copy_files(ROOT, sorted({file for fault in faults for file in fault.files}), tmp_path)
        for fault in faults:
            copies.apply_patch(fault.patch, tmp_path, check_only=True)

    def test_one_that_does_not_apply_is_named_with_what_to_do(self, tools, tmp_path):
        (tmp_path / "sums.py").write_text("def add(a, b):\n    return sum((a, b))\n")
        (tmp_path / "minus.patch").write_text(FAULT)
        with pytest.raises(tools[1].FaultError, match=r"minus: does not apply .*Make the fault anew in today's code\."):
            tools[2].apply_patch(tmp_path / "minus.patch", tmp_path, check_only=True)

    @pytest.mark.parametrize(
        "text",
        [
            FAULT.partition("\n\n")[2],
            FAULT.replace("Tests:", "Test:"),
            FAULT.replace("Tests: tests/test_sums.py\n\n", ""),
            FAULT.partition("@@")[0],
        ],
        ids=["no sentence", "no tests", "no line of tests", "no change"],
    )
    def test_one_without_a_heading_or_a_change_is_refused(self, tools, tmp_path, text):
        (tmp_path / "minus.patch").write_text(text)
        with pytest.raises(tools[1].FaultError, match=r"minus\.patch: expected .*Put the heading back\."):
            tools[1].read_faults(tmp_path)


class TestPlanting:
    def test_a_fault_is_found_and_told_with_the_tests_that_failed(self, tools, project, capsys):
        assert run(tools, project) == 0
        out = capsys.readouterr().out
        assert "One number is taken from the other." in out
        assert "by tests/test_sums.py::test_add" in out
        assert out.endswith("planted 1, found 1\n")
        assert (project / "sums.py").read_text() == ADD

    def test_a_harmless_one_is_not_found_after_all_tests_were_asked(self, tools, project, capsys):
        (project / "tests" / "faults" / "harmless.patch").write_text(HARMLESS)
        assert run(tools, project) == 1
        out = capsys.readouterr().out
        assert "NOT FOUND" in out
        assert out.endswith("planted 2, found 1\n")

    def test_what_is_asked_before_a_fault_is_called_not_found(self, tools, project):
        (project / "tests" / "faults" / "minus.patch").write_text(HARMLESS)
        python = project.parent / "python"
        asked = project.parent / "asked"
        python.write_text(f'#!/bin/sh\necho "$*" >> {asked}\nexit 0\n')
        assert run(tools, project) == 1
        ends = [line.partition("--basetemp=")[2].partition(" ")[2] for line in asked.read_text().splitlines()]
        ends = [end.removesuffix(" --ignore=tests/tools/test_faults.py") for end in ends]
        assert ends == ["tests/test_sums.py", "tests/test_sums.py", "-m not slow", "-m slow"]
        asked.unlink()
        assert run(tools, project, "--quick") == 1
        assert len(asked.read_text().splitlines()) == 2

    @pytest.mark.parametrize("elsewhere", ["grep -q 'return a - b' sums.py", "true"], ids=["with it", "always"])
    def test_what_fails_elsewhere_is_a_finding_only_where_it_passes_without_the_fault(
        self, tools, project, capsys, elsewhere
    ):
        """Other tests of the suite are not among those of the control."""
        failed = "echo 'FAILED tests/test_other.py::test_it - no'; exit 1"
        (project.parent / "python").write_text(
            f'#!/bin/sh\ncase "$*" in *slow*|*test_other*) {elsewhere} && {{ {failed}; }};; esac\nexit 0\n'
        )
        assert run(tools, project) == (1 if elsewhere == "true" else 0)
        out = capsys.readouterr().out
        if elsewhere == "true":
            assert "and without the fault it is the same. Mend that first." in out
        else:
            assert "by tests/test_other.py::test_it\n    (its own tests did not find it, fast ones did" in out

    def test_a_folder_that_git_does_not_know(self, tools, project, capsys, monkeypatch):
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
        shutil.rmtree(project / ".git")
        assert run(tools, project) == 1
        assert "expected a git checkout" in capsys.readouterr().err

    def test_without_a_passing_control_nothing_is_planted(self, tools, project, capsys):
        (project / "sums.py").write_text(ADD.replace("a + b", "a - b"))
        assert run(tools, project) == 1
        found = capsys.readouterr()
        assert found.out == ""
        assert "control: expected all tests to pass without a fault" in found.err

    def test_one_that_does_not_apply_is_named_and_the_others_are_planted(self, tools, project, capsys):
        (project / "tests" / "faults" / "gone.patch").write_text(FAULT.replace("a + b", "a * b"))
        assert run(tools, project) == 1
        out = capsys.readouterr().out
        assert "gone: does not apply" in out
        assert out.endswith("planted 1, found 1\n")

    @pytest.mark.parametrize("code", [2, 3, 4, 5])
    def test_tests_that_cannot_be_run_count_only_where_the_fault_is_the_reason(self, tools, project, capsys, code):
        python = project.parent / "python"
        python.write_text(f"#!/bin/sh\ngrep -q 'a - b' sums.py && exit {code}\nexit 0\n")
        assert run(tools, project) == 0
        assert f"(the tests cannot be run with it: pytest ended with {code})" in capsys.readouterr().out
        python.write_text(f'#!/bin/sh\ncase "$*" in *collect-only*) exit {code};; esac\n{python.read_text()}')
        assert run(tools, project) == 1
        assert "and without the fault it is the same" in capsys.readouterr().out

    def test_errors_of_collection_are_not_failures(self, tools, project, capsys):
        (project.parent / "python").write_text(
            "#!/bin/sh\ngrep -q 'a - b' sums.py && echo 'ERROR tests/test_sums.py - NameError' && exit 1\nexit 0\n"
        )
        assert run(tools, project) == 0
        assert "(the tests cannot be run with it: pytest ended with 1)" in capsys.readouterr().out

    def test_unknown_names_and_an_empty_folder(self, tools, project, capsys):
        assert run(tools, project, "--only", "plus") == 1
        assert "plus: no such fault. Look for its name with --list." in capsys.readouterr().err
        assert run(tools, project, "--list") == 0
        assert capsys.readouterr().out == "minus: One number is taken from the other.\n"
        (project / "tests" / "faults" / "minus.patch").unlink()
        assert run(tools, project) == 1
        assert "no faults" in capsys.readouterr().err

    def test_what_git_ignores_is_not_copied_and_links_stay_links(self, tools, project, tmp_path):
        (project / ".gitignore").write_text("build/\n")
        (project / "build").mkdir()
        (project / "build" / "left.py").write_text("")
        (project / "linked").symlink_to("tests")
        files = tools[2].files_of(project)
        tools[2].copy_files(project, files, tmp_path / "copy")
        assert sorted(files) == [".gitignore", "linked", "sums.py", "tests/faults/minus.patch", "tests/test_sums.py"]
        assert (tmp_path / "copy" / "linked").is_symlink()

    @pytest.mark.process
    @pytest.mark.slow
    def test_with_pytest_itself(self, tools, project, capsys):
        (project / "tests" / "faults" / "harmless.patch").write_text(HARMLESS)
        assert run(tools, project, python=sys.executable) == 1
        out = capsys.readouterr().out
        assert "by tests/test_sums.py::test_add" in out
        assert out.endswith("planted 2, found 1\n")

    @pytest.mark.process
    def test_an_interruption_ends_the_tests_and_removes_the_copies(self, project):
        scratch, mark = project.parent / "scratch", project.parent / "running"
        scratch.mkdir()
        (project.parent / "python").write_text(f"#!/bin/sh\necho $$ > {mark}\nexec sleep 600\n")
        code = "import faults, signal; from pathlib import Path; "
        code += "signal.signal(signal.SIGINT, signal.default_int_handler); "  # what runs in the background ignores it
        code += (
            f"raise SystemExit(faults.main([], root=Path({str(project)!r}), python={str(project.parent / 'python')!r}))"
        )
        environment = os.environ | {"TMPDIR": str(scratch)}
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT / "tools", env=environment, stderr=subprocess.PIPE, text=True
        )
        while not (mark.exists() and mark.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "interrupted. The copies are removed.\n")
        assert list(scratch.iterdir()) == []
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


COMPILED = {
    "treeopt/__init__.py": "",
    "treeopt/numbers.py": "ONE = 1\nOTHER = 2\n",
    "treeopt/loops.py": "from numba import njit\nfrom treeopt.numbers import ONE\n\n\n@njit(cache=True)\ndef one():\n"
    "    return ONE\n",
    "treeopt/caller.py": "from treeopt.loops import one\n",
    "treeopt/alone.py": "from numba import njit\n\n\n@njit\ndef two():\n    return 2\n",
    "trees/__init__.py": "",
}


class TestCaches:
    """What numba compiled is used again only where the fault cannot reach it."""

    @pytest.fixture
    def needed(self, tools, tmp_path):
        for name, content in COMPILED.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        return tools[3].compiled_files(tmp_path, list(COMPILED))

    def test_functions_depend_on_their_file_and_on_what_they_take_from_others(self, needed):
        assert needed == {
            "treeopt/loops.py": {"treeopt/loops.py", "treeopt/numbers.py"},
            "treeopt/alone.py": {"treeopt/alone.py"},
        }

    @pytest.mark.parametrize(
        ("changed", "kept"),
        [
            ("treeopt/loops.py", {"alone.two-5.py311.nbi"}),
            ("treeopt/numbers.py", {"alone.two-5.py311.nbi"}),
            ("treeopt/alone.py", {"loops.one-5.py311.nbi"}),
            ("treeopt/caller.py", None),
        ],
    )
    def test_a_cache_is_copied_without_what_changed(self, tools, needed, tmp_path, changed, kept):
        warm, cache = tmp_path / "warm", tmp_path / "cache"
        (warm / "treeopt_0123").mkdir(parents=True)
        for name in ("loops.one-5.py311.nbi", "alone.two-5.py311.nbi"):
            (warm / "treeopt_0123" / name).write_text("")
        assert tools[3].seeded_cache(warm, cache, needed, [changed]) == (kept is not None)
        if kept is not None:
            assert {file.name for file in (cache / "treeopt_0123").iterdir()} == kept

    def test_the_loops_on_the_host_depend_on_the_constants_of_other_files(self, tools):
        files = [str(path.relative_to(ROOT)) for path in (ROOT / "treeopt").rglob("*.py") if "trees" not in path.parts]
        needed = tools[3].compiled_files(ROOT, files)
        host = needed["treeopt/runtime/rules/on_host.py"]
        assert {"treeopt/runtime/rules/sample_children.py", "treeopt/runtime/rules/typical.py"} <= host
        assert "treeopt/solver/kernels.py" in needed["treeopt/solver/kernels.py"]
