"""HTTP requests to an engine, with a time limit and a size limit, and its counters in Prometheus text."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2 as httpx

from treeopt.engines.clients.client import Counters, EngineConfig
from treeopt.engines.prometheus import ACCEPTED, DRAFTED, DRAFTS, read_counters
from treeopt.errors import EngineError, printable
from treeopt.records.engine import EngineSetting

KEY_VARIABLE = "TREEOPT_API_KEY"
"""Environment variable with the server's API key, which is never written anywhere."""
MAX_BYTES = 64_000_000

Part = TypeVar("Part", str, bytes)


class HttpEngine:
    """One server; no other address is ever contacted.

    Args:
        title: name of the engine in errors.
        url: address without a path.
        timeout_s: longest wait for a response.
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
            verify=url.startswith("https:"),  # loading the certificates takes longer than starting a client
            limits=httpx.Limits(max_keepalive_connections=0),  # servers close them at any time
        )

    def post(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a JSON object and return the response's; raises EngineError for any other response."""
        return self._object(path, self._send("POST", path, json=content))

    def post_for_list(self, path: str, content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Send a JSON object and return the response's list of JSON objects; None if it is something else.

        Raises EngineError if the request fails.
        """
        try:
            items = self._send("POST", path, json=content).json()
        except ValueError:
            return None
        return items if isinstance(items, list) and all(isinstance(item, dict) for item in items) else None

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at a path; raises EngineError for any other response."""
        return self._object(path, self._send("GET", path))

    def counters(self) -> Counters | None:
        """Return the server's counters of drafts; None if it has no metrics."""
        try:
            text = self._send("GET", "/metrics").text
        except EngineError as error:
            if http_status(error) is None:
                raise
            return None
        return parse_counters(text, self.title)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def events(self, path: str, content: Mapping[str, Any]) -> Iterator[str]:
        """Send a JSON object and yield the data of the server-sent events as they arrive.

        Raises EngineError if the response stops, or exceeds `MAX_BYTES`.
        """
        return parse_events(self._lines(path, content))

    def _lines(self, path: str, content: Mapping[str, Any]) -> Iterator[str]:
        with (
            self._engine_errors("POST", path),
            self._client.stream("POST", f"{self.url}{path}", json=content) as response,
        ):
            if not response.is_success:
                self._read(response).raise_for_status()
            parts: list[str] = []  # of the line whose end has not arrived
            for text in self._limited(response.iter_text()):
                head, *tails = text.split("\n")
                parts.append(head)
                for tail in tails:
                    yield "".join(parts).removesuffix("\r")
                    parts = [tail]
            if any(parts):
                yield "".join(parts).removesuffix("\r")

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._engine_errors(method, path), self._client.stream(method, f"{self.url}{path}", **options) as streamed:
            response = self._read(streamed)
            response.raise_for_status()
        return response

    def _read(self, streamed: httpx.Response) -> httpx.Response:
        body = b"".join(self._limited(streamed.iter_bytes()))
        content_type = streamed.headers.get("content-type", "application/json")
        return httpx.Response(
            streamed.status_code, headers={"content-type": content_type}, content=body, request=streamed.request
        )

    def _limited(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Raise EngineError as soon as the parts exceed `MAX_BYTES`, before the rest is in memory."""
        length = 0
        for part in parts:
            length += len(part)
            if length > MAX_BYTES:
                raise EngineError(
                    f"{self.title}: expected an answer of at most {MAX_BYTES} bytes. Got more: ask for less."
                )
            yield part

    @contextmanager
    def _engine_errors(self, method: str, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise EngineError(
                f"{self.title}: expected an answer within {self._timeout_s:g} s. Got none: is it overloaded? Restart it."
            ) from error
        except httpx.HTTPStatusError as error:
            body = printable(error.response.text[:200])
            raise EngineError(
                f"{self.title}: expected an answer to {method} {path}. Got status {error.response.status_code}: {body}"
            ) from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"{self.title}: expected an answer from {self.url}. Got {printable(str(error)) or type(error).__name__}: is it "
                "running?"
            ) from error

    def _object(self, path: str, response: httpx.Response) -> dict[str, Any]:
        try:
            content = response.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise EngineError(
                f"{self.title}: expected a JSON object from {path}. Got {printable(response.text[:80])!r}: is it that engine?"
            )
        return content


def parse_events(lines: Iterable[str]) -> Iterator[str]:
    r"""Yield the data of each server-sent event, which ends with an empty line or with the stream.

    >>> list(parse_events([": ping", "event: chunk", "data:a", "data: b", "", "data: [DONE]"]))
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
    if data:  # the standard drops it, but some servers do not terminate their last event
        yield "\n".join(data)


def parse_counters(text: str, title: str) -> Counters | None:
    """Return the counters of drafts in Prometheus text, summed over engines and models; None if there are none.

    Raises EngineError for a malformed counter.
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
        accepted = tuple(int(positions.get(position, 0)) for position in range(1 + max(positions, default=-1)))
        drafts, drafted, accepted_tokens = (int(totals.get(name, 0)) for name in (DRAFTS, DRAFTED, ACCEPTED))
    except ValueError as error:
        raise EngineError(
            f"{title}: expected metrics as Prometheus text. Got {printable(str(error))[:80]!r}."
        ) from None
    return Counters(drafts, drafted, accepted_tokens, accepted) if totals else None


def http_status(error: EngineError) -> int | None:
    """Return the HTTP status that caused an error; None for another cause."""
    cause = error.__cause__
    return cause.response.status_code if isinstance(cause, httpx.HTTPStatusError) else None


def select_url(name: str, urls: Mapping[int, str], config: EngineConfig) -> str:
    """Return the address of the server with the configuration's draft length; raises EngineError if there is none."""
    if config.draft_tokens not in urls:
        raise EngineError(
            f"{name}: expected a server with {config.draft_tokens} draft tokens. Got those with {sorted(urls)}: add "
            f"{config.draft_tokens}=URL to --url, or leave the length out of --lengths."
        )
    return urls[config.draft_tokens]


def model_setting(name: object) -> tuple[EngineSetting, ...]:
    """Return the model that a server reports as a setting; nothing if it reports none."""
    return (EngineSetting(name="model", value=printable(name)),) if isinstance(name, str) and name else ()
