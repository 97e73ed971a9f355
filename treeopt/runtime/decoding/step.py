"""One decoding step: draft a tree for each sequence, verify all trees in one target pass, accept a path of each, commit it."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from treeopt.errors import TreeoptError
from treeopt.runtime.decoding.acceptance import Acceptance, Draft
from treeopt.runtime.decoding.observer import Observer, StepEvent, StepSeconds
from treeopt.runtime.decoding.target_sequence import TargetSequence
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step, intern_tree
from treeopt.runtime.drafters.sequence_drafter import SequencePool
from treeopt.runtime.drafters.static_tree import PlainDrafter, StaticTreeDrafter
from treeopt.runtime.models.finite import all_finite, copy_to_host, count_usable_nodes, draft_warning, not_finite_error
from treeopt.runtime.models.model import Output, Outputs, concatenate
from treeopt.runtime.models.runner import Runner
from treeopt.runtime.rules.verify import Verdict


@dataclass(slots=True)
class Stepper:
    """Decodes a batch of sequences step by step; a single sequence is a batch of one.

    `on_step` is called with the step of each sequence once all are committed; `now_s` is the clock of its times.
    """

    drafter: Drafter
    """Drafts, unless another drafter is selected in place of a static tree."""
    runner: Runner
    targets: SequencePool[TargetSequence]
    acceptance: Acceptance
    on_step: Observer | None = None
    now_s: Callable[[], float] = perf_counter
    _warned: bool = False
    _other: Drafter | None = None
    """The selected drafter."""
    _unread: set[int] = field(default_factory=set)
    """Sequences that `drafter` has not begun, because another was selected."""

    @torch.inference_mode()
    def begin(self, sequence: int, token_ids: Sequence[int], seed: int) -> None:
        """Prefill all tokens of a sequence but the last, which is the root, and begin the drafter."""
        states = self.targets.acquire(sequence).begin(token_ids, seed)
        if self._other is not None:
            self._unread.add(sequence)
        self._active.begin(sequence, token_ids, states)

    @torch.inference_mode()
    def select_drafter(self, other: Drafter | None) -> None:
        """Draft with another drafter from the next step on; None selects the static tree again.

        The other drafter begins every sequence.  The draft model keeps its cache meanwhile, and feeds the tokens that it
        missed, or the whole of a new sequence, when it drafts again.
        """
        if self._other is not None and self._other is not other:
            for sequence in self.targets:
                self._other.end(sequence)
        if other is not None:
            self._begin(other, self.targets)
        else:
            self._begin(self.drafter, self._unread)
            self._unread.clear()
        self._other = other

    def _begin(self, drafter: Drafter, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            target = self.targets[sequence]
            drafter.begin(sequence, [*target.tokens, *target.step_tokens], None)

    @property
    def _active(self) -> Drafter:
        return self.drafter if self._other is None else self._other

    def step(self, sequences: Sequence[int]) -> list[Step | TreeoptError]:
        """Decode one step of each sequence; return an error for each sequence whose logits are not finite."""
        start_s = self.now_s()
        proposals = self.draft(sequences)
        drafted_s = self.now_s()
        outputs = self.verify(sequences, proposals)
        verified_s = self.now_s()
        results = self.accept(sequences, proposals, outputs)
        self.commit(sequences, results)
        if self.on_step is not None:
            accept_s = self.now_s() - verified_s
            self._notify(
                sequences, proposals, results, StepSeconds(drafted_s - start_s, verified_s - drafted_s, accept_s)
            )
        return results

    def draft(self, sequences: Sequence[int]) -> list[Proposal]:
        return self._active.propose(sequences, [self.targets[number].generator for number in sequences])

    def verify(self, sequences: Sequence[int], proposals: Sequence[Proposal]) -> Outputs:
        """Return the target's logits, and the hidden states that the drafter reads, at every token, from one pass."""
        inputs = [self.targets[number].feed(proposal) for number, proposal in zip(sequences, proposals, strict=True)]
        return self.runner.forward(inputs)

    def accept(
        self, sequences: Sequence[int], proposals: Sequence[Proposal], outputs: Outputs
    ) -> list[Step | TreeoptError]:
        """Return the accepted path of each sequence and its bonus token, or an error."""
        drafts = [self._finite_draft(proposal) for proposal in proposals]
        generators = [self.targets[number].generator for number in sequences]
        verdicts = self.acceptance(drafts, _draft_logits(drafts, outputs), generators)
        return [
            self.build_step(number, draft.tokens, verdict, output, truncated=draft.truncated)
            for number, draft, verdict, output in zip(sequences, drafts, verdicts, outputs, strict=True)
        ]

    def build_step(
        self, sequence: int, tokens: Sequence[int], verdict: Verdict, output: Output, *, truncated: bool = False
    ) -> Step | TreeoptError:
        """Return the step of a verdict on drafted tokens, or an error if the target's logits were not finite."""
        if not verdict.finite:
            target = self.targets[sequence]
            target.reset()
            return not_finite_error(target.target.name, "target")
        committed = [*(tokens[node] for node in verdict.nodes[1:]), verdict.bonus]
        return Step(verdict.nodes, committed, output.logits, output.states, truncated)

    def commit(self, sequences: Sequence[int], results: Sequence[Step | TreeoptError]) -> None:
        """Keep the accepted paths in the caches; the bonus token of each sequence is its new root."""
        steps = {number: step for number, step in zip(sequences, results, strict=True) if isinstance(step, Step)}
        for number, step in steps.items():
            self.targets[number].commit(step)
            if self._other is not None and number not in self._unread:
                assert isinstance(self.drafter, StaticTreeDrafter | PlainDrafter)  # no other is replaced
                self.drafter.skip(number, step)
        self._active.accept(list(steps), list(steps.values()))

    def end(self, sequence: int) -> None:
        """Free a sequence, if it was begun."""
        self.drafter.end(sequence)
        if self._other is not None:
            self._other.end(sequence)
        self._unread.discard(sequence)
        self.targets.release(sequence)

    def _notify(
        self,
        sequences: Sequence[int],
        proposals: Sequence[Proposal],
        results: Sequence[Step | TreeoptError],
        batch_seconds: StepSeconds,
    ) -> None:
        """Call the observer with the step of each sequence; only the first receives the times of the batch."""
        assert self.on_step is not None
        seconds: StepSeconds | None = batch_seconds
        for number, proposal, step in zip(sequences, proposals, results, strict=True):
            if isinstance(step, Step):
                self.on_step(StepEvent(number, self.targets[number].tokens, proposal, step, seconds))
                seconds = None

    def _finite_draft(self, proposal: Proposal) -> Draft:
        """Return the levels of a proposal whose distributions were finite; warn once if that is not all of it."""
        scores = proposal.scores
        tokens, values = copy_to_host(proposal.tokens, None if scores is None else scores.values)
        if scores is None or all_finite(values):
            return Draft(proposal.tree, tokens, proposal.tokens, proposal.probs)
        if not self._warned:
            self._warned = True
            warnings.warn(draft_warning(scores.model), stacklevel=2)
        nodes = count_usable_nodes(proposal.tree, scores.nodes, values)
        tree = intern_tree(tuple(proposal.tree.parents[:nodes].tolist()))
        probs = None if proposal.probs is None else proposal.probs[:nodes]
        return Draft(tree, tokens[:nodes], proposal.tokens[:nodes], probs, truncated=True)


def _draft_logits(drafts: Sequence[Draft], outputs: Outputs) -> Tensor:
    """Return the logits (n, V) after the nodes of all drafts, without those of side tokens and of truncated levels."""
    nodes = [draft.tree.nodes for draft in drafts]
    if outputs.logits.shape[0] == sum(nodes):
        return outputs.logits
    return concatenate([output.logits[:count] for output, count in zip(outputs, nodes, strict=True)])
