"""Methods whose draft model grows another tree in every step: EAGLE-2's rule and SpecExec."""

from functools import partial

from treeopt.methods.fastest_setting import Choice, fastest_choice
from treeopt.methods.method import REST_ASSUMED, Inputs, Method
from treeopt.planner.calibration import calibration, specexec_settings
from treeopt.planner.dynamic import fastest_dynamic_tree
from treeopt.planner.replay import Replay
from treeopt.profiler import Recording, RecordSize, Settings, TextFiles
from treeopt.records.draft_record import DraftRecord
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.limits import trained_tokens
from treeopt.runtime.drafters.best_first import SpecExecDrafter
from treeopt.runtime.drafters.dynamic_tree import DynamicDrafter

RECORD = RecordSize(top_k=8, depth=8)


def record(inputs: Inputs) -> DraftRecord:
    """Return the draft record of the inputs' prompts, which both methods are planned from."""
    settings = Settings(samplings=(inputs.sampling,), positions=inputs.positions * len(inputs.prompts), record=RECORD)
    recording = Recording(inputs.pair.target, inputs.pair.draft, inputs.prompts, settings, files=TextFiles(None))
    return recording.record(show_progress=False)


def eagle2(inputs: Inputs, recorded: DraftRecord) -> Method:
    """Return the fastest dynamic tree (Li et al., 2024)."""
    model = inputs.model("target")
    found = fastest_dynamic_tree(Replay(recorded), model, max_nodes=model.costs.max_nodes)
    tree, sampling = found.tree, inputs.sampling
    capacity = trained_tokens(inputs.pair.target, inputs.pair.draft)

    def make(seed: int) -> Decoder:
        drafter = DynamicDrafter(inputs.pair.draft, tree, capacity=capacity)
        return Decoder(inputs.pair.target, drafter, sampling=sampling, seed=seed, max_text_tokens=capacity)

    return Method(
        name="eagle2",
        rule="target",
        setting=f"top-k {tree.top_k}, depth {tree.depth}, {tree.nodes} nodes",
        predicted=found.speedup,
        make=make,
        assumed=(REST_ASSUMED, "expanding the tree takes no time beside the draft's passes"),
    )


def specexec(inputs: Inputs, recorded: DraftRecord) -> Method:
    """Return best-first expansion with the fastest budget (Svirschevski et al., 2024)."""
    draft = inputs.pair.draft
    settings = specexec_settings(inputs.model("target"), calibration(recorded))
    capacity = trained_tokens(inputs.pair.target, draft)
    choices = [
        Choice(
            f"budget {each.budget}, {each.max_passes} passes", partial(SpecExecDrafter, draft, each, capacity=capacity)
        )
        for each in settings
    ]
    return fastest_choice("specexec", inputs, choices)
