"""The decode loop: draft a tree, verify it in one pass of the target, accept a path of it, commit the path."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.sampling import Sampling, draft_sampling_of
from treeopt.runtime.decoding.acceptance import Draft, acceptance_by
from treeopt.runtime.decoding.limits import check_text
from treeopt.runtime.decoding.prepared import PreparedTrees
from treeopt.runtime.decoding.setup import Setup, fitting_rule
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.drafters.recurring import recurring_tree
from treeopt.runtime.models.finite import all_finite, draft_warning, not_finite_error, on_host, usable_nodes
from treeopt.runtime.models.graphs import passes_over, pool_for
from treeopt.runtime.models.model import LanguageModel, Output
from treeopt.runtime.rules.verify import Verdict
from treeopt.texts.stop import Stopping
from treeopt.trees import TokenTree


class Decoder:
    """Decodes one text at a time with any drafter.

    The text's distribution is the target's: at temperature 0 the same tokens as plain decoding, above it the same
    probabilities.  A text depends on its prompt and seed alone, not on those decoded before.

    Args:
        target: the model whose text is wanted.
        drafter: what drafts: a draft model, which fills `tree`; a `Drafter`, which brings trees of its own; None for
            plain decoding.
        tree: what a draft model drafts in every step; the root alone is plain decoding.
        rule: verification rule, by default `sequoia`, or `target` for a `Drafter` whose tokens are not sampled; at
            temperature 0 all are one.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's distribution that is kept, above 0 and at most 1.
        top_k: tokens of the target's distribution that are kept, the likeliest; 0 keeps all.
        sampling: the three of them as one record; they are not looked at then.
        draft_sampling: what a static tree's children are sampled from; by default the target's temperature and all
            tokens.  It changes how many are accepted, never the text's distribution.
        seed: of all randomness: a text that is given none takes one made of this and the number of the text.
        lossy: allow a rule under which the text does not follow the target's distribution.
        max_text_tokens: longest text, prompt included; at most and by default what the models were trained for.
        max_nodes: nodes of the largest tree that `change_tree` may bring; by default this tree's.
        cuda_graphs: whether passes over trees that come again are captured as CUDA graphs, which takes a moment for
            every new size; by default on a CUDA device.  On a CPU, the same work is done without graphs.

    Raises InvalidValueError for values out of range, rules that do not fit the drafter, and models whose vocabularies
    differ in size, OutOfMemoryError where caches, masks and probabilities need more memory than is free.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | Drafter | None,
        tree: TokenTree | None = None,
        *,
        rule: str | None = None,
        temperature: float = 0.6,
        top_p: float = 1.0,
        top_k: int = 0,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        seed: int = 0,
        lossy: bool = False,
        max_text_tokens: int | None = None,
        max_nodes: int | None = None,
        cuda_graphs: bool | None = None,
    ) -> None:
        self._rule = fitting_rule(rule, drafter, lossy=lossy)
        sampling = sampling or Sampling(temperature, top_p, top_k)
        sampled_from = draft_sampling_of(sampling, draft_sampling)
        self._setup = setup = Setup.of(target, drafter, tree, max_nodes=max_nodes, max_text_tokens=max_text_tokens)
        setup.check_memory(sampling)
        if setup.tree is not None:
            setup.check_tree(setup.tree)
        self.target = target
        self.max_nodes = setup.max_nodes
        self.max_text_tokens = setup.max_text_tokens
        pool = pool_for(target.device, cuda_graphs)
        self._static = setup.static_drafter(self._rule, sampled_from, pool)
        self._drafter: Drafter = drafter if isinstance(drafter, Drafter) else self._static
        self._cache = target.new_cache(self.max_text_tokens + self.max_nodes)
        self._passes = passes_over(
            target,
            self._cache,
            capacity=self.max_text_tokens,
            max_nodes=self.max_nodes,
            pool=pool,
            wants=self._drafter.wants,
        )
        self._prepared = PreparedTrees(self._passes, trained=setup.trained_tokens)
        self._acceptance = acceptance_by(self._rule, sampling, target)
        self._seed = seed
        self._text = 0
        self._noise = torch.Generator(target.device)
        self._warned = False
        self._prepare()

    @property
    def tree(self) -> TokenTree:
        """The static tree; the root alone where a drafter brings trees of its own."""
        return self._static.tree

    def change_tree(self, tree: TokenTree) -> None:
        """Draft and verify another tree from the next step on, between texts or within one.

        What is committed stays, and so do both caches and all captured graphs.

        Raises InvalidValueError for a tree of more nodes than `max_nodes`, where the decoder could not be made with it,
        and where a drafter brings trees of its own.
        """
        if self._setup.tree is None:
            raise InvalidValueError("tree: expected none, because the drafter brings its own. Got one: leave it out.")
        self._setup.check_tree(tree)
        self._static.change_tree(tree)
        self._prepare()

    def generate(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[int]:
        """Return an iterator over the committed tokens, decoded as they are asked for.

        It ends after `max_new_tokens`, with the target's end token, or with the first of the token sequences `stop`
        that the new text holds; what ended it is its last tokens.  It may be given up at any time.

        Args:
            token_ids: the prompt.
            max_new_tokens: most tokens.
            stop: token sequences that end the text.
            seed: of this text, which then does not depend on how many were decoded before.

        Raises InvalidValueError, before anything runs, for an empty prompt, a token outside the vocabulary, or a text
        longer than the models were trained for; TreeoptError where another text was begun meanwhile.
        """
        return chain.from_iterable(self.steps(token_ids, max_new_tokens, stop=stop, seed=seed))

    def steps(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[list[int]]:
        """Return an iterator over the tokens of each step; `generate` returns them one by one."""
        check_text(
            token_ids,
            max_new_tokens,
            vocabulary=self.target.config.vocabulary,
            max_text_tokens=self.max_text_tokens,
        )
        stopping = self._stopping(stop)
        self.start(token_ids, seed=seed)
        return (step.tokens[:count] for step, count in self._loop(self.step, max_new_tokens, stopping, self._text))

    def whole_steps(
        self,
        token_ids: Sequence[int],
        positions: int,
        step: Callable[[], Step] | None = None,
        *,
        seed: int | None = None,
    ) -> Iterator[Step]:
        """Return an iterator over the steps of a text of at least `positions` new tokens, fewer where it ends.

        Args:
            token_ids: the prompt.
            positions: new tokens; fewer where the longest text has no room for them.
            step: decodes one step; by default `step` of this decoder.
            seed: of this text, which then does not depend on how many were decoded before.
        """
        self.start(token_ids, seed=seed)
        most = min(positions, self.max_text_tokens - len(token_ids))
        return (found for found, _ in self._loop(step or self.step, most, self._stopping(), self._text))

    @torch.inference_mode()
    def start(self, token_ids: Sequence[int], *, seed: int | None = None) -> None:
        """Begin a text: fill the caches with all of it but the last token, which becomes the root."""
        self._drafter.end(self._text)
        self._text += 1
        seed = _text_seed(self._seed, self._text) if seed is None else seed
        self._noise = torch.Generator(self.target.device).manual_seed(seed)
        self._cache.clear()
        tokens = torch.tensor(token_ids[:-1], dtype=torch.int64, device=self.target.device)
        states = self.target.prefill(tokens, self._cache, self._drafter.wants)
        self._drafter.begin(self._text, token_ids, states)

    def step(self) -> Step:
        """Decode one step of the text."""
        proposal = self.draft()
        output = self.verify(proposal)
        step = self.accept(proposal, output)
        self.commit(step)
        return step

    def draft(self) -> Proposal:
        """Return the draft of a step."""
        return self._drafter.propose([self._text], [self._noise])[0]

    def verify(self, proposal: Proposal) -> Output:
        """Return the target's logits after every token of a proposal, from one pass, and the states wanted."""
        tokens, side = proposal.tokens, proposal.side
        if side is not None:
            tokens = torch.cat([tokens, side.tokens])
        return self._prepared.of(proposal.tree, side).run(
            tokens if tokens.device == self.target.device else tokens.to(self.target.device)
        )

    def accept(self, proposal: Proposal, output: Output) -> Step:
        """Return the step that a proposal comes to: the accepted path, and one token sampled after it.

        Raises TreeoptError, and forgets the text, where the target's distributions are not finite.
        """
        draft = self._finite(proposal)
        nodes = len(draft.tokens)
        logits = output.logits if len(output.logits) == nodes else output.logits[:nodes]
        verdict = self._acceptance(draft, logits, self._noise)
        return self.accepted(draft.tokens, verdict, output, cut=nodes < proposal.tree.nodes)

    def accepted(self, tokens: Sequence[int], verdict: Verdict, output: Output, *, cut: bool = False) -> Step:
        """Return the step of a verdict on drafted tokens; see `accept`."""
        if not verdict.finite:
            self._cache.clear()
            self._passes.clean()
            raise not_finite_error(self.target.name, "target")
        committed = [*(tokens[node] for node in verdict.nodes[1:]), verdict.bonus]
        return Step(verdict.nodes, committed, output.logits, output.states, cut)

    def commit(self, step: Step) -> None:
        """Keep the accepted path in the caches; the last committed token is the new root."""
        self._cache.keep(0, step.path)
        self._drafter.accept([self._text], [step])

    def _finite(self, proposal: Proposal) -> Draft:
        """Return as much of a proposal as was made from distributions that are finite."""
        scores = proposal.scores
        tokens, values = on_host(proposal.tokens, None if scores is None else scores.values)
        if scores is None or all_finite(values):
            children = self._prepared.children(proposal.tree)
            return Draft(proposal.tree, children, tokens, proposal.tokens, proposal.probs)
        if not self._warned:
            self._warned = True
            warnings.warn(draft_warning(scores.model), stacklevel=2)
        nodes = usable_nodes(proposal.tree, scores.nodes, values)
        tree = recurring_tree(tuple(proposal.tree.parents[:nodes].tolist()))
        probs = None if proposal.probs is None else proposal.probs[:nodes]
        return Draft(tree, self._prepared.children(tree), tokens[:nodes], proposal.tokens[:nodes], probs)

    def _prepare(self) -> None:
        """Make what is needed for the static tree before its first step."""
        self._prepared.make(self._static.tree)
        self._acceptance.prepare(self._static.tree)

    def _stopping(self, stop: Sequence[Sequence[int]] = ()) -> Stopping:
        ends = [(token,) for token in self.target.config.end_tokens]
        return Stopping([*ends, *stop], vocabulary=self.target.config.vocabulary)

    def _loop(self, step: Callable[[], Step], left: int, stopping: Stopping, text: int) -> Iterator[tuple[Step, int]]:
        """Yield the steps of a text, and how many tokens of each belong to it."""
        while left > 0:
            if self._text != text:
                raise TreeoptError("generate: another text was begun on this decoder. Make a decoder for each.")
            found = step()
            tokens = found.tokens[:left]
            end = stopping.length(tokens)
            left = 0 if end is not None else left - len(tokens)
            yield found, len(tokens) if end is None else end


def _text_seed(seed: int, text: int) -> int:
    """Return the seed of a decoder's text by its number, which no other text of the decoder has."""
    return int(np.random.SeedSequence([seed % 2**64, text]).generate_state(1, np.uint64)[0])
