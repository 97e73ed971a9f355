"""Servers over HTTP: responses, metrics, and errors of one line."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from treeopt.engines.clients import http, llama_server
from treeopt.engines.clients.client import (
    UNREADABLE,
    CompletionRequest,
    Counters,
    EngineConfig,
)
from treeopt.engines.clients.http import KEY_VARIABLE, HttpEngine, parse_counters
from treeopt.engines.clients.llama_server import LlamaAtUrl
from treeopt.engines.clients.openai_server import OpenAIServers
from treeopt.engines.clients.registry import parse_urls
from treeopt.errors import EngineError, InvalidValueError

METRICS = """# HELP {p}:spec_decode_num_drafts_total drafts
# TYPE {p}:spec_decode_num_drafts_total counter
{p}:spec_decode_num_drafts_total{l} 10
# TYPE {p}:spec_decode_num_draft_tokens_total counter
{p}:spec_decode_num_draft_tokens_total{l} 30
# TYPE {p}:spec_decode_num_accepted_tokens_total counter
{p}:spec_decode_num_accepted_tokens_total{l} 6
# TYPE {p}:spec_decode_num_accepted_tokens_per_pos_total counter
{p}:spec_decode_num_accepted_tokens_per_pos_total{l0} 4
{p}:spec_decode_num_accepted_tokens_per_pos_total{l1} 2
"""
VLLM = METRICS.format(
    p="vllm", l='{model_name="m"}', l0='{model_name="m",position="0"}', l1='{model_name="m",position="1"}'
)
LLAMA = METRICS.format(p="llamacpp", l="", l0='{position="0"}', l1='{position="1"}')
CONFIG = EngineConfig(target=None, draft=None, draft_tokens=2, timeout_s=0.5)
REQUEST = CompletionRequest("abc", 4, 0.0)


@pytest.fixture
def serve():
    """Return the function that serves responses by path, each a status and a text, or a function that returns both."""
    servers = []

    def serve(responses):
        requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                requests.append((self.path, dict(self.headers), self.rfile.read(length)))
                response = responses.get(self.path, (404, "nothing here"))
                status, text = response() if callable(response) else response
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", requests

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


class TestCounters:
    @pytest.mark.parametrize(
        ("text", "counters"),
        [
            (VLLM, Counters(10, 30, 6, (4, 2))),
            (LLAMA, Counters(10, 30, 6, (4, 2))),
            ("".join(line for line in VLLM.splitlines(True) if line[0] != "#"), Counters(10, 30, 6, (4, 2))),
            (VLLM + 'vllm:spec_decode_num_accepted_tokens_per_pos_created{position="5"} 1.79e9\n', (10, 30, 6, (4, 2))),
            (VLLM + VLLM.replace('"m"', '"n"'), Counters(20, 60, 12, (8, 4))),
            ("# TYPE a counter\na_total 3\n", None),
        ],
        ids=["vllm", "llama.cpp", "without types", "with creation times", "two models", "other metrics"],
    )
    def test_counters_are_summed(self, text, counters):
        assert parse_counters(text, "e") == counters

    @pytest.mark.parametrize("position", ["3000000", "10000", "-1", "1e3", "9" * 30, "\u0663"])
    def test_invalid_position_is_refused(self, position):
        """A label must not determine how much memory the counters take."""
        with pytest.raises(EngineError, match=r"^e: expected metrics as Prometheus text\. Got .*position"):
            parse_counters(VLLM.replace('position="1"', f'position="{position}"'), "e")

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x"])
    def test_invalid_counter_is_refused(self, value):
        with pytest.raises(EngineError, match=r"^e: expected metrics as Prometheus text\. Got"):
            parse_counters(
                VLLM.replace('drafts_total{model_name="m"} 10', f'drafts_total{{model_name="m"}} {value}'), "e"
            )


def test_key_comes_from_the_environment_and_is_in_no_message(serve, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    url, requests = serve({"/x": (500, "no")})
    with pytest.raises(EngineError) as raised:
        HttpEngine("e", url, timeout_s=1).get("/x")
    assert requests[0][1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ((200, "no json"), "expected a JSON object"),
        ((200, "[1]"), "expected a JSON object"),
        ((503, "loading \x1b[31m"), r"status 503: loading \\x1b"),
        (lambda: (time.sleep(0.5), (200, "{}"))[1], "within 0.2 s"),
    ],
)
def test_other_responses_are_refused_in_one_line(serve, response, reason):
    url, _ = serve({"/x": response})
    with pytest.raises(EngineError, match=reason):
        HttpEngine("e", url, timeout_s=0.2).get("/x")


def test_refused_connection_is_one_line():
    with pytest.raises(EngineError, match=r"expected an answer from http://127\.0\.0\.1:9"):
        HttpEngine("e", "http://127.0.0.1:9", timeout_s=1).get("/x")


def test_certificates_are_loaded_for_https_only(monkeypatch):
    """Loading them takes longer than all else that starts a client."""
    options = []
    monkeypatch.setattr(http.httpx, "Client", lambda **keywords: options.append(keywords["verify"]))
    for url in ("http://a:1", "https://a:1"):
        HttpEngine("e", url, timeout_s=1)
    assert options == [False, True]


@pytest.mark.parametrize(("read", "status"), [("get", 200), ("events", 200), ("events", 500)])
def test_endless_response_is_refused_at_the_size_limit(monkeypatch, status, read):
    """The server sends until the connection is closed."""
    monkeypatch.setattr(http, "MAX_BYTES", 100_000)
    listener = socket.create_server(("127.0.0.1", 0))

    def send():
        connection, _ = listener.accept()
        connection.recv(4096)
        with contextlib.suppress(OSError):
            connection.sendall(f"HTTP/1.1 {status} X\r\n\r\n".encode())
            until_s = time.monotonic() + 5
            while time.monotonic() < until_s:
                connection.sendall(b"x" * 1000)
        connection.close()

    server = threading.Thread(target=send, daemon=True)
    server.start()
    engine = HttpEngine("e", f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=10)
    with pytest.raises(EngineError, match=r"^e: expected an answer of at most 100000 bytes"):
        engine.get("/x") if read == "get" else list(engine.events("/x", {}))
    engine.close()
    listener.close()
    server.join(4)
    assert not server.is_alive()


def llama_response(**changes):
    timings = {"predicted_n": 9, "predicted_ms": 12.0, "draft_n": 10, "draft_n_accepted": 3}
    content = {"content": "text", "timings": timings, "tokens_evaluated": 5}
    for name, value in changes.items():
        (timings if name in timings or name.startswith("prompt_") else content)[name] = value
    return 200, json.dumps(content)


class TestLlamaServer:
    def running(self, serve, response):
        url, requests = serve(
            {"/props": (200, '{"build_info": "b1"}'), "/completion": response, "/metrics": (200, LLAMA)}
        )
        return LlamaAtUrl({2: url}, timeout_s=1).start(CONFIG), requests

    def test_completion(self, serve):
        running, requests = self.running(serve, llama_response())
        (completion,) = running.complete([REQUEST])
        assert (completion.text, completion.tokens, completion.prompt_tokens) == ("text", 9, 5)
        assert (completion.decode_s, completion.steps) == (0.012, 9 - 1 - 3)
        assert (completion.prefill_s, completion.prefill_tokens) == (None, 0)
        assert running.counters() == Counters(10, 30, 6, (4, 2))
        body = json.loads(requests[-2][2])
        assert (body["prompt"], body["n_predict"], body["temperature"]) == ("abc", 4, 0.0)
        running.close()

    @pytest.mark.parametrize(("waited_s", "prefill_s"), [(0.06, 0.05), (0.2, 0.2 - 0.012)])
    def test_prefill_includes_the_wait_of_the_client(self, serve, monkeypatch, waited_s, prefill_s):
        running, _ = self.running(serve, llama_response(prompt_n=4, prompt_ms=50.0))
        clock_s = iter((7.0, 7.0 + waited_s))
        monkeypatch.setattr(llama_server, "perf_counter", lambda: next(clock_s))
        (completion,) = running.complete([REQUEST])
        assert completion.prefill_s == pytest.approx(prefill_s)
        assert completion.prefill_tokens == 4

    def test_batch_is_one_request(self, serve):
        """With one request each, steps of the first sequences would wait for the others' prefill."""
        first, second = (json.loads(llama_response(content=text)[1]) for text in ("one", "two"))
        both = json.dumps([{**second, "index": 1}, {**first, "index": 0}])
        running, requests = self.running(serve, (200, both))
        completions = running.complete([REQUEST._replace(prompt=prompt) for prompt in ("a", "b")])
        assert [completion.text for completion in completions] == ["one", "two"]
        (body,) = (json.loads(body) for path, _, body in requests if path == "/completion")
        assert body["prompt"] == ["a", "b"]

    def test_server_without_lists_of_prompts_gets_one_at_a_time(self, serve):
        running, requests = self.running(serve, llama_response())
        for _ in range(2):
            assert [completion.text for completion in running.complete([REQUEST, REQUEST])] == ["text", "text"]
        assert sum(path == "/completion" for path, *_ in requests) == 1 + 2 * 2
        running.close()

    @pytest.mark.parametrize(
        ("response", "reason"),
        [
            (llama_response(draft_n_accepted=11), "expected at most 10 accepted"),
            (llama_response(predicted_ms=-1), "expected a number 'predicted_ms'"),
            (llama_response(predicted_n="9"), "expected a number 'predicted_n'"),
            (llama_response(content=None), "expected content and timings"),
            (llama_response(tokens_evaluated=float("nan")), "expected a number 'tokens_evaluated'"),
            (llama_response(timings={"predicted_n": 9, "predicted_ms": 12.0}), "expected a server that drafts"),
        ],
    )
    def test_invalid_response_is_refused(self, serve, response, reason):
        running, _ = self.running(serve, response)
        with pytest.raises(EngineError, match=reason):
            running.complete([REQUEST])

    def test_log_probabilities_are_read(self, serve):
        top = [
            {"token": "a", "bytes": [97], "logprob": -0.1},
            {"token": "", "bytes": [195], "logprob": -2.0},
            {"token": "", "bytes": [], "logprob": -3.0},
        ]
        response = json.dumps({"completion_probabilities": [{"token": "a", "top_logprobs": top}]})
        running, requests = self.running(serve, (200, response))
        assert running.next_logprobs("abc") == {"a": -0.1, UNREADABLE: -2.0}
        body = json.loads(requests[-1][2])
        assert (body["prompt"], body["n_predict"], body["cache_prompt"]) == ("abc", 1, False)

    @pytest.mark.parametrize("response", ["{}", '{"completion_probabilities": [3]}'])
    def test_missing_log_probabilities_are_refused(self, serve, response):
        running, _ = self.running(serve, (200, response))
        with pytest.raises(EngineError, match="expected log-probabilities"):
            running.next_logprobs("abc")

    def test_served_model_is_a_setting_and_another_length_is_refused(self, serve):
        url, _ = serve({"/props": (200, '{"build_info": "b1", "model_path": "a\\u001b.gguf"}')})
        client = LlamaAtUrl({0: url}, timeout_s=1)
        assert [(setting.name, setting.value) for setting in client.settings] == [("model", "a\\x1b.gguf")]
        with pytest.raises(EngineError, match="add 2=URL to --url"):
            client.start(CONFIG)


def chunks(*usages):
    events = [
        {"choices": [{"text": "x"}], "usage": usage and {"completion_tokens": usage, "prompt_tokens": 3}}
        for usage in usages
    ]
    return 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


class TestOpenAI:
    def servers(self, serve, response=(404, ""), metrics=(404, ""), **others):
        models = json.dumps({"data": [{"id": "m", "owned_by": "someone"}]})
        url, self.requests = serve(
            {"/v1/models": (200, models), "/v1/completions": response, "/metrics": metrics, **others}
        )
        return OpenAIServers("vllm", {2: url, 3: url}, timeout_s=1)

    def complete(self, serve, response):
        return self.servers(serve, response).start(CONFIG).complete([REQUEST])[0]

    @pytest.mark.parametrize(
        ("version", "expected"), [((200, '{"version": "0.32.0"}'), "0.32.0"), ((404, ""), "someone")]
    )
    def test_version_and_model_are_read(self, serve, version, expected):
        servers = self.servers(serve, **{"/version": version})
        assert (servers.version, servers.settings[0].value) == (expected, "m")
        assert servers.start(CONFIG).counters() is None

    def test_counters_of_another_length_are_refused(self, serve):
        servers = self.servers(serve, metrics=(200, VLLM))
        assert servers.start(CONFIG).counters() == Counters(10, 30, 6, (4, 2))
        with pytest.raises(EngineError, match=r"expected a server with 3 draft tokens\. Got one with 2"):
            servers.start(replace(CONFIG, draft_tokens=3)).counters()

    @pytest.mark.parametrize(
        ("usages", "tokens", "steps", "accepted"),
        [
            ((1, 3, 4, 7), 7, 3, (2, 1)),  # growth of usage
            ((1, 4, 5, 7, 10), 10, 4, (3, 2)),
            ((1, 2, 3), 3, None, ()),  # chunks of one token may not be steps
            ((None, None, None, 3), 4, None, ()),  # without usage, a chunk is a token
            ((1, 5, 9), 9, None, (2, 2)),  # chunks of several steps
        ],
    )
    def test_steps_follow_from_chunks(self, serve, usages, tokens, steps, accepted):
        completion = self.complete(serve, chunks(*usages))
        assert (completion.tokens, completion.steps, completion.accepted) == (tokens, steps, accepted)
        assert (completion.text, completion.prompt_tokens) == ("x" * len(usages), 3)
        assert completion.coalesced == (usages == (1, 5, 9))

    def test_single_token_chunks_are_steps_once_the_server_has_drafted(self, serve):
        responses = iter([chunks(1, 3), chunks(1, 2, 3)])
        running = self.servers(serve, lambda: next(responses)).start(CONFIG)
        running.complete([REQUEST])
        (completion,) = running.complete([REQUEST])
        assert (completion.steps, completion.accepted) == (2, (0, 0))

    @pytest.mark.parametrize(("refused", "count"), [("top_k", 1), ("ignore_eos", 2)])
    def test_unknown_fields_are_left_out_after_a_refusal(self, serve, refused, count):
        """Servers take missing values from the model's generation config; OpenAI itself refuses unknown fields."""

        def respond():
            return (400, "unknown field") if refused.encode() in self.requests[-1][2] else chunks(1, 2, 3)

        running = self.servers(serve, respond).start(CONFIG)
        for _ in range(2):
            running.complete([REQUEST])
        bodies = [json.loads(body) for path, _, body in self.requests if path == "/v1/completions"]
        optional = {"top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos"}
        fields = [optional, {"top_p", "ignore_eos"}, {"top_p"}]
        assert [optional & body.keys() for body in bodies] == [*fields[: count + 1], fields[count]]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("data: ", "data:"),
            ("\n", "\r\n"),
            ("data: ", ": ping\nevent: x\ndata: "),
            ('"prompt_tokens": 3}}\n\ndata: {', '"prompt_tokens": null}}\n\ndata: {'),
        ],
    )
    def test_all_forms_of_events_are_read(self, serve, old, new):
        status, text = chunks(1, 3, 4)
        assert old in text
        completion = self.complete(serve, (status, text.replace(old, new)))
        assert (completion.tokens, completion.steps, completion.text) == (4, 2, "xxx")
        assert completion.prompt_tokens == 3

    @pytest.mark.parametrize(
        "logprobs",
        [
            {"top_logprobs": [{"a": -0.1, "bytes:\\xc3": -2.0, "b": None}]},
            {
                "content": [
                    {"top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "bytes:\\xc3", "logprob": -2.0}]}
                ]
            },
        ],
    )
    def test_both_forms_of_log_probabilities_are_read(self, serve, logprobs):
        servers = self.servers(serve, (200, json.dumps({"choices": [{"text": "a", "logprobs": logprobs}]})))
        assert servers.start(CONFIG).next_logprobs("abc") == {"a": -0.1, UNREADABLE: -2.0}

    @pytest.mark.parametrize("logprobs", [None, {}, {"top_logprobs": None}, {"top_logprobs": [{}]}, {"content": [{}]}])
    def test_other_forms_of_log_probabilities_are_refused(self, serve, logprobs):
        servers = self.servers(serve, (200, json.dumps({"choices": [{"text": "a", "logprobs": logprobs}]})))
        with pytest.raises(EngineError, match="expected log-probabilities"):
            servers.start(CONFIG).next_logprobs("abc")

    @pytest.mark.parametrize(
        "response",
        [
            (200, "data: {oops\n\n"),
            (200, "data: [1]\n\n"),
            (200, ""),
            (500, "broken"),
            (200, chunks(1, 2)[1].replace('"prompt_tokens": 3', '"prompt_tokens": "many"')),
            (200, chunks(1, 2)[1].replace('"prompt_tokens": 3', '"prompt_tokens": [3]')),
        ],
    )
    def test_other_responses_are_refused(self, serve, response):
        with pytest.raises(EngineError, match="vllm: expected"):
            self.complete(serve, response)


@pytest.mark.parametrize("url", ["http://a:1", "x=http://a:1", "3=ftp://a", "3=", ""])
def test_addresses_without_a_length_are_refused(url):
    with pytest.raises(InvalidValueError, match="url: expected a server for each length"):
        parse_urls(url)


def test_two_servers_of_one_length_are_refused():
    with pytest.raises(InvalidValueError, match="Got several for 3"):
        parse_urls("0=http://a:1,3=http://a:2,3=http://a:3")
