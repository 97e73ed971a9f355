"""SpecExec: in every step the draft model grows the most probable paths that fit a budget (Svirschevski et al., 2024)."""

from functools import partial

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.best_first_expansion import BestFirstExpansion
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter, draft_models
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees.own_trees import SpecExecSetting


class SpecExecDrafter(ExpandingDrafter):
    """Grows the tree of every step best first with a small model that shares the target's vocabulary.

    Args:
        model: the draft model; its probabilities are those of temperature 1, whatever the target's.
        setting: how trees grow.
        capacity: longest text, in tokens; nothing is drafted in one longer than the model takes.

    Raises InvalidValueError for more children than the vocabulary has, trees deeper than the longest text, and a cache
    that does not fit into memory.
    """

    def __init__(self, model: LanguageModel, setting: SpecExecSetting, *, capacity: int) -> None:
        capacity = min(capacity, model.config.max_positions)
        _check(setting, model, capacity)
        caches = partial(new_caches, model, capacity + setting.max_fed)
        try:
            super().__init__(model, draft_models(model, caches, capacity), partial(BestFirstExpansion, setting))
        except (RuntimeError, MemoryError) as error:  # of one sequence; more sequences are not the setting's fault
            raise InvalidValueError(
                f"budget: expected a cache of the draft model that fits into memory. Got {setting.max_fed} nodes fed in "
                f"a step, of budget {setting.budget}, batch {setting.batch} and max_passes {setting.max_passes}: lower one.",
                field="budget",
            ) from error
        self.setting = setting


def _check(setting: SpecExecSetting, model: LanguageModel, capacity: int) -> None:
    if setting.branching > model.config.vocabulary:
        raise InvalidValueError(
            f"branching: expected at most {model.config.vocabulary}, the vocabulary. Got {setting.branching}."
        )
    if setting.max_depth > capacity:
        raise InvalidValueError(
            f"max_passes: expected at most {capacity}, the longest text, where the budget is larger. "
            f"Got {setting.max_depth} levels, of max_passes {setting.max_passes} and budget {setting.budget}."
        )
