"""Which methods there are, and all of them planned on the same inputs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tqdm import tqdm

from treeopt.errors import TreeoptError
from treeopt.methods import static_tree
from treeopt.methods.drafted import drafted
from treeopt.methods.method import Inputs, Method
from treeopt.planner import PlanRequest, requested_plan
from treeopt.records.results import NotRun


def planned_methods(inputs: Inputs, names: Sequence[str], *, show_progress: bool = True) -> list[Method | NotRun]:
    """Return methods, each set as well as its measurements on the inputs allow, or why it cannot run on them.

    `treeopt` is the one of the others, and of the best tree under the best rule, that promises most.
    """
    plan = cache(lambda: requested_plan(inputs.profile, PlanRequest(temperature=inputs.sampling.temperature)))
    of_the_draft: dict[str, Callable[[Inputs], Method]] = {
        "plain": static_tree.plain,
        "chain": static_tree.one_chain,
        "osd": static_tree.learning_chain,
        "k-sequences": static_tree.k_sequences,
        "top-k-tree": static_tree.top_k_tree,
        "sequoia": static_tree.sequoia,
    }
    hidden = None if show_progress else True
    found: list[Method | NotRun] = []
    others = [name for name in names if name != "treeopt"]
    for name in tqdm(others, desc="planning  ", unit="method", disable=hidden):
        try:
            found.append(of_the_draft[name](inputs) if name in of_the_draft else drafted(name, inputs, plan()))
        except TreeoptError as error:
            if name == "plain":  # without it there is nothing to compare with
                raise
            found.append(NotRun(method=name, temperature=inputs.sampling.temperature, reason=str(error)))
    if "treeopt" in names:
        able = [each for each in found if isinstance(each, Method)]
        best = max([static_tree.best_rule(inputs, plan()), *able], key=lambda method: method.predicted.value)
        setting = best.setting if best.name in ("treeopt", "sequoia") else f"{best.name}: {best.setting}"
        found.append(replace(best, name="treeopt", setting=setting))
    return found
