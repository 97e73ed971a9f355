"""Systems with a static tree that the draft model fills: plain decoding, chains, sequences, trees."""

from collections.abc import Iterator
from dataclasses import asdict

from treeopt.methods.method import Grounds, System
from treeopt.planner import Candidate, StepModel, kind_of, largest_pass, plan
from treeopt.planner.chains import fastest_chain
from treeopt.runtime import Decoder
from treeopt.trees import TokenTree, chain, chains

MAX_SEQUENCES = 8


def plain(grounds: Grounds) -> System:
    """Return plain decoding."""
    return _system("plain", grounds, grounds.model(), chain(0))


def one_chain(grounds: Grounds) -> System:
    """Return the fastest single sequence, at least one token long (Leviathan et al., 2023)."""
    model = grounds.model("sequoia")
    best = fastest_chain(model).tree
    return _system("chain", grounds, model, best if best.nodes > 1 else chain(1))


def k_sequences(grounds: Grounds) -> System:
    """Return the fastest of two and more independent sequences (Miao et al., 2024)."""
    model = grounds.model("specinfer")
    return _system("k-sequences", grounds, model, max(_sequences(model), key=model.speedup))


def top_k_tree(grounds: Grounds) -> System:
    """Return the fastest tree of likeliest children, verified by the rule `target`."""
    return _planned("top-k-tree", grounds, "target")


def sequoia(grounds: Grounds) -> System:
    """Return the fastest tree of children drawn without replacement, by Sequoia's rule (Chen et al., 2024)."""
    return _planned("sequoia", grounds, "sequoia")


def best_rule(grounds: Grounds) -> System:
    """Return the fastest tree under the best of the rules that were measured."""
    temperature = grounds.sampling.temperature
    found = plan(grounds.profile, largest_pass(grounds.profile, temperature=temperature), temperature=temperature)
    return _system("treeopt", grounds, found.model, found.choice.tree)


def _planned(name: str, grounds: Grounds, rule: str) -> System:
    model = grounds.model(rule)
    acceptance = model.acceptance
    found = plan(grounds.profile, model.costs.max_nodes, rule=acceptance.rule, temperature=grounds.sampling.temperature)
    tree = found.tree.tree
    return _system(name, grounds, model, tree if tree.nodes > 1 else chain(1))


def _sequences(model: StepModel) -> Iterator[TokenTree]:
    """Yield every number and length of sequences that was measured."""
    deepest = model.acceptance.table.max_depth or model.costs.max_nodes
    for count in range(2, min(MAX_SEQUENCES, model.costs.max_draft_width) + 1):
        for length in range(1, min(deepest, (model.costs.max_nodes - 1) // count) + 1):
            yield chains(count, length)


def _system(name: str, grounds: Grounds, model: StepModel, tree: TokenTree) -> System:
    candidate: Candidate = model.predict(kind_of(tree), tree)
    rule, sampling = model.acceptance.rule, grounds.sampling

    def make(seed: int) -> Decoder:
        return Decoder(
            grounds.pair.target,
            grounds.pair.draft if tree.nodes > 1 else None,
            tree,
            rule=rule,
            **asdict(sampling),
            seed=seed,
        )

    return System(name=name, rule=rule, setting=candidate.shape, predicted=candidate.speedup, make=make)
