"""Chat templates, rendered in jinja2's sandbox with the names that Hugging Face templates use."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.files.atomic_files import read_text
from treeopt.files.json_file import read_object

SETTINGS_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
MAX_BYTES = 64_000_000
DEFAULT = "default"
"""Name of the template to use of several."""


def chat_template(folder: Path) -> str | None:
    """Return the chat template of a model folder, None if there is none; raises FormatError for a broken file."""
    if (folder / TEMPLATE_FILE).is_file():
        return read_text(folder / TEMPLATE_FILE, limit_bytes=MAX_BYTES)
    template = _read_settings(folder / SETTINGS_FILE).get("chat_template")
    if isinstance(template, list):
        templates = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = templates.get(DEFAULT)
    if template is not None and not isinstance(template, str):
        raise FormatError(
            folder / SETTINGS_FILE, "chat_template", f"expected a text, or a list with one named {DEFAULT}."
        )
    return template or None


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that templates refer to by name, such as `bos_token`."""
    tokens: dict[str, str] = {}
    for name in (SPECIAL_TOKENS_FILE, SETTINGS_FILE):
        for key, value in _read_settings(folder / name).items():
            token = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(token, str):
                tokens[key] = token
    return tokens


def render_message(template: str, text: str, tokens: Mapping[str, str]) -> str:
    """Return a user's message in a chat template, with the generation prompt.

    Args:
        template: jinja2 source.
        text: the message.
        tokens: special tokens by name.

    Raises jinja2.TemplateError, and any error of the template.
    """
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node, Scope
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Ignores the marks of an assistant's tokens, which training uses."""

        tags = {"generation"}  # noqa: RUF012, jinja2's own declaration

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json  # jinja2's own filter escapes HTML
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    messages = [{"role": "user", "content": text}]
    return environment.from_string(template).render(
        **tokens, messages=messages, tools=None, documents=None, add_generation_prompt=True
    )


def _read_settings(path: Path) -> dict[str, Any]:
    return read_object(path, limit_bytes=MAX_BYTES) if path.is_file() else {}
