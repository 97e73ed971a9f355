"""Draw the README's picture from a profile: the best tree of 64 nodes for the bundled pair.

Run it as `python tools/draw_pictures.py --profile docs/profiles/bundled-2-cores.yaml`.
"""

import argparse
from pathlib import Path

from treeopt import Profile, plan
from treeopt.trees import save_figure

NODES = 64
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "tree-64.svg"


def main() -> None:
    """Solve the profile and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", type=Path, required=True)
    found = plan(Profile.load(parser.parse_args().profile), NODES)
    tree = next(candidate.tree for candidate in found.budgets if candidate.tree.nodes == NODES)
    save_figure(
        tree, PICTURE, reach=found.solution.table.reach(tree), title=f"The fastest tree of {NODES} nodes, bundled pair"
    )


if __name__ == "__main__":
    main()
