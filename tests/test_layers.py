"""Imports go down only: the floors of the house, checked on the source of every module.

A new module fails here until the table says which room it belongs to.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.source
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"treeopt": "treeopt", "trees": "treeopt.trees", "profiler": "treeopt.profiler", "cli": "treeopt.cli"}

BASE = {
    "treeopt.version",
    "treeopt.errors",
    "treeopt.arguments",
    "treeopt.array_record",
    "treeopt.files",
    "treeopt.pictures",
    "treeopt.bundled",
    "treeopt.compiling",
    "treeopt.tabular",
    "treeopt.arrays",
}
"""The version, errors, reading and writing files, and where the bundled pair lies: everyone may import them."""
RECORDS = {"treeopt.records"}
TEXTS = {"treeopt.texts"}
TREES = {"treeopt.trees"}
SOLVER = {"treeopt.solver"}
PLANNER = {"treeopt.planner", "treeopt.engines"}
RUNTIME = {"treeopt.runtime"}
PROFILER = {"treeopt.profiler"}
METHODS = {"treeopt.methods"}
IMPORTS = {"treeopt.engines.importers"}
COUNTERS = {"treeopt.engines.prometheus"}
REPORT = {"treeopt.report"}
ADAPTATION = {"treeopt.adaptation"}
SIMULATION = {"treeopt.simulation"}
DOCTOR = {"treeopt.doctor"}

MAY_IMPORT = {
    "treeopt.__main__": {"treeopt.cli"},
    # floor 5: one command per module
    "treeopt.cli": {"treeopt.any_tree"}
    | METHODS
    | ADAPTATION
    | PROFILER
    | RUNTIME
    | REPORT
    | SIMULATION
    | DOCTOR
    | {"treeopt.engines.probes"}
    | PLANNER
    | IMPORTS
    | SOLVER
    | RECORDS
    | TEXTS
    | TREES,
    # between 4 and 5: what the machine and the installation are; it goes on without torch
    "treeopt.doctor": {"treeopt.engines.probes"} | PROFILER | REPORT | RECORDS,
    # floor 4, beside measuring: plans changed while decoding
    "treeopt.adaptation": {"treeopt.planner"} | RUNTIME | SOLVER | RECORDS | TREES,
    # between 4 and 5: all ways of speculating, measured, planned and run
    "treeopt.methods": ADAPTATION | PROFILER | RUNTIME | PLANNER | SOLVER | RECORDS | TEXTS | TREES,
    # floor 4: measuring
    "treeopt.profiler": {"treeopt.planner", "treeopt.engines.probes"} | RUNTIME | RECORDS | TEXTS | TREES,
    # floor 2, beside the planner: engines that can be run and asked
    "treeopt.engines.probes": COUNTERS | RECORDS | TEXTS,
    # floor 3: executing
    "treeopt.runtime": RECORDS | TEXTS | TREES,
    # between 2 and 3: plans, profiles, settings and benches as texts, JSON and pictures, without torch
    "treeopt.report": {"treeopt.engines.probes"} | SIMULATION | PLANNER | IMPORTS | SOLVER | RECORDS | TREES,
    # floor 2, above the planner: a server under a load
    "treeopt.simulation": {"treeopt.planner"} | RECORDS | TREES,
    # floor 2: from a profile to a plan, from a plan to an engine's settings
    "treeopt.engines": {"treeopt.planner"} | SOLVER | RECORDS | TREES,
    "treeopt.planner": SOLVER | RECORDS | TREES,
    # floor 2, beside them: a tree out of any file, solutions included; `treeopt.trees` offers it by name
    "treeopt.any_tree": SOLVER | RECORDS | TREES,
    # floor 2, beside them: what other programs measured, to a profile
    "treeopt.engines.importers": COUNTERS | RECORDS | TREES,
    "treeopt.engines.prometheus": RECORDS,
    # floor 1: optimal trees
    "treeopt.solver": RECORDS | TREES,
    # floor 1: records, which may hold one another
    **dict.fromkeys(RECORDS, RECORDS | TREES),
    # floor 0: texts and tokens without a model
    "treeopt.texts": set(),
    # floor 0: what a tree is
    "treeopt.trees": set(),
    # below all floors
    **dict.fromkeys(BASE, BASE),
}

ONLY_IN = {
    "torch": RUNTIME | PROFILER | ADAPTATION,
    "transformers": RUNTIME | PROFILER,
    "numba": {"treeopt.compiling"} | SOLVER | RUNTIME,
    "scipy": {"treeopt.planner"} | SOLVER,
    "click": {"treeopt.cli"},
    "openvino_genai": set(),
}
"""Packages that only some rooms may import, wherever in a module."""
IN_FUNCTIONS = {
    "torch": {
        "treeopt.trees.formats.growmap",
        "treeopt.engines.importers.torch_vector",
        "treeopt.engines.probes.assisted",
        "treeopt.doctor",
    },
    "mlx": {"treeopt.engines.probes.mlx_lm"},
    "mlx_lm": {"treeopt.engines.probes.mlx_lm"},
    "openvino_genai": {"treeopt.engines.probes.openvino_genai"},
    "prometheus_client": {"treeopt.engines.prometheus"},
    "scipy": {"treeopt.records.proportions"},
    "transformers": {"treeopt.texts.tokenizer", "treeopt.engines.probes.assisted"},
}
"""Modules of other rooms that may import them where they need it: for Sequoia's files, slow tokenizers, assisted generation."""


def room_of(module: str) -> str | None:
    """Return the room that a module lies in, None when the table has none for it."""
    found = [room for room in MAY_IMPORT if module == room or module.startswith(f"{room}.")]
    return max(found, key=len, default=None)


def imports(tree: ast.AST, *, lazy: bool = False, typing: bool = False) -> Iterator[tuple[ast.stmt, str, bool, bool]]:
    """Yield every import below a syntax tree: statement, dotted name, whether in a function, whether for types only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, lazy, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node, f"{'.' * node.level}{node.module or ''}.{a.name}", lazy, typing) for a in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports(ast.Module(node.body, []), lazy=lazy, typing=True)
            yield from imports(ast.Module(node.orelse, []), lazy=lazy, typing=typing)
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, lazy=lazy or function, typing=typing)


def faults(module: str, source: str) -> list[str]:
    """Return a line for every import that a module may not have."""
    room = room_of(module)
    if room is None:
        return [f"{module}: belongs to no room; add it to MAY_IMPORT"]
    found = []
    for statement, name, lazy, typing in imports(ast.parse(source)):
        reason = outer_fault(module, room, name, lazy=lazy or typing)
        if name.split(".")[0] == "treeopt" and not typing:
            reason = inner_fault(room, name)
        if reason:
            found.append(f"{module}, line {statement.lineno}: {name}: {reason}")
    return found


def outer_fault(module: str, room: str, name: str, *, lazy: bool) -> str | None:
    package = name.split(".")[0]
    if name.startswith("."):
        return "relative import"
    if module in IN_FUNCTIONS.get(package, ()):
        return None if lazy else f"{package} is for functions only: it is slow to import"
    if room not in ONLY_IN.get(package, {room}):
        return f"{package} is for {', '.join(sorted(ONLY_IN[package]))} only"
    if package == "scipy" and not lazy:
        return "scipy is for functions only: it is slow to import, and not every plan needs it"
    if package == "matplotlib" and not (lazy and re.search(r"figure|picture", ".".join(module.split(".")[-2:]))):
        return "matplotlib is for functions and types of modules named *figure* or *picture* only"
    return None


def inner_fault(room: str, name: str) -> str | None:
    target = room_of(name)
    if target is None:
        return "name the module it comes from, so that its floor can be seen"
    if target == room or target in BASE | MAY_IMPORT[room]:
        return None
    return f"{room} may not import {target}"


def test_nobody_imports_by_a_made_up_name():
    """What a name stands for is seen by no check, so that only the doors of packages may take from above by one."""
    made_up = re.compile(r"import_module\(f?.treeopt\.(?!cli\.)")
    found = [module for module, path in modules() if made_up.search(path.read_text("utf-8"))]
    assert found == ["treeopt.trees"]


def modules() -> list[tuple[str, Path]]:
    """Return the name and the path of every module, each once: links lead to folders that are read by themselves."""
    found = []
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            above = [ROOT / folder / Path(*parts[:length]) for length in range(1, len(parts))]
            copied = folder == "treeopt" and parts[0] in FOLDERS
            if not copied and not any(part.is_symlink() for part in above):
                found.append((".".join([package, *(part for part in parts if part != "__init__")]), path))
    return [(name, path) for name, path in found if name != "treeopt"]


def test_imports_go_down():
    assert [fault for module, path in modules() for fault in faults(module, path.read_text("utf-8"))] == []


def reached(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports: at its top, in functions and for types alike."""
    return {
        module: {named_module(name, sources) for _, name, _, _ in imports(ast.parse(source))} & set(sources) - {module}
        for module, source in sources.items()
    }


def named_module(name: str, sources: dict[str, str]) -> str:
    """Return the module that a dotted name is, or is in."""
    while name not in sources and name:
        name = name.rpartition(".")[0]
    return name


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that reach themselves: what is left when those that import none of the rest are taken away."""
    left = dict(graph)
    while free := [module for module, others in left.items() if not others & set(left)]:
        for module in free:
            del left[module]
    while ends := [module for module in left if not any(module in others for others in left.values())]:
        for module in ends:
            del left[module]
    return sorted(left)


def test_no_two_modules_reach_one_another():
    sources = {module: path.read_text("utf-8") for module, path in modules()}
    sources["treeopt"] = (ROOT / "treeopt/__init__.py").read_text("utf-8")
    assert cycles(reached(sources)) == []


@pytest.mark.parametrize(
    "source",
    [
        "from treeopt.records.profile import Profile",
        "from treeopt.records import profile",
        "def f():\n    import treeopt.records.profile",
        "if TYPE_CHECKING:\n    from treeopt.records.profile import Profile",
    ],
)
def test_modules_that_reach_one_another_are_found(source):
    """Negative control, over a third module; what only leads into the circle is not named."""
    sources = {
        "treeopt.records": "",
        "treeopt.records.acceptance": source,
        "treeopt.records.accepted_ranks": "from treeopt.records.acceptance import AcceptanceTable",
        "treeopt.records.profile": "import numpy\nfrom treeopt.records.accepted_ranks import AcceptedRanks",
        "treeopt.cli.run": "from treeopt.records.profile import Profile",
    }
    assert cycles(reached(sources)) == [
        f"treeopt.records.{name}" for name in ("acceptance", "accepted_ranks", "profile")
    ]
    sources["treeopt.records.acceptance"] = ""
    assert cycles(reached(sources)) == []


def test_every_folder_is_checked():
    names = {name for name, _ in modules()}
    rooms = {"treeopt.trees.token_tree", "treeopt.planner.costs", "treeopt.cli", "treeopt.profiler"}
    assert {"treeopt.errors", "treeopt.files", *rooms} <= names
    assert len(names) == len(modules())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("treeopt.trees.shapes", "import numpy as np\nfrom treeopt.errors import TreeoptError"),
        ("treeopt.trees.token_tree", "from treeopt.trees.tree_file import TreeFile"),
        ("treeopt.trees.figure", "def draw():\n    import matplotlib.pyplot as plt"),
        ("treeopt.trees.figure", "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
        ("treeopt.trees.formats.growmap", "def write():\n    import torch"),
        (
            "treeopt.records.profile",
            "from treeopt.records import latency\nfrom treeopt.records.acceptance import AcceptanceTable",
        ),
        ("treeopt.solver.kernels", "from numba import njit"),
        ("treeopt.planner.planning", "from treeopt.solver import solve\nfrom treeopt.planner.costs import StepCosts"),
        ("treeopt.planner.smoothing", "def smooth():\n    import scipy.optimize"),
        (
            "treeopt.report.plan_figure",
            "from treeopt.files.picture_file import save\ndef draw():\n    import matplotlib",
        ),
        (
            "treeopt.engines.importers.combine",
            "from treeopt.records.profile import Profile\nfrom treeopt.trees.tree_file import TreeFile",
        ),
        ("treeopt.engines.settings.vllm", "from treeopt.planner import Plan\nfrom treeopt.version import __version__"),
        ("treeopt.runtime.decoder", "import torch.nn\nfrom treeopt.trees import TokenTree"),
        ("treeopt.profiler.latency.rounds", "import treeopt.runtime.decoder"),
        ("treeopt.cli.main", "import click\nfrom treeopt import planner, profiler, solver"),
        ("treeopt.trees.tree", "if TYPE_CHECKING:\n    from treeopt.planner import Plan"),
        ("treeopt.files", "from treeopt.errors import TreeoptError"),
    ],
)
def test_a_good_import_is_let_through(module, source):
    assert faults(module, source) == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        (
            "treeopt.trees.shapes",
            "from treeopt.records.acceptance import AcceptanceTable",
            "may not import treeopt.records",
        ),
        ("treeopt.trees.shapes", "def f():\n    import treeopt.cli.main", "line 2: .*may not import treeopt.cli"),
        ("treeopt.trees.shapes", "try:\n    import torch\nexcept ImportError:\n    pass", "torch is for"),
        ("treeopt.trees.shapes", "if TYPE_CHECKING:\n    import torch", "torch is for"),
        ("treeopt.trees.shapes", "if TYPE_CHECKING:\n    pass\nelse:\n    import treeopt.solver", "line 4: "),
        ("treeopt.trees.shapes", "from . import token_tree", "relative"),
        ("treeopt.trees.shapes", "from ..errors import TreeoptError", "relative"),
        ("treeopt.trees.shapes", "def f():\n    import matplotlib", "matplotlib is for"),
        ("treeopt.trees.figure", "import matplotlib", "matplotlib is for"),
        ("treeopt.trees.formats.growmap", "import torch", "torch is for functions only"),
        (
            "treeopt.trees.formats.medusa",
            "def write():\n    import torch",
            "torch is for treeopt.adaptation, treeopt.profiler, ",
        ),
        ("treeopt.records.profile", "from treeopt import trees, solver", "may not import treeopt.solver"),
        ("treeopt.solver.kernels", "from treeopt.planner.costs import StepCosts", "may not import treeopt.planner"),
        ("treeopt.engines.importers.latency", "from treeopt.engines import sglang", "may not import treeopt.engines"),
        ("treeopt.planner", "from treeopt.engines import vllm", "may not import treeopt.engines"),
        ("treeopt.planner.speed_bound", "from treeopt.runtime import Decoder", "may not import treeopt.runtime"),
        (
            "treeopt.planner.speed_bound",
            "from numba import njit",
            "numba is for treeopt.compiling, treeopt.runtime, treeopt.solver only",
        ),
        ("treeopt.planner.smoothing", "from scipy.optimize import isotonic_regression", "scipy is for functions only"),
        ("treeopt.planner.planning", "def draw():\n    import matplotlib", "matplotlib is for"),
        (
            "treeopt.profiler.latency.rounds",
            "def f():\n    import scipy.stats",
            "scipy is for treeopt.planner, treeopt.solver only",
        ),
        ("treeopt.runtime.decoder", "from treeopt.solver import solve", "may not import treeopt.solver"),
        ("treeopt.runtime.decoder", "from treeopt.profiler import clock", "may not import treeopt.profiler"),
        ("treeopt.profiler.latency.rounds", "from treeopt import methods", "may not import treeopt.methods"),
        ("treeopt.profiler.latency.rounds", "import click", "click is for treeopt.cli only"),
        ("treeopt.cli.run", "import torch", "torch is for"),
        ("treeopt.texts.tokenizer", "def f():\n    import torch", "torch is for"),
        ("treeopt.cli.run", "import treeopt", "name the module"),
        ("treeopt.cli.run", "from treeopt import plan", "name the module"),
        ("treeopt.cli.run", "from treeopt import __version__", "name the module"),
        ("treeopt.files", "from treeopt.trees import load", "may not import treeopt.trees"),
        ("treeopt.profiles", "", "belongs to no room"),
    ],
)
def test_a_bad_import_is_found(module, source, reason):
    assert len(found := faults(module, source)) == 1
    assert re.search(reason, found[0])
