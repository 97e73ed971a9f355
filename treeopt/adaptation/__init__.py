"""Adapt a plan while decoding: count accepted tokens, and switch to the strategy that is then the fastest.

decoder = Decoder(target, draft, plan.choice.tree, temperature=0.0, max_nodes=64, on_step=Recalibration(profile))
"""

from treeopt.adaptation.recalibration import Recalibration
from treeopt.adaptation.strategy import Change

__all__ = ["Change", "Recalibration"]
