"""Verification rules by name: what every room has to know of them.  `treeopt.runtime.rules` executes them."""

from treeopt.errors import InvalidValueError

RULES = ("sequoia", "specinfer", "target", "traversal", "typical")
"""`sequoia`: children without replacement, tried in turn (Chen et al., 2024); `specinfer`: with replacement (Miao et
al., 2024); `target`: the likeliest children, kept where the target samples them; `traversal`: children as for
`sequoia`, tested from the leaves up (Weng et al., 2025); `typical`: the likeliest children, kept where the target finds
them likely enough (Cai et al., 2024)."""
GIVEN_TOKENS = "target"
"""The rule for drafts without probabilities: the target samples, and the child that it samples is accepted."""
LOSSY_RULES = frozenset({"typical"})
"""Rules under which the text no longer follows the target's distribution."""


def check_rule(rule: str, *, lossy: bool = False) -> None:
    """Raise InvalidValueError for an unknown rule, and for a lossy one unless that is allowed."""
    if rule not in RULES:
        raise InvalidValueError(f"rule: expected one of {', '.join(RULES)}. Got {rule!r}.", field="rule")
    if rule in LOSSY_RULES and not lossy:
        raise InvalidValueError(
            f"rule: expected a lossless one. Got {rule!r}, which changes the text's distribution: "
            "allow it with lossy=True, or --lossy on the command line.",
            field="rule",
        )


def rule_label(rule: str) -> str:
    """Return a rule's name, a lossy one marked.

    >>> rule_label("sequoia"), rule_label("typical")
    ('sequoia', "typical (lossy: the text's distribution changes)")
    """
    return f"{rule} (lossy: the text's distribution changes)" if rule in LOSSY_RULES else rule
