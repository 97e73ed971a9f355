"""Commands that follow from a plan or a profile, as the output prints them."""

from decimal import Decimal

from treeopt.planner import Option, Plan, PlanRequest, step_model
from treeopt.planner.segments import fastest_length
from treeopt.records.engine import AT_URL
from treeopt.records.identity import Identity
from treeopt.records.profile import IMPORTED, Profile
from treeopt.records.sampling import Sampling


def missing_models(profile: Profile) -> str:
    """Return options with a blank for each model of a profile, if neither it nor its trees name where they are."""
    identity = Identity.of(profile.pair, profile.machine)
    if identity.bundled or identity.target is not None:
        return ""
    return " --target MODEL" + (" --draft MODEL" if profile.pair.draft is not None else "")


def profile_command(profile: Profile) -> str | None:
    """Return the command that measures the models of a profile again, without its amounts; None for an import."""
    models, engine = Identity.of(profile.pair, profile.machine).model_options, profile.engine
    if engine is None:
        return f"treeopt profile{models or missing_models(profile)}"
    if engine.name == IMPORTED:
        return None
    method = next((f" --method {setting.value}" for setting in engine.settings if setting.name == "method"), "")
    url = " --url URLS" if engine.name in AT_URL or not models else ""
    return f"treeopt probe {engine.name}{models}{method}{url}"


def planning_options(request: PlanRequest) -> str:
    """Return the options of `treeopt solve` for a request, defaults left out.

    >>> from treeopt.planner import PlanRequest
    >>> planning_options(PlanRequest(temperature=0.6, max_nodes=64, memory_bytes=40_000_000_000, lossy=True))
    ' --temperature 0.6 --budget 64 --memory 40000000KB --lossy'
    """
    values = {
        "rule": request.rule,
        "temperature": None if request.temperature is None else f"{request.temperature:g}",
        "context-tokens": request.context_tokens,
        "batch-size": request.batch_size,
        "budget": request.max_nodes,
        "depth": request.max_depth,
        "level-width": request.level_widths,
        "memory": None if request.memory_bytes is None else f"{Decimal(request.memory_bytes) / 1000}KB",
        "objective": None if request.objective == "speed" else request.objective,
    }
    flags = [name for name in ("extrapolate", "raw", "lossy") if getattr(request, name)]
    options = [f" --{name} {value}" for name, value in values.items() if value is not None]
    return "".join([*options, *(f" --{name}" for name in flags)])


def decoding_options(profile: Profile, plan: Plan, option: Option) -> str:
    """Return the options of `treeopt run` for an option at a plan's operating point, defaults left out."""
    acceptance = plan.model.acceptance
    draft_sampling = acceptance.draft_sampling if option.drafter.name == "model" else None  # as treeopt bench
    sampling = sampling_text(acceptance.sampling, draft_sampling)
    return f"{missing_models(profile)}{sampling}{' --lossy' if option.lossy else ''}"


def engine_command(profile: Profile, profile_path: str, tree: str) -> str:
    """Return the command that follows a plan for a serving engine: its benchmark, or an export of imported measurements.

    Args:
        profile: of the engine.
        profile_path: its file, quoted.
        tree: the tree file, quoted.
    """
    assert profile.engine is not None  # the caller's profile is of an engine
    if profile.engine.name == IMPORTED:
        return f"treeopt export {tree} --profile {profile_path} --to vllm"
    command = f"treeopt bench engine {profile.engine.name} --profile {profile_path}"
    if profile.pair.target_source is not None and profile.engine.name not in AT_URL:
        return command
    planned = fastest_length(step_model(profile))
    lengths = [0, planned] if planned else [chain.length for chain in profile.chain_latencies[0].chains]
    return f"{command} --url {','.join(f'{length}=URL' for length in lengths)}"


def sampling_text(sampling: Sampling, draft_sampling: Sampling | None) -> str:
    """Return the options for how target and draft sample, defaults left out.

    >>> from treeopt.records.sampling import Sampling
    >>> sampling_text(Sampling(0.6, top_k=50), Sampling(0.8)), sampling_text(Sampling(), None)
    (' --temperature 0.6 --top-k 50 --draft-temperature 0.8', '')
    """
    values = [(name, getattr(sampling, name)) for name in ("temperature", "top_p", "top_k")]
    if draft_sampling is not None:
        values += [(f"draft_{name}", getattr(draft_sampling, name)) for name in ("temperature", "top_p", "top_k")]
    defaults = {"temperature": 0, "top_p": 1, "top_k": 0, "draft_top_p": 1, "draft_top_k": 0}
    return "".join(f" --{name.replace('_', '-')} {value:g}" for name, value in values if value != defaults.get(name))
