"""Asking an engine over HTTP: answers with a time limit, and counters out of Prometheus text."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2 as httpx

from treeopt.engines.probes.client import Counters
from treeopt.engines.prometheus import ACCEPTED, DRAFTED, DRAFTS, read_counters
from treeopt.errors import EngineError, printable

KEY_VARIABLE = "TREEOPT_API_KEY"
"""Environment variable with the key of a server that asks for one; it is written nowhere."""
MAX_BYTES = 64_000_000

Part = TypeVar("Part", str, bytes)


class HttpEngine:
    """One server; only the address that it was given is ever contacted.

    Args:
        title: the engine, for messages.
        url: its address, without a path.
        timeout_s: longest wait for an answer.
    """

    def __init__(self, title: str, url: str, *, timeout_s: float) -> None:
        self.title = title
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        key = os.environ.get(KEY_VARIABLE)
        self._client = httpx.Client(
            timeout=timeout_s,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),  # servers drop them when they like
        )

    def post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object that answers one; raises EngineError for anything else."""
        return self._object(path, self._send("POST", path, json=content))

    def post_for_list(self, path: str, content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return the JSON objects of the list that answers one; None where it answers otherwise.  Raises likewise."""
        try:
            found = self._send("POST", path, json=content).json()
        except ValueError:
            return None
        return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else None

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path; raises likewise."""
        return self._object(path, self._send("GET", path))

    def counters(self) -> Counters | None:
        """Return what the server has counted of its drafts; None where it offers no metrics."""
        try:
            text = self._send("GET", "/metrics").text
        except EngineError as error:
            if isinstance(error.__cause__, httpx.HTTPStatusError):
                return None
            raise
        return counters_of(text, self.title)

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def lines(self, path: str, content: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines that answer a JSON object as they arrive.

        Raises EngineError where they cease, and as soon as they are longer than `MAX_BYTES` together.
        """
        with self._failures("POST", path), self._client.stream("POST", f"{self.url}{path}", json=content) as response:
            if not response.is_success:
                self._read(response).raise_for_status()
            begun: list[str] = []  # parts of a line whose end has not arrived
            for part in self._limited(response.iter_text()):
                first, *others = part.split("\n")
                begun.append(first)
                for other in others:
                    yield "".join(begun).removesuffix("\r")
                    begun = [other]
            if any(begun):
                yield "".join(begun).removesuffix("\r")

    def events(self, path: str, content: Mapping[str, Any]) -> Iterator[str]:
        """Yield the data of the server-sent events that answer a JSON object; raises as `lines` does."""
        return events_of(self.lines(path, content))

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        with self._failures(method, path), self._client.stream(method, f"{self.url}{path}", **more) as streamed:
            response = self._read(streamed)
            response.raise_for_status()
        return response

    def _read(self, streamed: httpx.Response) -> httpx.Response:
        """Return a response with its body; raises EngineError as soon as that is longer than `MAX_BYTES`."""
        body = b"".join(self._limited(streamed.iter_bytes()))
        kind = streamed.headers.get("content-type", "application/json")
        return httpx.Response(
            streamed.status_code, headers={"content-type": kind}, content=body, request=streamed.request
        )

    def _limited(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Yield the parts of an answer; raises EngineError as soon as they are longer than `MAX_BYTES` together."""
        length = 0
        for part in parts:
            length += len(part)
            if length > MAX_BYTES:
                raise EngineError(
                    f"{self.title}: expected an answer of at most {MAX_BYTES} bytes. Got more: ask for less."
                )
            yield part

    @contextmanager
    def _failures(self, method: str, path: str) -> Iterator[None]:
        """Raise EngineError for whatever goes wrong on the way."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise EngineError(
                f"{self.title}: expected an answer within {self._timeout_s:g} s. Got none: is it overloaded? Start it anew, "
                "and go on with --resume."
            ) from error
        except httpx.HTTPStatusError as error:
            told = printable(error.response.text[:200])
            raise EngineError(
                f"{self.title}: expected an answer to {method} {path}. Got status {error.response.status_code}: {told}"
            ) from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"{self.title}: expected an answer from {self.url}. Got {printable(str(error)) or type(error).__name__}: is it "
                "running? Go on with --resume."
            ) from error

    def _object(self, path: str, response: httpx.Response) -> dict[str, Any]:
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EngineError(
                f"{self.title}: expected a JSON object from {path}. Got {printable(response.text[:80])!r}: is it that engine?"
            )
        return found


def events_of(lines: Iterable[str]) -> Iterator[str]:
    r"""Yield the data of each server-sent event: an empty line ends one, and so does the end of the stream.

    >>> list(events_of([": ping", "event: chunk", "data:a", "data: b", "", "data: [DONE]"]))
    ['a\nb', '[DONE]']
    """
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:  # the standard drops it, but some servers do not end their last event
        yield "\n".join(data)


def counters_of(text: str, title: str) -> Counters | None:
    """Return the counters of speculation in Prometheus text, all engines together; None where there are none.

    Raises EngineError for a counter that is none.
    """
    totals: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for counter in read_counters(text.split("\n")):
            if not 0 <= counter.value < float("inf"):
                raise ValueError(f"{counter.name} is {counter.value}")
            if counter.position is None:
                totals[counter.name] = totals.get(counter.name, 0.0) + counter.value
            else:
                positions[counter.position] = positions.get(counter.position, 0.0) + counter.value
        accepted = tuple(int(positions.get(place, 0)) for place in range(1 + max(positions, default=-1)))
        drafts, drafted, accepted_tokens = (int(totals.get(name, 0)) for name in (DRAFTS, DRAFTED, ACCEPTED))
    except ValueError as error:
        raise EngineError(
            f"{title}: expected metrics as Prometheus text. Got {printable(str(error))[:80]!r}."
        ) from None
    return Counters(drafts, drafted, accepted_tokens, accepted) if totals else None


def number(title: str, content: Mapping[str, Any], name: str) -> float:
    """Return a number of an answer, at least 0; raises EngineError where there is none."""
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise EngineError(f"{title}: expected a number {name!r} of at least 0 in its answer. Got {value!r:.60}.")
    return float(value)


def status_of(error: EngineError) -> int | None:
    """Return the HTTP status behind an error, None where it has another cause."""
    cause = error.__cause__
    return cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else None
