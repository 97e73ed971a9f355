"""Draw the pictures of README and docs from a profile: the best tree of 64 nodes, the plan, curves and acceptance.

Run it as `python tools/draw_pictures.py --profile docs/profiles/bundled-2-cores.yaml`. The pictures of benches are drawn
by the commands on the pages that show them: they are of what those measured.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from treeopt import Profile, plan
from treeopt.planner import tree_file
from treeopt.report.acceptance_figure import save_acceptance_figure
from treeopt.report.curve_figure import save_curve_figure
from treeopt.report.plan_figure import save_plan_figure
from treeopt.report.plan_text import subject
from treeopt.trees import Provenance, TreeFile, headline, save_figure

NODES = 64
PICTURES = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    """Plan from the profile and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, required=True)
    profile = Profile.load(parser.parse_args().profile)
    draw_tree(profile)
    draw_plan(profile)
    save_curve_figure(profile, PICTURES / "curve.svg")
    save_acceptance_figure(profile, PICTURES / "acceptance.svg")


def draw_tree(profile: Profile) -> None:
    """Draw the fastest tree of a budget at which trees are worth looking at, as `treeopt show -o` does."""
    found = plan(profile, NODES)
    best = next(candidate for candidate in found.budgets if candidate.tree.nodes == NODES)
    known = tree_file(found, profile, source="").provenance or Provenance()
    provenance = replace(
        known,
        tokens_per_step=best.tokens_per_step.value,
        step_s=best.step_s.value,
        speedup=best.speedup.value,
    )
    reach = found.solution.table.reach(best.tree)
    content = TreeFile(tree=best.tree, reach=reach, provenance=provenance)
    title, subtitle = headline(content)
    save_figure(best.tree, PICTURES / f"tree-{NODES}.svg", reach=reach, title=title, subtitle=subtitle)


def draw_plan(profile: Profile) -> None:
    """Draw the plan over every budget that was measured, as `treeopt solve --plot` does."""
    found = plan(profile, profile.latencies[0].verify.max_tokens)
    save_plan_figure(found, PICTURES / "plan.svg", title=subject(profile), profile=profile)


if __name__ == "__main__":
    main()
