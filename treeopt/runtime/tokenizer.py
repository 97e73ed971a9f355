"""Text to token ids and back, with the `tokenizer.json` of a model folder."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from treeopt.errors import FormatError, TreeoptError

UNFINISHED = "\ufffd"
"""What a decoder writes for a character whose last bytes are still to come."""


class Tokenizer:
    """Encodes and decodes with the fast tokenizer of a folder.

    Raises TreeoptError when the folder has no `tokenizer.json`, FormatError when it cannot be read.
    """

    def __init__(self, folder: Path | str) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise TreeoptError(f"{path}: no such file. Expected the model's fast tokenizer beside its weights.")
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001, the library raises nothing more specific
            raise FormatError(path, "content", f"expected a fast tokenizer ({error}).") from None

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by token, added ones included."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of a sequence of token ids piece by piece, never half a character.

        Tokens are decoded behind a few that were shown already, because some tokenizers write the first token of a
        text differently from one in the middle.
        """
        shown: list[int] = []
        waiting: list[int] = []
        for token in tokens:
            waiting.append(token)
            before, text = self.decode(shown), self.decode([*shown, *waiting])
            if not text.endswith(UNFINISHED):
                yield text[len(before) :]
                shown, waiting = waiting, []
        if waiting:
            yield self.decode([*shown, *waiting])[len(self.decode(shown)) :]
