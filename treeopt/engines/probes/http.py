"""Asking an engine over HTTP: answers with a time limit, and counters out of Prometheus text."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families

from treeopt.engines.probes.client import Counters
from treeopt.errors import EngineError, printable
from treeopt.records.engine import parse_position

KEY_VARIABLE = "TREEOPT_API_KEY"
"""Environment variable with the key of a server that asks for one; it is written nowhere."""
MAX_BYTES = 64_000_000
COUNTED = "spec_decode_num_"
CREATED = "_created"
"""When each counter began, which Prometheus' libraries add."""


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
        """Yield the lines that answer a JSON object as they arrive; raises EngineError where they cease."""
        with self._failures("POST", path), self._client.stream("POST", f"{self.url}{path}", json=content) as response:
            if not response.is_success:
                self._read(response).raise_for_status()
            yield from response.iter_lines()

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        with self._failures(method, path), self._client.stream(method, f"{self.url}{path}", **more) as streamed:
            response = self._read(streamed)
            response.raise_for_status()
        return response

    def _read(self, streamed: httpx.Response) -> httpx.Response:
        """Return a response with its body; raises EngineError as soon as that is longer than `MAX_BYTES`."""
        body = bytearray()
        for part in streamed.iter_bytes():
            body += part
            if len(body) > MAX_BYTES:
                raise EngineError(
                    f"{self.title}: expected an answer of at most {MAX_BYTES} bytes. Got more: ask for less."
                )
        kind = streamed.headers.get("content-type", "application/json")
        return httpx.Response(
            streamed.status_code, headers={"content-type": kind}, content=bytes(body), request=streamed.request
        )

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


def counters_of(text: str, title: str) -> Counters | None:
    """Return the counters of speculation in Prometheus text, whatever their prefix; None where there are none.

    Raises EngineError for text that is none.
    """
    found: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            _, _, name = family.name.partition(":")
            counts = name.startswith(COUNTED) and not name.endswith(CREATED)
            for sample in family.samples if counts else ():
                if "position" in sample.labels:
                    place = parse_position(sample.labels["position"])
                    positions[place] = positions.get(place, 0.0) + sample.value
                else:
                    found[name] = found.get(name, 0.0) + sample.value
    except (ValueError, KeyError) as error:
        raise EngineError(
            f"{title}: expected metrics as Prometheus text. Got {printable(str(error))[:80]!r}."
        ) from None
    if not found:
        return None
    accepted = tuple(int(positions.get(place, 0)) for place in range(1 + max(positions, default=-1)))
    return Counters(
        int(found.get(f"{COUNTED}drafts", 0)),
        int(found.get(f"{COUNTED}draft_tokens", 0)),
        int(found.get(f"{COUNTED}accepted_tokens", 0)),
        accepted,
    )


def number(title: str, content: Mapping[str, Any], name: str) -> float:
    """Return a number of an answer, at least 0; raises EngineError where there is none."""
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise EngineError(f"{title}: expected a number {name!r} of at least 0 in its answer. Got {value!r:.60}.")
    return float(value)
