"""A server with OpenAI's completions for a language of which every probability is known: honest, or wrong as told."""

import json
import math
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from zlib import crc32

LETTERS = "abcdefgh "
TIE = (0.4, 0.3999)


def likeliest(text):
    """Return the next characters after a text with their probabilities, the likeliest first; every 5th is a tie."""
    number = crc32(text.encode())
    first, second = (LETTERS[(number // 7 + step) % len(LETTERS)] for step in (0, 1 + number % 5))
    shares = TIE if number % 5 == 0 else (0.7, 0.2)
    return {first: shares[0], second: shares[1]}


class LanguageServer:
    """Writes the likeliest character, in chunks of up to `1 + length`.

    `rounds` takes the second of a tie, `faulty` every 9th time the second whatever it is, `forgets` no log-probabilities,
    `unstable` another text each time.
    """

    def __init__(self, length, *, rounds=False, faulty=False, forgets=False, unstable=False):
        self.length, self.rounds, self.faulty, self.forgets = length, rounds, faulty, forgets
        self.unstable, self.seen = unstable, Counter()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/v1/models":
                    self.reply(json.dumps({"data": [{"id": "language", "owned_by": "tests"}]}))
                else:
                    self.send_error(404)

            def do_POST(self):
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(outer.chunks(content) if content.get("stream") else outer.next(content))

            def reply(self, text):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def next(self, content):
        told = {letter: math.log(share) for letter, share in likeliest(content["prompt"]).items()}
        choice = {"text": next(iter(told)), "logprobs": None if self.forgets else {"top_logprobs": [told]}}
        return json.dumps({"choices": [choice]})

    def chunks(self, content):
        prompt, text = content["prompt"], ""
        self.seen[prompt] += 1
        while len(text) < content["max_tokens"]:
            (first, share), (second, _) = likeliest(prompt + text).items()
            other = (self.rounds and share == TIE[0]) or (self.faulty and len(text) % 9 == 8)
            text += second if other or (self.unstable and self.seen[prompt] % 2 and share == TIE[0]) else first
        ends = [1, *range(2 + self.length, len(text), 1 + self.length), len(text)]
        lines, begun = [], 0
        for end in ends:
            usage = {"completion_tokens": end, "prompt_tokens": len(prompt)}
            lines.append({"choices": [{"text": text[begun:end]}], "usage": usage})
            begun = end
        return "".join(f"data: {json.dumps(each)}\n\n" for each in lines) + "data: [DONE]\n\n"
