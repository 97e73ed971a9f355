"""A source of requests that arrive at known times, told in how often it was asked."""

from queue import Empty


class Scripted:
    """Gives each request from the given time on; a call that does not wait is a tick of its clock.

    Args:
        requests: when each arrives, and the request; rising.
    """

    def __init__(self, requests):
        self._left = list(requests)
        self._now = 0
        self.waits = []
        """Whether it was to wait, call by call."""

    def get(self, block):
        self.waits.append(block)
        assert len(self.waits) < 10_000, "it is asked for ever"
        if not self._left:
            if not block:
                raise Empty
            return None
        at, request = self._left[0]
        if at > self._now and not block:
            self._now += 1
            raise Empty
        self._now = max(self._now, at)
        del self._left[0]
        return request
