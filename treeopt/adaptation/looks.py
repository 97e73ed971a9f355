"""When what was counted is looked at, and when the usual way is compared anew though nothing changed."""

LOOK_STEPS, FIRST_LOOK_STEPS = 32, 4
"""Steps between two looks at what was counted, and, where something is drafted, before the first one behind a change and in
a text that is looked at soon; each pause after it is twice as long as the one before."""
FIRST_TEXTS, MOST_TEXTS = 2, 32
"""After so many texts the usual way is compared anew in any case: first, or one after something changed, then twice as many
each time, and at most."""
SOON_TEXTS = 4
"""So many texts behind a change for good are looked at soon."""


class Looks:
    """Counts steps and texts towards the next look."""

    def __init__(self) -> None:
        self.pause_steps = LOOK_STEPS
        """Steps before the next look."""
        self._since_solved = self._soon = 0
        self._solve_texts = FIRST_TEXTS

    def soon(self, *, drafts: bool) -> None:
        """Have the next look come soon, where something is drafted."""
        self.pause_steps = FIRST_LOOK_STEPS if drafts else LOOK_STEPS

    def looked(self) -> None:
        """Have the next pause be longer."""
        self.pause_steps = min(LOOK_STEPS, 2 * self.pause_steps)

    def changed(self) -> None:
        """Have the usual way compared soon, and the next texts looked at soon: something changed for good."""
        self._solve_texts, self._soon = 1, SOON_TEXTS

    def solved(self) -> None:
        """Count texts anew: the usual way was compared."""
        self._since_solved = 0

    def next_text(self) -> bool:
        """Return whether the text that begins is to be looked at soon."""
        soon, self._soon = self._soon > 0, max(0, self._soon - 1)
        return soon

    def end_stretch(self) -> str | None:
        """Count a text, or so much of a long one, and return in words that the usual way is to be compared, None where not."""
        self._since_solved += 1
        if self._since_solved < self._solve_texts:
            return None
        self._solve_texts = min(MOST_TEXTS, 2 * self._solve_texts)
        return f"{self._since_solved} texts since it was solved last"
