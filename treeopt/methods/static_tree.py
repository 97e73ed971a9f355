"""Methods with a static tree that the draft model fills: plain decoding, chains, one that learns, sequences, trees."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeopt.methods.method import Inputs, Method
from treeopt.planner import StepModel, requested_plan
from treeopt.planner.chains import fastest_length
from treeopt.profiler.decoding import Decoding
from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import built_in, learning_copy
from treeopt.trees import TokenTree, chain, chains

MAX_SEQUENCES = 8
NOT_LEARNT = "the draft is accepted as often as before it learnt anything, and learning takes no time"


def plain(inputs: Inputs) -> Method:
    """Return plain decoding."""
    return _method("plain", inputs, inputs.model(), chain(0))


def one_chain(inputs: Inputs, name: str = "chain") -> Method:
    """Return the fastest single sequence, at least one token long (Leviathan et al., 2023)."""
    model = inputs.model("sequoia")
    return _method(name, inputs, model, chain(max(1, fastest_length(model))))


def learning_chain(inputs: Inputs) -> Method:
    """Return that sequence from a draft that learns while decoding, a copy for each decoder (Liu et al., 2023).

    Raises InfeasibleError for a draft whose weights cannot be changed.
    """
    planned = one_chain(inputs, "osd")
    built_in(inputs.pair.draft_model)  # refused while it is planned, before anything is decoded

    def make() -> Decoder:
        draft, learner = learning_copy(inputs.pair.draft_model)
        decoding = Decoding(rule=planned.option.rule, sampling=inputs.sampling)
        return decoding.decoder(inputs.pair.target, draft, planned.option.tree, None, on_step=learner)

    return replace(planned, make=make, assumed=(NOT_LEARNT,))


def k_sequences(inputs: Inputs) -> Method:
    """Return the fastest of two and more independent sequences (Miao et al., 2024)."""
    model = inputs.model("specinfer")
    return _method("k-sequences", inputs, model, max(_sequences(model), key=model.speedup))


def top_k_tree(inputs: Inputs) -> Method:
    """Return the fastest tree of likeliest children, verified by the rule `target`."""
    return _fastest_tree("top-k-tree", inputs, "target")


def sequoia(inputs: Inputs) -> Method:
    """Return the fastest tree of children sampled without replacement, by Sequoia's rule (Chen et al., 2024)."""
    return _fastest_tree("sequoia", inputs, "sequoia")


def best_rule(inputs: Inputs) -> Method:
    """Return the fastest tree under the best of the rules that were measured."""
    return _method("treeopt", inputs, inputs.plan.model, inputs.plan.choice.tree)


STATIC: dict[str, Callable[[Inputs], Method]] = {
    "plain": plain,
    "chain": one_chain,
    "osd": learning_chain,
    "k-sequences": k_sequences,
    "top-k-tree": top_k_tree,
    "sequoia": sequoia,
}
"""Plans each method by its name."""


def _fastest_tree(name: str, inputs: Inputs, rule: str) -> Method:
    model = inputs.model(rule)
    request = replace(inputs.request, rule=model.acceptance.rule, max_nodes=model.costs.max_nodes)
    tree = requested_plan(inputs.profile, request).tree.tree
    return _method(name, inputs, model, tree if tree.nodes > 1 else chain(1))


def _sequences(model: StepModel) -> Iterator[TokenTree]:
    """Yield every number and length of sequences that was measured."""
    deepest = model.acceptance.table.max_depth or model.costs.max_nodes
    for count in range(2, min(MAX_SEQUENCES, model.costs.max_draft_width) + 1):
        for length in range(1, min(deepest, (model.costs.max_nodes - 1) // count) + 1):
            yield chains(count, length)


def _method(name: str, inputs: Inputs, model: StepModel, tree: TokenTree) -> Method:
    return inputs.method(name, model.predict(tree), model=model)
