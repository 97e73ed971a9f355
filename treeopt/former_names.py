"""Modules under the names that they had before they moved, so that programs which import them go on.

A former name is the very module of today: it is imported when it is asked for, and what is in it exists once.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, dict[str, str]] = {
    "": {
        "": ("pair=bundled systems=methods"),
        "engines": ("imports=reports"),
        "files": ("arrays_file fields figure_file=picture_file json_file marks pipes"),
        "pictures": ("figure_labels=labels figure_style=style"),
        "records": (
            "acceptance counts=acceptance_counts draft_record identity latency outcomes=accepted_ranks profile "
            "rules sampling steadiness trial=decode_stats"
        ),
    },
    "engines": {
        "engines.settings": (
            "common custom_generate eagle exllamav3 hf llama_cpp lmdeploy mlx_lm openvino prediction provenance "
            "setting sglang source tensorrt_llm vllm"
        ),
    },
    "planner": {
        "planner": ("trials=decode_speedup uncertainty=draws"),
        "report": ("figure=plan_figure figure_map=plan_figure_map figure_passes=plan_figure_passes"),
    },
    "profiler": {
        "profiler": ("measure=profile_run"),
        "profiler.acceptance": ("counting=per_prompt expansion medusa=heads record=draft_record traversal"),
        "profiler.bench": ("divergence losslessness trials=timed_steps"),
        "profiler.latency": (
            "busy curve effort memory passes programs steps surface=grid sweep=rounds times=condition watch"
        ),
        "profiler.processes": ("distributed last_words=exit_reasons"),
    },
    "runtime": {
        "runtime.decoding": ("decoder drafting_decoder=earlier_names dynamic=earlier_names huggingface=hf_generate"),
        "runtime.drafters": ("drafter dynamic_growth=beam_expansion growing=expanding_drafter"),
        "runtime.models": (
            "adapter=hf cache=kv_cache checkpoint=weights config digest finite folder graphs hub linear "
            "loading=load mask memory model pair rotary transformer tree_pass=passes vocabulary "
            "weight_files"
        ),
        "runtime.rules": (
            "drawing=sample_children families=sibling_groups judging=verifier sampling=distributions selection "
            "verification=verify"
        ),
        "texts": ("dataset_folder=datasets prompts stopping=stop tokenizer"),
    },
    "runtime.drafters": {
        "runtime.drafters": ("specexec=best_first specexec_growth=best_first_expansion"),
    },
    "systems": {
        "methods": ("static=static_tree system=method"),
        "report": ("figure=methods_figure grid_figure"),
    },
    "trees": {
        "trees": ("text_drawing=text_diagram"),
    },
}
"""Package of former names: package of today's: modules and packages, `former=today` where they are called otherwise."""
FORMER = {
    ".".join(filter(None, ("treeopt", package, former))): ".".join(filter(None, ("treeopt", room, today or former)))
    for package, rooms in MOVED.items()
    for room, names in rooms.items()
    for former, _, today in (name.partition("=") for name in names.split())
}
"""Former name to today's, in full; what was in a package is in the package of today."""
RENAMED = {
    "treeopt.engines.engine": "Asked=SettingRequest Emitted=SettingFiles",
    "treeopt.methods.bench": "bench_systems=bench_methods",
    "treeopt.methods.contest": "planned_systems=planned_methods",
    "treeopt.methods.method": "Grounds=Inputs System=Method",
    "treeopt.planner.decode_speedup": "fastest_trial=fastest_setting",
    "treeopt.planner.draws": "Worlds=Draws draw_worlds=condition_draws",
    "treeopt.profiler.bench.timed_steps": "run_trial=decode_stats",
    "treeopt.profiler.latency.grid": "Surface=LatencyGrid",
    "treeopt.profiler.latency.rounds": "sweep=timed_rounds",
    "treeopt.records.acceptance_counts": "TextCounts=AcceptanceCounts",
    "treeopt.records.accepted_ranks": "Outcomes=AcceptedRanks",
    "treeopt.records.decode_stats": "Trial=DecodeStats",
    "treeopt.records.sampling": "draft_law=draft_sampling_of",
    "treeopt.report.methods_figure": "save_systems_figure=save_methods_figure",
    "treeopt.runtime.rules.distributions": "law=distribution",
    "treeopt.runtime.rules.sibling_groups": "Families=SiblingGroups families=sibling_groups",
}
"""Module of today: `former=today` of what is in it; a module has these too once it is imported by a former name."""


def name_today(name: str) -> str | None:
    """Return what a module is called today, None for a name that is no former one."""
    parts = name.split(".")
    for cut in range(len(parts), 1, -1):
        if (today := FORMER.get(".".join(parts[:cut]))) is not None:
            moved = ".".join([today, *parts[cut:]])
            return name_today(moved) or moved
    return None


class FormerNames:
    """Finds modules by their former names, before anybody looks for files of these names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of a former name is loaded: by this."""
        del path, target
        return ModuleSpec(name, self) if name_today(name) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today where the one of the former name is looked for."""
        today = name_today(module.__name__)
        assert today is not None
        found = import_module(today)
        for former, _, name in (each.partition("=") for each in RENAMED.get(today, "").split()):
            setattr(found, former, getattr(found, name))
        sys.modules[module.__name__] = found


def install() -> None:
    """Let former names be imported, from now on and in this process."""
    if not any(isinstance(finder, FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, FormerNames())
