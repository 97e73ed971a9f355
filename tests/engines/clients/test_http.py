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
    """Return the function that serves answers by path, each a status and a text, or a function of the request."""
    servers = []

    def serve(answers):
        seen = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                seen.append((self.path, dict(self.headers), self.rfile.read(length)))
                found = answers.get(self.path, (404, "nothing here"))
                status, text = found() if callable(found) else found
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode() if isinstance(text, str) else text)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", seen

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("text", [VLLM, LLAMA])
def test_counters_are_read_whatever_their_prefix(text):
    assert parse_counters(text, "e") == Counters(10, 30, 6, (4, 2))


def test_counters_without_types_are_read_like_others():
    untyped = "".join(line for line in VLLM.splitlines(True) if not line.startswith("#"))
    assert parse_counters(untyped, "e") == Counters(10, 30, 6, (4, 2))


def test_parse_counters_several_models_are_added():
    both = "".join(
        line + (line.replace('"m"', '"n"') if not line.startswith("#") else "") for line in VLLM.splitlines(True)
    )
    assert parse_counters(both, "e") == Counters(20, 60, 12, (8, 4))


def test_metrics_without_drafts_are_none():
    assert parse_counters("# TYPE a counter\na_total 3\n", "e") is None


def test_what_is_no_prometheus_text_is_one_line():
    with pytest.raises(EngineError, match="e: expected metrics as Prometheus text"):
        parse_counters('vllm:spec_decode_num_drafts{a="b 1 2 3\n', "e")


def test_a_key_comes_from_the_environment_and_is_in_no_message(serve, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    url, seen = serve({"/x": (500, "no")})
    with pytest.raises(EngineError) as raised:
        HttpEngine("e", url, timeout_s=1).get("/x")
    assert seen[0][1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, "no json"), "expected a JSON object"),
        ((200, "[1]"), "expected a JSON object"),
        ((503, "loading \x1b[31m"), r"status 503: loading \\x1b"),
        (lambda: (time.sleep(1), (200, "{}"))[1], "within 0.3 s"),
    ],
)
def test_other_answers_are_one_line(serve, answer, reason):
    url, _ = serve({"/x": answer})
    with pytest.raises(EngineError, match=reason):
        HttpEngine("e", url, timeout_s=0.3).get("/x")


@pytest.mark.parametrize(("read", "status"), [("get", 200), ("get", 500), ("lines", 200), ("lines", 500)])
def test_an_answer_that_does_not_end_is_refused_before_all_of_it_is_in_memory(monkeypatch, status, read):
    """The server goes on until the connection is closed: whoever waits for the whole body waits for ever."""
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
        engine.get("/x") if read == "get" else list(engine.lines("/x", {}))
    engine.close()
    listener.close()
    server.join(4)
    assert not server.is_alive()


@pytest.mark.parametrize("position", ["3000000", "10000", "-1", "1e3", "9" * 30, "\u0663"])
def test_invalid_position_is_refused(position):
    """A counter for each position is kept: one label must not decide how much memory that takes."""
    with pytest.raises(EngineError, match=r"^e: expected metrics as Prometheus text\. Got .*position"):
        parse_counters(VLLM.replace('position="1"', f'position="{position}"'), "e")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_invalid_counter_is_one_line(value):
    with pytest.raises(EngineError, match=r"^e: expected metrics as Prometheus text\. Got .*drafts is"):
        parse_counters(VLLM.replace('drafts_total{model_name="m"} 10', f'drafts_total{{model_name="m"}} {value}'), "e")


def test_created_timestamps_are_ignored():
    """Prometheus' libraries tell it, in seconds since 1970, by position too."""
    created = VLLM + (
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_created gauge\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_created{model_name="m",position="5"} 1.7953524885231879e+09\n'
    )
    assert parse_counters(created, "e") == Counters(10, 30, 6, (4, 2))


def test_refused_connection_is_one_line():
    with pytest.raises(EngineError, match=r"expected an answer from http://127\.0\.0\.1:9"):
        HttpEngine("e", "http://127.0.0.1:9", timeout_s=1).get("/x")


def llama_answer(**changes):
    timings = {"predicted_n": 9, "predicted_ms": 12.0, "draft_n": 10, "draft_n_accepted": 3}
    content = {"content": "text", "timings": timings, "tokens_evaluated": 5} | {}
    for name, value in changes.items():
        (timings if name in timings else content)[name] = value
    return 200, json.dumps(content)


class TestLlamaServer:
    def running(self, serve, answer):
        url, seen = serve({"/props": (200, '{"build_info": "b1"}'), "/completion": answer, "/metrics": (200, LLAMA)})
        return LlamaAtUrl({2: url}, timeout_s=1).start(CONFIG), seen

    def test_an_answer(self, serve):
        running, seen = self.running(serve, llama_answer())
        (answer,) = running.complete([REQUEST])
        assert (answer.text, answer.tokens, answer.decode_s, answer.steps, answer.prompt_tokens) == (
            "text",
            9,
            0.012,
            5,
            5,
        )
        assert running.counters() == Counters(10, 30, 6, (4, 2))
        asked = json.loads(seen[-2][2])
        assert (asked["prompt"], asked["n_predict"], asked["temperature"]) == ("abc", 4, 0.0)
        running.close()

    def test_prefill_time_is_read(self, serve):
        timings = {"predicted_n": 9, "predicted_ms": 12.0, "draft_n": 0, "draft_n_accepted": 0}
        for told, expected in (({}, (None, 0)), ({"prompt_n": 4, "prompt_ms": 50.0}, (0.05, 4))):
            running, _ = self.running(serve, llama_answer(timings=timings | told))
            (answer,) = running.complete([REQUEST])
            assert (answer.prefill_s, answer.prefill_tokens) == expected

    def test_prefill_includes_the_wait_of_the_client(self, serve, monkeypatch):
        timings = {"predicted_n": 9, "predicted_ms": 12.0, "draft_n": 0, "draft_n_accepted": 0}
        running, _ = self.running(serve, llama_answer(timings=timings | {"prompt_n": 4, "prompt_ms": 50.0}))
        clock = iter((7.0, 7.2))
        monkeypatch.setattr(llama_server, "perf_counter", lambda: next(clock))
        (answer,) = running.complete([REQUEST])
        assert answer.prefill_s == pytest.approx(0.2 - 0.012)

    def test_batch_is_one_request(self, serve):
        """With one request each, steps of the first sequences would wait for the others' prefill."""
        first, second = (json.loads(llama_answer(content=text)[1]) for text in ("one", "two"))
        both = json.dumps([{**second, "index": 1}, {**first, "index": 0}])
        running, seen = self.running(serve, (200, both))
        found = running.complete([REQUEST._replace(prompt=prompt) for prompt in ("a", "b")])
        assert [each.text for each in found] == ["one", "two"]
        (asked,) = (json.loads(body) for path, _, body in seen if path == "/completion")
        assert asked["prompt"] == ["a", "b"]

    def test_server_without_lists_of_prompts_gets_one_at_a_time(self, serve):
        running, seen = self.running(serve, llama_answer())
        for _ in range(2):
            assert [each.text for each in running.complete([REQUEST, REQUEST])] == ["text", "text"]
        assert sum(path == "/completion" for path, *_ in seen) == 1 + 2 * 2
        running.close()

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"draft_n_accepted": 11}, "expected at most 10 accepted"),
            ({"predicted_ms": -1}, "expected a number 'predicted_ms'"),
            ({"predicted_n": "9"}, "expected a number 'predicted_n'"),
            ({"content": None}, "expected content and timings"),
            ({"tokens_evaluated": float("nan")}, "expected a number 'tokens_evaluated'"),
        ],
    )
    def test_invalid_response_is_one_line(self, serve, changes, reason):
        running, _ = self.running(serve, llama_answer(**changes))
        with pytest.raises(EngineError, match=reason):
            running.complete([REQUEST])

    def test_a_server_that_does_not_draft_is_noticed(self, serve):
        answer = json.dumps(
            {"content": "x", "timings": {"predicted_n": 9, "predicted_ms": 12.0}, "tokens_evaluated": 5}
        )
        running, _ = self.running(serve, (200, answer))
        with pytest.raises(EngineError, match="expected a server that drafts"):
            running.complete([REQUEST])

    def test_log_probabilities_are_read(self, serve):
        top = [
            {"token": "a", "bytes": [97], "logprob": -0.1},
            {"token": "", "bytes": [195], "logprob": -2.0},
            {"token": "", "bytes": [], "logprob": -3.0},
        ]
        told = json.dumps({"completion_probabilities": [{"token": "a", "top_logprobs": top}]})
        running, seen = self.running(serve, (200, told))
        assert running.next_logprobs("abc") == {"a": -0.1, UNREADABLE: -2.0}
        asked = json.loads(seen[-1][2])
        assert (asked["prompt"], asked["n_predict"], asked["cache_prompt"]) == ("abc", 1, False)

    @pytest.mark.parametrize("told", ["{}", '{"completion_probabilities": []}', '{"completion_probabilities": [3]}'])
    def test_without_log_probabilities_it_is_one_line(self, serve, told):
        running, _ = self.running(serve, (200, told))
        with pytest.raises(EngineError, match="expected log-probabilities"):
            running.next_logprobs("abc")

    def test_served_model_is_a_setting(self, serve):
        url, _ = serve({"/props": (200, '{"build_info": "b1", "model_path": "a\\u001b.gguf"}')})
        assert [(each.name, each.value) for each in LlamaAtUrl({0: url}, timeout_s=1).settings] == [
            ("model", "a\\x1b.gguf")
        ]

    def test_length_without_a_server_is_refused(self, serve):
        url, _ = serve({"/props": (200, "{}")})
        with pytest.raises(EngineError, match="add 2=URL to --url"):
            LlamaAtUrl({0: url}, timeout_s=1).start(CONFIG)


def chunks(*usages, text="x"):
    lines = [
        {
            "choices": [{"text": text}],
            "usage": None if each is None else {"completion_tokens": each, "prompt_tokens": 3},
        }
        for each in usages
    ]
    return 200, "".join(f"data: {json.dumps(each)}\n\n" for each in lines) + "data: [DONE]\n\n"


class TestOpenAI:
    def servers(self, serve, answer=(404, ""), metrics=(404, ""), **more):
        models = json.dumps({"data": [{"id": "m", "owned_by": "someone"}]})
        url, _ = serve({"/v1/models": (200, models), "/v1/completions": answer, "/metrics": metrics, **more})
        return OpenAIServers("vllm", {2: url, 3: url}, timeout_s=1)

    def running(self, serve, answer, metrics=(404, "")):
        return self.servers(serve, answer, metrics).start(CONFIG)

    @pytest.mark.parametrize(
        ("version", "expected"), [((200, '{"version": "0.32.0"}'), "0.32.0"), ((404, ""), "someone")]
    )
    def test_version_and_model_are_read(self, serve, version, expected):
        servers = self.servers(serve, **{"/version": version})
        assert (servers.version, servers.settings[0].value) == (expected, "m")

    def test_other_length_than_named_is_noticed(self, serve):
        servers = self.servers(serve, metrics=(200, VLLM))
        assert servers.start(CONFIG).counters() == Counters(10, 30, 6, (4, 2))
        with pytest.raises(EngineError, match=r"expected a server with 3 draft tokens\. Got one with 2"):
            servers.start(replace(CONFIG, draft_tokens=3)).counters()

    def test_growing_usage_gives_steps(self, serve):
        (answer,) = self.running(serve, chunks(1, 3, 4, 7)).complete([REQUEST])
        assert (answer.tokens, answer.steps, answer.prompt_tokens, answer.text) == (7, 3, 3, "xxxx")

    def test_single_token_chunks_of_a_drafting_server_are_not_steps(self, serve):
        (answer,) = self.running(serve, chunks(1, 2, 3)).complete([REQUEST])
        assert answer.steps is None

    def test_without_usage_chunks_are_tokens(self, serve):
        (answer,) = self.running(serve, chunks(None, None, None, 3)).complete([REQUEST])
        assert answer.tokens == 4

    def test_accepted_positions_come_from_chunks(self, serve):
        (answer,) = self.running(serve, chunks(1, 4, 5, 7, 10)).complete([REQUEST])
        assert (answer.steps, answer.accepted) == (4, (3, 2))

    def test_single_token_chunks_are_steps_once_the_server_has_drafted(self, serve):
        texts = iter([chunks(1, 3), chunks(1, 2, 3)])
        running = self.running(serve, lambda: next(texts))
        running.complete([REQUEST])
        (answer,) = running.complete([REQUEST])
        assert (answer.steps, answer.accepted) == (2, (0, 0))

    def test_chunks_of_several_steps_are_not_steps(self, serve):
        (answer,) = self.running(serve, chunks(1, 5, 9)).complete([REQUEST])
        assert (answer.coalesced, answer.steps) == (True, None)

    def test_neutral_sampling_is_left_out_after_a_refusal(self, serve):
        """Servers take what is missing from the model's generation config; OpenAI itself refuses unknown fields."""
        requests: list = []

        def answer():
            return (400, "unknown field top_k") if b"top_k" in requests[-1][2] else chunks(1, 2, 3)

        models = json.dumps({"data": [{"id": "m", "owned_by": "someone"}]})
        url, seen = serve({"/v1/models": (200, models), "/v1/completions": answer})
        servers = OpenAIServers("vllm", {2: url}, timeout_s=1)
        requests = seen
        running = servers.start(CONFIG)
        for _ in range(2):
            running.complete([REQUEST])
        asked = [json.loads(body) for path, _, body in seen if path == "/v1/completions"]
        assert [sorted({"top_p", "top_k", "min_p", "repetition_penalty"} & each.keys()) for each in asked] == [
            ["min_p", "repetition_penalty", "top_k", "top_p"],
            ["top_p"],
            ["top_p"],
        ]

    @pytest.mark.parametrize(
        ("old", "new"), [("data: ", "data:"), ("\n", "\r\n"), ("data: ", ": ping\nevent: x\ndata: ")]
    )
    def test_every_form_of_an_event_is_read(self, serve, old, new):
        status, text = chunks(1, 3, 4)
        (answer,) = self.running(serve, (status, text.replace(old, new))).complete([REQUEST])
        assert (answer.tokens, answer.steps, answer.text) == (4, 2, "xxx")

    @pytest.mark.parametrize(
        "told",
        [
            {"top_logprobs": [{"a": -0.1, "bytes:\\xc3": -2.0, "b": None}]},
            {
                "content": [
                    {"top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "bytes:\\xc3", "logprob": -2.0}]}
                ]
            },
        ],
    )
    def test_both_forms_of_log_probabilities_are_read(self, serve, told):
        running = self.running(serve, (200, json.dumps({"choices": [{"text": "a", "logprobs": told}]})))
        assert running.next_logprobs("abc") == {"a": -0.1, UNREADABLE: -2.0}

    @pytest.mark.parametrize("told", [None, {}, {"top_logprobs": None}, {"top_logprobs": [{}]}, {"content": [{}]}, 3])
    def test_other_forms_are_one_line(self, serve, told):
        running = self.running(serve, (200, json.dumps({"choices": [{"text": "a", "logprobs": told}]})))
        with pytest.raises(EngineError, match="expected log-probabilities"):
            running.next_logprobs("abc")

    def test_no_metrics_are_no_counters(self, serve):
        assert self.running(serve, chunks(1, 2)).counters() is None

    def test_prompt_tokens_may_be_null(self, serve):
        status, text = chunks(1, 2)
        (answer,) = self.running(
            serve, (status, text.replace('"prompt_tokens": 3', '"prompt_tokens": null', 1))
        ).complete([REQUEST])
        assert answer.prompt_tokens == 3

    @pytest.mark.parametrize(
        "answer",
        [
            (200, "data: {oops\n\n"),
            (200, "data: [1]\n\n"),
            (200, ""),
            (500, "broken"),
            (200, chunks(1, 2)[1].replace('"prompt_tokens": 3', '"prompt_tokens": "many"')),
            (200, chunks(1, 2)[1].replace('"prompt_tokens": 3', '"prompt_tokens": [3]')),
        ],
    )
    def test_garbage_is_one_line(self, serve, answer):
        with pytest.raises(EngineError, match="vllm: expected"):
            self.running(serve, answer).complete([REQUEST])


@pytest.mark.parametrize("url", ["http://a:1", "x=http://a:1", "3=ftp://a", "3=", ""])
def test_addresses_without_a_length_are_refused(url):
    with pytest.raises(InvalidValueError, match="--url: expected a server for each length"):
        parse_urls(url)
