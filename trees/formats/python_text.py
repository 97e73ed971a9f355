"""Literals in Python source, read from its syntax tree without executing anything."""

import ast
import warnings
from pathlib import Path

from treeopt.errors import FormatError, InvalidValueError

MAX_CHARS = 128_000
"""A syntax tree takes about a thousand times as many bytes."""

_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


def literal(path: Path, field: str, text: str) -> object:
    """Return the value of text that is one literal; raises FormatError naming the file, the field and the reason."""
    try:
        value, actual = value_of(syntax_tree(text)), "something else"
    except InvalidValueError as error:
        value, actual = None, str(error)
    if value is None:
        raise FormatError(path, field, f"expected a Python list such as [(0,), (1,), (0, 0)]. Got {actual}.")
    return value


def syntax_tree(text: str) -> ast.Module:
    """Return the syntax tree; raises InvalidValueError with a description of text that is not Python."""
    if len(text) > MAX_CHARS:
        raise InvalidValueError(f"more than {MAX_CHARS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            return ast.parse(text.strip())
    except _UNREADABLE as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise InvalidValueError(f"no Python ({reason})") from None


def value_of(module: ast.Module) -> object:
    """Return the value of a module that consists of one literal, or None for any other module."""
    match module.body:
        case [ast.Expr(value=node)]:
            return _value(node)
    return None


def assignments(module: ast.Module) -> dict[str, object]:
    """Return the literals that a module assigns at its top level, by name; other statements are ignored."""
    values = {}
    for statement in module.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=node)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as node)
            ):
                value = _value(node)
                if value is not None:
                    values[name] = value
    return values


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except _UNREADABLE:
        return None
