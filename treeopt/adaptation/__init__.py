"""Keep a plan fast while decoding: count what is accepted, and switch to the strategy that is then fastest.

decoder = Decoder(target, draft, plan.choice.tree, temperature=0.0, max_nodes=64, on_step=Recalibration(profile))
"""

from treeopt.adaptation.recalibration import Recalibration
from treeopt.adaptation.strategy import Change

__all__ = ["Change", "Recalibration"]
