"""Names under which decoders with other drafters than a static tree were made; `Decoder` makes all of them."""

from treeopt.errors import InvalidValueError
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.decoding.limits import check_vocabularies, text_limit, trained_tokens
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.dynamic_tree import DynamicDrafter
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees.dynamic_tree import DynamicTree


def DraftingDecoder(  # noqa: N802 - the name of a class that it once was
    target: LanguageModel,
    drafter: Drafter,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    rule: str = "target",
    lossy: bool = False,
    seed: int = 0,
    max_text_tokens: int | None = None,
) -> Decoder:
    """Return `Decoder` with a drafter that brings trees of its own."""
    return Decoder(
        target,
        drafter,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        rule=rule,
        lossy=lossy,
        seed=seed,
        max_text_tokens=max_text_tokens,
    )


def DynamicDecoder(  # noqa: N802 - the name of a class that it once was
    target: LanguageModel,
    draft: LanguageModel,
    tree: DynamicTree,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    max_text_tokens: int | None = None,
) -> Decoder:
    """Return `Decoder` with the EAGLE-2 style trees of a draft model.

    Args:
        target: the model whose text is wanted.
        draft: the draft model; its probabilities are those of temperature 1, whatever the target's.
        tree: how the trees grow.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's distribution that is kept, above 0 and at most 1.
        top_k: tokens of the target's distribution that are kept, the likeliest; 0 keeps all.
        seed: of all randomness.
        max_text_tokens: longest text, prompt included; at most and by default what both models were trained for.

    Raises InvalidValueError for values out of range and models whose vocabularies differ in size.
    """
    check_vocabularies(target, draft)
    trained = trained_tokens(target, draft)
    longest = text_limit(max_text_tokens, trained)
    limits = {"top_k": (target.config.vocabulary, "vocabulary"), "depth": (trained, "trained length")}
    for name, (most, what) in limits.items():
        if getattr(tree, name) > most:
            raise InvalidValueError(
                f"tree: expected a {name} of at most {most}, the {what}. Got {getattr(tree, name)}."
            )
    return Decoder(
        target,
        DynamicDrafter(draft, tree, capacity=longest),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_text_tokens=longest,
    )
