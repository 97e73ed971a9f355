"""Reading what `treeopt bench batches --output` wrote."""

from itertools import pairwise

from treeopt.files.fields import Fields
from treeopt.records.batch_bench import BatchBench, BatchMeasured, BatchRow, BatchSize
from treeopt.records.results import MOST, Pace, PacedPrediction
from treeopt.records.rules import LOSSY_RULES
from treeopt.records.step_latency import read_tree
from treeopt.report.bench_fields import LEAST, divergences, follows, follows_nearly, number_or_none, record_or_none
from treeopt.trees import kind_of


def read_batch_bench(fields: Fields) -> BatchBench:
    """Return a bench of several texts at a time; what follows from other fields has to agree with them.

    Raises FormatError naming the file, the field and the reason.
    """
    rule, temperature = fields.text("rule"), fields.number("temperature")
    follows(fields, "lossy", rule in LOSSY_RULES)
    sizes = tuple(_size(each, temperature) for each in fields.mappings("sizes"))
    if any(one.batch_size >= other.batch_size for one, other in pairwise(sizes)):
        raise fields.error("sizes", "expected batch sizes that rise.")
    return BatchBench(
        rule=rule,
        temperature=temperature,
        prompts=fields.integer("prompts"),
        max_new_tokens=fields.integer("max_new_tokens"),
        rounds=fields.integer("rounds"),
        sizes=sizes,
    )


def _size(fields: Fields, temperature: float) -> BatchSize:
    batch_size = fields.integer("batch_size")
    settings = fields.mappings("settings")
    found = BatchSize(
        batch_size=batch_size,
        rows=tuple(_row(each, batch_size, temperature) for each in settings),
        pace=record_or_none(fields, "pace", Pace),
    )
    if sum(row.chosen for row in found.rows) > 1:
        raise fields.error("settings", "expected at most one that is chosen.")
    if found.regret is None:
        follows(fields, "regret", None)
    else:
        follows_nearly(fields, "regret", found.regret)
    fields.end()
    return found


def _row(fields: Fields, batch_size: int, temperature: float) -> BatchRow:
    tree = read_tree(fields, "parents")
    follows(fields, "kind", kind_of(tree))
    follows(fields, "nodes", tree.nodes)
    follows(fields, "depth", tree.max_depth)
    row = BatchRow(
        tree=tree,
        chosen=fields.flag("chosen"),
        measured=_measured(fields, batch_size, temperature),
        predicted_tokens_per_s=number_or_none(fields, "predicted_tokens_per_s", most=MOST),
        predicted_tokens_per_step=number_or_none(fields, "predicted_tokens_per_step", most=MOST),
        predicted_step_s=number_or_none(fields, "predicted_step_s", most=MOST),
        predicted_speedup=number_or_none(fields, "predicted_speedup", most=MOST),
        predicted_at_pace=record_or_none(fields, "predicted_at_pace", PacedPrediction),
    )
    fields.end()
    return row


def _measured(fields: Fields, batch_size: int, temperature: float) -> BatchMeasured:
    found = BatchMeasured(
        tokens_per_s=fields.number("measured_tokens_per_s", least=LEAST, most=MOST),
        step_s=fields.number("measured_step_s", most=MOST),
        batch_tokens_per_step=batch_size * fields.number("measured_tokens_per_step", most=MOST),
        speedup=fields.number("measured_speedup", least=LEAST, most=MOST),
        spread=fields.number("spread", most=MOST),
        overhead=fields.number("overhead", most=1.0),
        prefill_s=fields.number("prefill_s", most=MOST),
        texts=fields.integer("texts"),
        divergences=divergences(fields),
    )
    follows(fields, "equal_texts", found.texts - len(found.divergences))
    near_ties = None if temperature else sum(each.near_tie for each in found.divergences)
    follows(fields, "near_ties", near_ties)
    return found
