"""Draw the pictures of README and docs from a profile: the best tree of 64 nodes, and the plan.

Run it as `python tools/draw_pictures.py --profile docs/profiles/bundled-2-cores.yaml`.
"""

import argparse
from pathlib import Path

from treeopt import Profile, plan
from treeopt.planner.figure import save_plan_figure
from treeopt.trees import save_figure

NODES = 64
PICTURES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    """Plan from the profile and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, required=True)
    profile = Profile.load(parser.parse_args().profile)
    draw_tree(profile)
    draw_plan(profile)


def draw_tree(profile: Profile) -> None:
    """Draw the fastest tree of a budget at which trees are worth looking at."""
    found = plan(profile, NODES)
    tree = next(candidate.tree for candidate in found.budgets if candidate.tree.nodes == NODES)
    save_figure(
        tree,
        PICTURES / f"tree-{NODES}.svg",
        reach=found.solution.table.reach(tree),
        title=f"The best tree of {NODES} nodes, bundled pair",
    )


def draw_plan(profile: Profile) -> None:
    """Draw the plan over every budget that was measured, as `treeopt solve --plot` does."""
    found = plan(profile, profile.latencies[0].verify.max_tokens)
    machine = f"{profile.machine.processor} ({profile.machine.threads} threads)"
    save_plan_figure(found, PICTURES / "plan.svg", title=f"{profile.pair.label} on {machine}")


if __name__ == "__main__":
    main()
