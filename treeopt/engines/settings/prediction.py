"""What a setting comes to, beside its alternatives."""

from dataclasses import dataclass

from treeopt.errors import InfeasibleError
from treeopt.planner import Prediction, StepModel
from treeopt.planner.dynamic import predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.trees import TokenTree, chain
from treeopt.trees.dynamic_tree import DynamicTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One way to decode with its prediction."""

    label: str
    prediction: Prediction


def predicted(label: str, tree: DynamicTree, model: StepModel, replay: Replay | None) -> Predicted:
    """Return what a setting comes to: a chain from the profile's acceptance, a dynamic tree from the record.

    Raises InfeasibleError where that was not measured or recorded.
    """
    if tree.is_chain:
        return predicted_static(label, chain(tree.depth), model)
    if replay is None:
        raise InfeasibleError("dynamic trees need a draft record: run treeopt profile --record.")
    return Predicted(label=label, prediction=predict_dynamic(replay, model, tree))


def predicted_static(label: str, tree: TokenTree, model: StepModel) -> Predicted:
    """Return what a static tree comes to; raises InfeasibleError for one larger or deeper than was measured."""
    return Predicted(label=label, prediction=model.predict(tree).prediction)


def shape(tree: DynamicTree) -> str:
    """Return a dynamic tree in words.

    >>> shape(DynamicTree.chain(3)), shape(DynamicTree(top_k=4, depth=3, nodes=9))
    ('chain of 3 draft tokens', 'dynamic tree of 9 nodes, root included, top-k 4, depth 3')
    """
    if tree.is_chain:
        return f"chain of {tree.depth} draft token{'s' * (tree.depth > 1)}"
    return f"dynamic tree of {tree.nodes} nodes, root included, top-k {tree.top_k}, depth {tree.depth}"
