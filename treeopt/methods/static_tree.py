"""Methods with static trees of the draft model: plain decoding, chains, independent sequences, trees."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from treeopt.errors import InfeasibleError
from treeopt.methods.method import Inputs, Method
from treeopt.planner import StepModel, requested_plan
from treeopt.planner.segments import fastest_length
from treeopt.profiler.decoding import Decoding
from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import built_in_model, make_learning_copy
from treeopt.trees import TokenTree, chain, chains

MAX_SEQUENCES = 8
WITHOUT_LEARNING = "acceptance as before learning, and learning takes no time"


def plan_plain(inputs: Inputs) -> Method:
    return _method("plain", inputs, inputs.step_model(), chain(0))


def plan_chain(inputs: Inputs) -> Method:
    """Return the fastest chain of at least one draft token (Leviathan et al., 2023)."""
    model = inputs.step_model("sequoia")
    return _method("chain", inputs, model, chain(max(1, fastest_length(model))))


def plan_learning_chain(inputs: Inputs) -> Method:
    """Return the fastest chain with a draft model that learns while decoding (Liu et al., 2023).

    Every decoder has its own copy of the draft model.  Raises InfeasibleError if its weights cannot be changed.
    """
    chain_method = plan_chain(inputs)
    built_in_model(inputs.pair.draft_model)  # fail before anything is decoded

    def build() -> Decoder:
        draft, learner = make_learning_copy(inputs.pair.draft_model)
        decoding = Decoding(rule=chain_method.option.rule, sampling=inputs.sampling)
        return decoding.decoder(inputs.pair.target, draft, chain_method.option.tree, None, on_step=learner)

    return replace(chain_method, name="osd", build=build, assumed=(WITHOUT_LEARNING,))


def plan_k_sequences(inputs: Inputs) -> Method:
    """Return the fastest set of two or more independent sequences (Miao et al., 2024).

    Raises InfeasibleError if too few tokens were timed for two.
    """
    model = inputs.step_model("specinfer")
    fastest = max(_sequences(model), key=model.speedup, default=None)
    if fastest is None:
        raise InfeasibleError(
            "k-sequences: expected times of 3 verified tokens and of levels of 2 nodes. Got fewer: profile with a larger "
            "--max-tokens."
        )
    return _method("k-sequences", inputs, model, fastest)


def plan_tree(name: str, rule: str, inputs: Inputs) -> Method:
    """Return the fastest tree under a rule."""
    model = inputs.step_model(rule)
    tree = requested_plan(inputs.profile, replace(inputs.request, rule=model.acceptance.rule)).tree.tree
    return _method(name, inputs, model, tree if tree.nodes > 1 else chain(1))


def plan_best_rule(inputs: Inputs) -> Method:
    """Return the fastest tree under the best measured rule."""
    return _method("treeopt", inputs, inputs.plan.model, inputs.plan.choice.tree)


PLANNERS: dict[str, Callable[[Inputs], Method]] = {
    "plain": plan_plain,
    "chain": plan_chain,
    "osd": plan_learning_chain,
    "k-sequences": plan_k_sequences,
    "top-k-tree": partial(plan_tree, "top-k-tree", "target"),  # the most likely children
    "sequoia": partial(plan_tree, "sequoia", "sequoia"),  # children sampled without replacement (Chen et al., 2024)
}
"""The planner of each method by its name."""


def _sequences(model: StepModel) -> Iterator[TokenTree]:
    """Yield every number and length of sequences within the measured range."""
    max_length = model.acceptance.table.max_depth or model.costs.max_nodes
    for count in range(2, min(MAX_SEQUENCES, model.costs.max_draft_width) + 1):
        for length in range(1, min(max_length, (model.costs.max_nodes - 1) // count) + 1):
            yield chains(count, length)


def _method(name: str, inputs: Inputs, model: StepModel, tree: TokenTree) -> Method:
    return inputs.build_method(name, model.predict(tree), model=model)
