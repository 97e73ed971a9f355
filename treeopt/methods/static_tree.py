"""Methods with a static tree that the draft model fills: plain decoding, chains, one that learns, sequences, trees."""

from collections.abc import Iterator
from dataclasses import replace

from treeopt.methods.method import Inputs, Method
from treeopt.planner import Plan, PlanRequest, StepModel, requested_plan
from treeopt.planner.chains import fastest_length
from treeopt.runtime import Decoder
from treeopt.runtime.learning.learner import built_in, learning_copy
from treeopt.trees import TokenTree, chain, chains

MAX_SEQUENCES = 8
NOT_LEARNT = "the draft is accepted as often as before it learnt anything, and learning takes no time"


def plain(inputs: Inputs) -> Method:
    """Return plain decoding."""
    return _method("plain", inputs, inputs.model(), chain(0))


def one_chain(inputs: Inputs) -> Method:
    """Return the fastest single sequence, at least one token long (Leviathan et al., 2023)."""
    model = inputs.model("sequoia")
    return _method("chain", inputs, model, _best_chain(model))


def learning_chain(inputs: Inputs) -> Method:
    """Return that sequence from a draft which learns as it goes, a copy for each decoder (Liu et al., 2023).

    Raises InfeasibleError for a draft whose weights cannot be changed.
    """
    model, sampling = inputs.model("sequoia"), inputs.sampling
    tree = _best_chain(model)
    planned = _method("osd", inputs, model, tree)
    built_in(inputs.pair.draft_model)  # refused while it is planned, before anything is decoded

    def make(seed: int) -> Decoder:
        draft, learner = learning_copy(inputs.pair.draft_model)
        target = inputs.pair.target
        return Decoder(target, draft, tree, rule=planned.rule, sampling=sampling, seed=seed, on_step=learner)

    return replace(planned, make=make, assumed=(NOT_LEARNT,))


def k_sequences(inputs: Inputs) -> Method:
    """Return the fastest of two and more independent sequences (Miao et al., 2024)."""
    model = inputs.model("specinfer")
    return _method("k-sequences", inputs, model, max(_sequences(model), key=model.speedup))


def top_k_tree(inputs: Inputs) -> Method:
    """Return the fastest tree of likeliest children, verified by the rule `target`."""
    return _planned("top-k-tree", inputs, "target")


def sequoia(inputs: Inputs) -> Method:
    """Return the fastest tree of children sampled without replacement, by Sequoia's rule (Chen et al., 2024)."""
    return _planned("sequoia", inputs, "sequoia")


def best_rule(inputs: Inputs, plan: Plan) -> Method:
    """Return the fastest tree under the best of the rules that were measured, which the plan holds."""
    return _method("treeopt", inputs, plan.model, plan.choice.tree)


def _planned(name: str, inputs: Inputs, rule: str) -> Method:
    model = inputs.model(rule)
    acceptance = model.acceptance
    request = PlanRequest(
        rule=acceptance.rule, temperature=inputs.sampling.temperature, max_nodes=model.costs.max_nodes
    )
    found = requested_plan(inputs.profile, request)
    tree = found.tree.tree
    return _method(name, inputs, model, tree if tree.nodes > 1 else chain(1))


def _best_chain(model: StepModel) -> TokenTree:
    return chain(max(1, fastest_length(model)))


def _sequences(model: StepModel) -> Iterator[TokenTree]:
    """Yield every number and length of sequences that was measured."""
    deepest = model.acceptance.table.max_depth or model.costs.max_nodes
    for count in range(2, min(MAX_SEQUENCES, model.costs.max_draft_width) + 1):
        for length in range(1, min(deepest, (model.costs.max_nodes - 1) // count) + 1):
            yield chains(count, length)


def _method(name: str, inputs: Inputs, model: StepModel, tree: TokenTree) -> Method:
    option = model.predict(tree)
    rule, sampling = model.acceptance.rule, inputs.sampling

    def make(seed: int) -> Decoder:
        return Decoder(
            inputs.pair.target,
            inputs.pair.draft_model if tree.nodes > 1 else None,
            tree,
            rule=rule,
            sampling=sampling,
            seed=seed,
        )

    return Method(
        name=name, rule=rule, setting=option.shape, predicted=option.speedup, make=make, model=model, tree=tree
    )
