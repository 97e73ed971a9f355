"""Names of the verification rules; `treeopt.runtime.rules` implements them."""

from treeopt.errors import InvalidValueError

RULES = ("sequoia", "specinfer", "target", "traversal", "typical")
"""`sequoia`: children sampled without replacement (Chen et al., 2024); `specinfer`: with replacement (Miao et al., 2024);
`target`: the draft's top children, accepted if the target samples them; `traversal`: children as for `sequoia`, verified
from the leaves up (Weng et al., 2025); `typical`: the draft's top children, accepted if likely enough under the target
(Cai et al., 2024)."""
TARGET_RULE = "target"
"""The rule for drafters without probabilities: accepts the child that the target samples."""
LOSSY_RULES = frozenset({"typical"})
"""Rules that change the output distribution."""


def check_rule(rule: str, *, lossy: bool = False) -> None:
    """Raise InvalidValueError for an unknown rule, or a lossy one unless `lossy`."""
    if rule not in RULES:
        raise InvalidValueError(f"rule: expected one of {', '.join(RULES)}. Got {rule!r}.", field="rule")
    if rule in LOSSY_RULES and not lossy:
        raise InvalidValueError(
            f"rule: expected a lossless one. Got {rule!r}, which changes the output's distribution: "
            "allow it with lossy=True, or --lossy on the command line.",
            field="rule",
        )


def rule_label(rule: str) -> str:
    """Return the rule's name, marked if it is lossy.

    >>> rule_label("sequoia"), rule_label("typical")
    ('sequoia', "typical (lossy: the output's distribution changes)")
    """
    return f"{rule} (lossy: the output's distribution changes)" if rule in LOSSY_RULES else rule
