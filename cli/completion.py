"""The Tab key in bash, which takes words apart at `=`, and replaces only what stands behind it."""

import os
from typing import Any

from click.shell_completion import BashComplete, CompletionItem, split_arg_string


class JoinedBash(BashComplete):
    """Bash's completion with `NAME=DIR` and `--option=value` as the single words that they are."""

    _kept = ""
    """What bash leaves of the word: all up to the last `=` that it took apart."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is typed, and what there is of that."""
        last = int(os.environ["COMP_CWORD"])
        words = split_arg_string(os.environ["COMP_WORDS"])[: last + 1]
        joined: list[str] = []
        words += [""] * (last + 1 - len(words))
        for place, word in enumerate(words):
            if joined and "=" in (word, words[place - 1]):
                joined[-1] += word
            else:
                joined.append(word)
        if "=" in words[-2:]:
            before, equals, _ = joined[-1].rpartition("=")
            self._kept = before + equals
        return joined[1:-1], joined[-1]

    def format_completion(self, item: "CompletionItem[Any]") -> str:
        """Return a line for the shell, without what bash leaves of the word; folders it completes itself."""
        value = str(item.value)
        value = value.removeprefix(self._kept).removeprefix(self._kept.partition("=")[2])
        return f"{'dir' if item.folder and self._kept else item.type},{value}"
