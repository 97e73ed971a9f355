"""What a server may be set to: plain decoding, one tree for ever, or another one for every number of texts."""

from dataclasses import dataclass, replace

from treeopt.array_record import ShortRepr
from treeopt.planner.chains import chain_schedule
from treeopt.planner.new_tokens import for_new_tokens
from treeopt.planner.planning import requested_plan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import requested_schedule
from treeopt.planner.tokens import TokenModel
from treeopt.records.profile import Profile
from treeopt.simulation.step_seconds import StepSeconds
from treeopt.trees import TokenTree, chain, describe_tree

MOST_CHAINS = 8
PLAIN, SCHEDULE = "plain", "schedule"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ServedSetting(ShortRepr):
    """One way to serve."""

    name: str
    trees: tuple[TokenTree, ...]
    """What each text is verified with where 1, 2, … texts are decoded at a time."""

    @property
    def draft_tokens(self) -> int:
        """Levels of the deepest tree; 0 where nothing is ever drafted."""
        return max(tree.max_depth for tree in self.trees)

    @classmethod
    def fixed(cls, name: str, tree: TokenTree, texts: int) -> "ServedSetting":
        """Return the setting of one tree, however many texts there are."""
        return cls(name=name, trees=(tree,) * texts)


def served_settings(
    profile: Profile,
    seconds: StepSeconds,
    request: PlanRequest,
    default_length: int | None = None,
    *,
    new_tokens: int | None = None,
) -> tuple[ServedSetting, ...]:
    """Return plain decoding, the engine's default, every other fixed setting, and last the schedule.

    Fixed ones are chains of up to 8 draft tokens, as far as measured, and all trees that the schedule takes.

    Args:
        profile: what was measured.
        seconds: of the same.
        request: whose rule, temperature and limits of trees count.
        default_length: draft tokens that an engine takes unless told; None where it has no such default.
        new_tokens: of the texts that the schedule is planned for; None for texts as long as those measured.
    """
    request = replace(request, max_depth=_most_depth(seconds, request))
    planned = profile if new_tokens is None else for_new_tokens(profile, new_tokens)
    texts, scheduled = seconds.most_texts, _scheduled(planned, seconds, request)
    longest = _longest_chain(profile, seconds.model, request)
    named = {chain(0): PLAIN}
    if default_length is not None and 0 < default_length <= longest:
        named[chain(default_length)] = f"default, {describe_tree(chain(default_length))}"
    for tree in (*(chain(length) for length in range(1, min(MOST_CHAINS, longest) + 1)), *scheduled):
        named.setdefault(tree, describe_tree(tree))
    fixed = [ServedSetting.fixed(name, tree, texts) for tree, name in named.items()]
    return (*fixed, ServedSetting(name=SCHEDULE, trees=scheduled))


def _scheduled(profile: Profile, seconds: StepSeconds, request: PlanRequest) -> tuple[TokenTree, ...]:
    """Return the tree for every number of texts from 1 to the largest batch size measured."""
    acceptance = seconds.model.acceptance
    asked = replace(request, rule=acceptance.rule, temperature=acceptance.temperature)
    if profile.engine is not None:
        ranges = [(each.batch_sizes, each.option) for each in chain_schedule(profile, asked)]
    else:
        found = requested_schedule(profile, asked).over_batch_sizes
        ranges = [(each.batch_sizes, each.option) for each in found if each.context_tokens[0] == seconds.contexts[0]]
        ranges = ranges or [((1, 1), requested_plan(profile, asked).choice)]
    trees = {size: choice.tree for (first, last), choice in ranges for size in range(first, last + 1)}
    smallest, largest = min(trees), max(trees)  # beyond them the nearest holds
    return tuple(trees[min(max(smallest, size), largest)] for size in range(1, seconds.most_texts + 1))


def _most_depth(seconds: StepSeconds, request: PlanRequest) -> int | None:
    """Return the most levels that acceptance was measured for at every context length, and that are allowed."""
    depths = [request.max_depth, *(each.acceptance.table.max_depth for each in seconds.models.measured)]
    return min((depth for depth in depths if depth is not None), default=None)


def _longest_chain(profile: Profile, model: TokenModel, request: PlanRequest) -> int:
    measured = min(item.verify.max_tokens for item in profile.latencies_at(model.acceptance.temperature)) - 1
    limits = [measured, model.acceptance.table.max_depth, request.max_depth]
    return min(limit for limit in limits if limit is not None)
