"""What could be imported before modules moved can be imported still, and is the same thing as under today's names."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from treeopt.former_names import FORMER, name_today

SHOWN = [
    "treeopt.acceptance.AcceptanceTable",
    "treeopt.acceptance.TextSums",
    "treeopt.counts.conditional_counts",
    "treeopt.counts.TextCounts",
    "treeopt.draft_record.DraftRecord",
    "treeopt.fields.Fields",
    "treeopt.figure_file.checked_suffix",
    "treeopt.identity.Identity",
    "treeopt.json_file.parse_json",
    "treeopt.latency.LatencyTable",
    "treeopt.latency.Timing",
    "treeopt.marks.written_by_treeopt",
    "treeopt.outcomes.Outcomes",
    "treeopt.profile.MeasuredAcceptance",
    "treeopt.profile.Profile",
    "treeopt.profile.StepLatency",
    "treeopt.profile.origins",
    "treeopt.rules.RULES",
    "treeopt.rules.rule_label",
    "treeopt.engines.setting.setting",
    "treeopt.engines.vllm.emit",
    "treeopt.engines.source.Source",
    "treeopt.imports.read_latency",
    "treeopt.imports.content.read_json",
    "treeopt.pair.TARGET",
    "treeopt.pair.MEDUSA",
    "treeopt.systems.running.run_contest",
    "treeopt.systems.bench.Row",
    "treeopt.trees.text_drawing.draw_text",
    "treeopt.runtime.adapter.load_adapter",
    "treeopt.runtime.checkpoint.build_model",
    "treeopt.runtime.config.ModelConfig",
    "treeopt.runtime.pair.load_pair",
    "treeopt.runtime.prompts.load_prompts",
    "treeopt.runtime.sampling.law",
    "treeopt.runtime.verification.Verifier",
    "treeopt.runtime.tokenizer.Tokenizer",
    "treeopt.profiler.measure.Measurement",
    "treeopt.profiler.medusa.medusa_acceptance",
    "treeopt.profiler.record.joined",
    "treeopt.profiler.surface.Surface",
    "treeopt.profiler.sweep.next_point",
    "treeopt.profiler.trials.TimedSteps",
    "treeopt.sampling.GREEDY",
    "treeopt.sampling.Sampling",
    "treeopt.steadiness.precision",
    "treeopt.trial.Trial",
]
"""Names that docs, examples, benchmarks and tools showed under these names."""


@pytest.mark.parametrize("shown", (Path(__file__).parent / "data" / "public-names.txt").read_text().split())
def test_public_names_of_packages_are_still_there(shown):
    module, _, name = shown.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("shown", SHOWN)
def test_a_name_that_was_shown_is_still_there(shown):
    module, _, name = shown.rpartition(".")
    today = name_today(module)
    assert today is not None
    assert getattr(importlib.import_module(module), name) is getattr(importlib.import_module(today), name)
    assert importlib.import_module(module) is importlib.import_module(today)


@pytest.mark.parametrize(
    "shown",
    [
        "treeopt.files.read_text",
        "treeopt.profiler.acceptance.AcceptanceText",
        "treeopt.profiler.bench.Measured",
        "treeopt.profiler.processes.Processes",
        "treeopt.profile.TimedTree",
        "treeopt.profile.Machine",
        "treeopt.trees.tree_file.Provenance",
        "treeopt.solver.solution.Certificate",
    ],
)
def test_so_is_one_whose_module_is_a_package_now_or_gave_it_away(shown):
    module, _, name = shown.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_every_former_name_leads_to_a_module_that_is_there():
    for former, today in FORMER.items():
        name = name_today(former)
        if importlib.util.find_spec(name) is None:
            pytest.fail(f"{former} -> {today}")


def test_no_module_of_today_has_a_former_name():
    """It could not be imported."""
    assert [name for name in FORMER.values() if name_today(name)] == []


def test_names_that_never_were_are_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"treeopt\.no_such"):
        importlib.import_module("treeopt.no_such")


def test_importing_a_former_name_leaves_the_module_as_it_is():
    """In a fresh interpreter, where nothing was imported under either name."""
    script = (
        "import treeopt.sampling as former, treeopt.records.sampling as today, sys;"
        "print(former is today, today.__name__, today.__spec__.name, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "treeopt.records.sampling", "treeopt.records.sampling", "False"], done.stderr
