"""Categories of prompts, one for each measured text; `""` is a prompt without a category."""

from collections.abc import Iterable, Sequence

from treeopt.errors import InvalidValueError


def check_categories(categories: Sequence[str], texts: int) -> None:
    """Raise InvalidValueError unless there are no categories, or one for each text."""
    if categories and len(categories) != texts:
        raise InvalidValueError(
            f"categories: expected one for each of {texts} texts. Got {len(categories)}.", field="categories"
        )


def text_categories(categories: Sequence[str], numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the categories of some prompts by their numbers; empty where no prompt of the profile has one."""
    return tuple(categories[number] for number in numbers) if any(categories) else ()
