"""A text that was served, as those who asked for it see it."""

from typing import NamedTuple

from treeopt.simulation.arrivals import Arrival


class ServedText(NamedTuple):
    """When its tokens came, in seconds since the simulation began."""

    asked: Arrival
    first_token_s: float
    finished_s: float
    steps: int
    step_tokens: int
    """Tokens that came with steps: all, or all but one that came with the prompt."""

    @property
    def time_to_first_token_s(self) -> float:
        """From its arrival on, waiting included."""
        return self.first_token_s - self.asked.arrival_s

    @property
    def latency_s(self) -> float:
        """From its arrival to its last token."""
        return self.finished_s - self.asked.arrival_s

    @property
    def time_per_token_s(self) -> float | None:
        """Of the tokens after the first; None if there is none."""
        after = self.asked.new_tokens - 1
        return (self.finished_s - self.first_token_s) / after if after else None
