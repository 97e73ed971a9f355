"""Decoding without models: outcomes are drawn from a table, and seconds are those of a machine."""

from types import SimpleNamespace

import numpy as np
import torch

from tests.support.invented_machines import Seconds
from tests.support.planner_oracles import least_from_here
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.observer import StepEvent, StepSeconds
from treeopt.runtime.drafters.drafter import Proposal, Step
from treeopt.runtime.rules import get_rule
from treeopt.trees import TokenTree

VOCABULARY = 64


class SimulatedDecoder:
    """A decoder for observers, with acceptance by `table` and seconds by `machine`.

    The draft model's logits rank the next token by the first row of the table.
    """

    takes_trees = True

    def __init__(self, tree: TokenTree, table, machine: Seconds, *, max_nodes: int, temperature: float = 0.0, seed=0):
        self.tree, self.table, self.machine, self.max_nodes = tree, table, machine, max_nodes
        self.rule, self.sampling, self.draft_sampling = (
            get_rule("sequoia"),
            Sampling(temperature),
            Sampling(temperature),
        )
        self.target = SimpleNamespace(config=SimpleNamespace(vocabulary=VOCABULARY))
        self.draft_model = None
        self.rng = np.random.default_rng(seed)
        self.trees = [tree]
        self.now_s = 0.0
        self.tokens = self.steps = 0
        self.text = [1] * 256
        self.number = 1
        """Number of the sequence."""
        self.last = 0

    def change_tree(self, tree: TokenTree) -> None:
        assert tree.nodes <= self.max_nodes
        self.tree = tree
        self.trees.append(tree)

    def rank(self, depth: int) -> int:
        """Return the accepted rank at a depth, or the number of ranks."""
        row = self.table[min(depth, len(self.table)) - 1]
        return int(np.searchsorted(np.cumsum(row), self.rng.random(), side="right"))

    def path(self) -> tuple[int, ...]:
        path = [0]
        while self.tree.child_counts[path[-1]]:
            rank = self.rank(len(path))
            if rank >= self.tree.child_counts[path[-1]]:
                break
            path.append(int(self.tree.first_child[path[-1]]) + rank)
        return tuple(path)

    def seconds(self) -> StepSeconds:
        verify, draft = least_from_here(self.machine.verify), least_from_here(self.machine.draft)
        drafted = sum(draft[width] for width in self.tree.draft_widths)
        overhead = self.machine.overhead if self.tree.nodes > 1 else 0.0
        return StepSeconds(drafted, verify[self.tree.nodes], overhead)

    def draft_logits(self, tokens: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(tokens), VOCABULARY)
        for row, token in zip(logits, [*tokens[1:], self.last], strict=True):
            row[:] = torch.arange(VOCABULARY) + 100.0
            rank = self.rank(1)
            row[token] = 200.0 if rank == 0 else VOCABULARY + 99.0 - rank + 0.5
        return logits

    def decode(self, observer, steps: int) -> float:
        """Decode some steps and return tokens per second."""
        start_s, start_tokens = self.now_s, self.tokens
        for _ in range(steps):
            path, seconds, tree = self.path(), self.seconds(), self.tree
            tokens = self.rng.integers(VOCABULARY, size=len(path)).tolist()
            self.last = tokens[-1]
            self.now_s += sum(seconds)
            self.tokens += len(path)
            self.steps += 1
            logits = torch.zeros(tree.nodes, VOCABULARY)
            if observer is not None:
                proposal, step = Proposal(tree, logits[:, 0].long()), Step(path, tokens, logits, None)
                observer(StepEvent(self.number, self.text, proposal, step, seconds))
        return (self.tokens - start_tokens) / (self.now_s - start_s)


class TextDecoder(SimulatedDecoder):
    """Decodes a given text, so that drafts of prompt lookup are accepted if the text continues with them.

    Args:
        source: the text.
        prompt: tokens of the text that are the prompt.
        overhead_s: of a step of prompt lookup, without the target's pass.
    """

    def __init__(self, tree, source, table, machine, *, prompt=32, overhead_s=0.01, **more):
        super().__init__(tree, table, machine, **more)
        self.source, self.overhead_s = source, overhead_s
        self.text = list(source[:prompt])
        self.drafter = None
        self.strategies = [tree]

    def change_tree(self, tree):
        super().change_tree(tree)
        self.drafter = None
        self.strategies.append(tree)

    def change_drafter(self, drafter):
        assert drafter.max_tokens <= self.max_nodes
        drafter.begin(1, self.text)
        self.drafter = drafter
        self.strategies.append(drafter.setting)

    def decode(self, observer, steps):
        start_s, start_tokens = self.now_s, self.tokens
        for _ in range(steps):
            if self.drafter is None:
                proposal, path, seconds = Proposal(self.tree, torch.zeros(1)), self.path(), self.seconds()
            else:
                (proposal,) = self.drafter.propose([1])
                path, seconds = self.lookup_path(proposal), self.lookup_seconds(proposal)
            tokens = self.source[len(self.text) : len(self.text) + len(path)]
            step = Step(path, tokens, torch.zeros(proposal.tree.nodes, VOCABULARY), None)
            self.now_s += sum(seconds)
            self.tokens += len(path)
            self.steps += 1
            self.last = tokens[-1]
            before = list(self.text)
            self.text += tokens
            if self.drafter is not None:
                self.drafter.accept([1], [step])
            if observer is not None:
                observer(StepEvent(1, before, proposal, step, seconds))
        return (self.tokens - start_tokens) / (self.now_s - start_s)

    def lookup_path(self, proposal):
        """Return the accepted path of a chain."""
        following = self.source[len(self.text) : len(self.text) + proposal.tree.max_depth]
        path = [0]
        for node, (drafted, token) in enumerate(zip(proposal.tokens.tolist()[1:], following, strict=True), 1):
            if drafted != token:
                break
            path.append(node)
        return tuple(path)

    def lookup_seconds(self, proposal):
        verify = least_from_here(self.machine.verify)
        return StepSeconds(0.2 * self.overhead_s, verify[proposal.tree.nodes], 0.8 * self.overhead_s)
