"""Plans that stay right: what decoding itself tells of acceptance and times, and the tree that is fastest by it.

decoder = Decoder(target, draft, plan.choice.tree, temperature=0.0, max_nodes=64, on_step=Recalibration(profile))
"""

from treeopt.adaptation.change import Change
from treeopt.adaptation.recalibration import Recalibration

__all__ = ["Change", "Recalibration"]
