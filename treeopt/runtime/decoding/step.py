"""One step of any number of texts: draft a tree for each, verify all in one pass of the target, accept a path of each, commit it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from treeopt.errors import TreeoptError
from treeopt.runtime.decoding.observer import Observer, StepSeconds
from treeopt.runtime.decoding.step_acceptance import StepAcceptance
from treeopt.runtime.decoding.target_text import TargetText
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import Outputs
from treeopt.runtime.models.runner import Runner


@dataclass(slots=True)
class Stepper:
    """Decodes texts step by step; a single text is a batch of one.

    Args:
        drafter: what drafts.
        runner: runs the target's passes.
        targets: the target at each text, by number.
        acceptance: accepts paths of proposals.
        on_step: called with each text's step once all are committed.
        now_s: the clock of what `on_step` is called with.
    """

    drafter: Drafter
    runner: Runner
    targets: Texts[TargetText]
    acceptance: StepAcceptance
    on_step: Observer | None = None
    now_s: Callable[[], float] = perf_counter

    def step(self, texts: Sequence[int]) -> list[Step | TreeoptError]:
        """Decode one step of each text; the error of one whose logits are not finite leaves the others alone."""
        start_s = self.now_s()
        proposals = self.draft(texts)
        drafted_s = self.now_s()
        outputs = self.verify(texts, proposals)
        verified_s = self.now_s()
        found = self.accept(texts, proposals, outputs)
        self.commit(texts, found)
        if self.on_step is not None:
            end_s = self.now_s()
            seconds = StepSeconds(drafted_s - start_s, verified_s - drafted_s, end_s - verified_s)
            self.notify(texts, proposals, found, seconds)
        return found

    def draft(self, texts: Sequence[int]) -> list[Proposal]:
        """Return a tree of tokens for each text."""
        return self.drafter.propose(texts, [self.targets[text].noise for text in texts])

    def verify(self, texts: Sequence[int], proposals: Sequence[Proposal]) -> Outputs:
        """Return the target's logits after every token of each proposal, and the states wanted, from one pass."""
        feeds = [self.targets[text].feed(proposal) for text, proposal in zip(texts, proposals, strict=True)]
        return self.runner.forward(feeds)

    def accept(
        self, texts: Sequence[int], proposals: Sequence[Proposal], outputs: Outputs
    ) -> list[Step | TreeoptError]:
        """Return the step of each text: the accepted path and one token sampled after it, or why there is none."""
        at = [self.targets[text] for text in texts]
        verdicts = self.acceptance.verdicts(at, proposals, outputs)
        found: list[Step | TreeoptError] = []
        for each, proposal, output, verdict in zip(at, proposals, outputs, verdicts, strict=True):
            try:
                found.append(self.acceptance.step_of(each, proposal, output, *verdict))
            except TreeoptError as error:
                found.append(error)
        return found

    def commit(self, texts: Sequence[int], found: Sequence[Step | TreeoptError]) -> None:
        """Keep the accepted paths in the caches; the last committed token of each text is its new root."""
        steps = {text: step for text, step in zip(texts, found, strict=True) if isinstance(step, Step)}
        for text, step in steps.items():
            self.targets[text].cache.keep(step.path)
        self.drafter.accept(list(steps), list(steps.values()))

    def notify(
        self,
        texts: Sequence[int],
        proposals: Sequence[Proposal],
        found: Sequence[Step | TreeoptError],
        seconds: StepSeconds | None = None,
    ) -> None:
        """Call the observer with the step of each text; the first is given the seconds of all."""
        if self.on_step is None:
            return
        for text, proposal, step in zip(texts, proposals, found, strict=True):
            if isinstance(step, Step):
                self.targets[text].tell(self.on_step, text, proposal, step, seconds)
                seconds = None
