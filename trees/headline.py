"""What a tree file says of its tree, in two lines to write above a picture."""

from treeopt.trees.provenance import Provenance
from treeopt.trees.tree_file import TreeFile


def headline(content: TreeFile) -> tuple[str, str]:
    """Return a title, size and what was promised, and a subtitle, what it was promised for; empty where nothing is known.

    >>> from treeopt.trees import chain
    >>> known = Provenance(pair="big + small", machine="CPU", threads=2, rule="sequoia", temperature=0.6, speedup=1.9)
    >>> headline(TreeFile(tree=chain(4), provenance=known))
    ('5 nodes, depth 4: predicted 1.90 times plain decoding', 'big + small on CPU (2 threads), sequoia at temperature 0.6')
    """
    tree, known = content.tree, content.provenance or Provenance()
    tokens = known.tokens_per_step
    if tokens is None and content.reach is not None:
        tokens = float(content.reach.sum())
    promised = [
        *([] if tokens is None else [f"{tokens:.2f} tokens per step"]),
        *([] if known.speedup is None else [f"{known.speedup:.2f} times plain decoding"]),
    ]
    size = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, depth {tree.max_depth}"
    title = f"{size}: predicted {', '.join(promised)}" if promised else size
    by = "" if content.drafter is None else content.drafter.words
    return title, ", ".join(filter(None, (by, _conditions(known))))


def drafted_by(content: TreeFile) -> str:
    """Return in a sentence what drafts a tree, empty for the draft model.

    >>> from treeopt.trees import chain
    >>> from treeopt.trees.drafter_setting import drafter_setting
    >>> drafted_by(TreeFile(tree=chain(4), drafter=drafter_setting("medusa", source="heads")))
    'Drafted by medusa, heads from heads.'
    """
    setting = content.drafter
    if setting is None:
        return ""
    heads = "" if setting.source is None else f", heads from {setting.source}"
    read = f", reading boundaries {','.join(map(str, setting.layers))}" if setting.layers else ""
    stand_in = ", with trees of its own: this one is as deep as they get" if setting.own_trees else ""
    return f"Drafted by {setting.words}{heads}{read}{stand_in}."


def _conditions(known: Provenance) -> str:
    threads = "" if known.threads is None else f" ({known.threads} thread{'s' * (known.threads > 1)})"
    where = "" if known.machine is None else f"on {known.machine}{threads}"
    rule = "" if known.rule is None else known.rule + " (lossy)" * bool(known.lossy)
    temperature = "" if known.temperature is None else f"at temperature {known.temperature:g}"
    parts = [" ".join(filter(None, pair)) for pair in ((known.pair, where), (rule, temperature))]
    day = "" if known.created is None else f"measured {known.created[:10]}"
    return ", ".join(filter(None, (*parts, day)))
