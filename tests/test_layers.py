"""Layers: imports go down only, checked on the source of every module.

A new module fails here until the table assigns it to a package.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.scripts import modules

pytestmark = pytest.mark.source

BASE = {
    "treeopt.version",
    "treeopt.errors",
    "treeopt.arguments",
    "treeopt.array_record",
    "treeopt.files",
    "treeopt.plotting",
    "treeopt.bundled",
    "treeopt.compiling",
    "treeopt.tabular",
    "treeopt.arrays",
}
"""Packages below all layers, which every module may import."""
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
    # layer 5: one command per module
    "treeopt.cli": {"treeopt.any_tree"}
    | METHODS
    | ADAPTATION
    | PROFILER
    | RUNTIME
    | REPORT
    | SIMULATION
    | DOCTOR
    | {"treeopt.engines.clients"}
    | PLANNER
    | IMPORTS
    | SOLVER
    | RECORDS
    | TEXTS
    | TREES,
    # between 4 and 5: checks of the machine and the installation, without torch
    "treeopt.doctor": {"treeopt.engines.clients"} | PROFILER | REPORT | RECORDS,
    # layer 4: plans that change while decoding
    "treeopt.adaptation": {"treeopt.planner"} | RUNTIME | SOLVER | RECORDS | TREES,
    # between 4 and 5: all methods, planned and benchmarked
    "treeopt.methods": ADAPTATION | PROFILER | RUNTIME | PLANNER | SOLVER | RECORDS | TEXTS | TREES,
    # layer 4: measuring
    "treeopt.profiler": {"treeopt.planner", "treeopt.engines.clients"} | RUNTIME | RECORDS | TEXTS | TREES,
    # layer 2: clients of running engines
    "treeopt.engines.clients": COUNTERS | RECORDS | TEXTS,
    # layer 3: decoding
    "treeopt.runtime": RECORDS | TEXTS | TREES,
    # between 2 and 3: text, JSON, figures and the report page, without torch
    "treeopt.report": SIMULATION | PLANNER | IMPORTS | SOLVER | RECORDS | TREES,
    # layer 2, above the planner: a server under a load
    "treeopt.simulation": {"treeopt.planner"} | RECORDS | TREES,
    # layer 2: from a profile to a plan, from a plan to an engine's settings
    "treeopt.engines": {"treeopt.planner"} | SOLVER | RECORDS | TREES,
    "treeopt.planner": SOLVER | RECORDS | TREES,
    # layer 2: trees from any file, solutions included; exported by `treeopt.trees`
    "treeopt.any_tree": SOLVER | RECORDS | TREES,
    # layer 2: from measurements of other programs to a profile
    "treeopt.engines.importers": COUNTERS | RECORDS | TREES,
    "treeopt.engines.prometheus": set(),
    # layer 1: optimal trees
    "treeopt.solver": RECORDS | TREES,
    # layer 1: records, which may contain one another
    **dict.fromkeys(RECORDS, RECORDS | TREES),
    # layer 0: prompts and tokenizers
    "treeopt.texts": set(),
    # layer 0: trees
    "treeopt.trees": set(),
    # below all layers
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
"""Dependencies that only some packages may import, at any level of a module."""
IN_FUNCTIONS = {
    "torch": {
        "treeopt.trees.formats.growmap",
        "treeopt.engines.importers.plain_acceptance",
        "treeopt.engines.clients.assisted",
        "treeopt.doctor",
    },
    "mlx": {"treeopt.engines.clients.mlx_lm"},
    "mlx_lm": {"treeopt.engines.clients.mlx_lm"},
    "openvino_genai": {"treeopt.engines.clients.openvino_genai"},
    "prometheus_client": {"treeopt.engines.prometheus"},
    "scipy": {"treeopt.records.proportions"},
    "transformers": {"treeopt.texts.tokenizer", "treeopt.engines.clients.assisted"},
}
"""Modules of other packages that may import them in functions: for Sequoia's files, slow tokenizers, assisted generation."""


def package_of(module: str) -> str | None:
    """Return the package of the table that contains a module; None without one."""
    packages = [package for package in MAY_IMPORT if module == package or module.startswith(f"{package}.")]
    return max(packages, key=len, default=None)


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
    package = package_of(module)
    if package is None:
        return [f"{module}: not in any package of the table; add it to MAY_IMPORT"]
    found = []
    for statement, name, lazy, typing in imports(ast.parse(source)):
        reason = outer_fault(module, package, name, lazy=lazy or typing)
        if name.split(".")[0] == "treeopt" and not typing:
            reason = inner_fault(package, name)
        if reason:
            found.append(f"{module}, line {statement.lineno}: {name}: {reason}")
    return found


def outer_fault(module: str, package: str, name: str, *, lazy: bool) -> str | None:
    dependency = name.split(".")[0]
    if name.startswith("."):
        return "relative import"
    if module in IN_FUNCTIONS.get(dependency, ()):
        return None if lazy else f"{dependency} is for functions only: it is slow to import"
    if package not in ONLY_IN.get(dependency, {package}):
        return f"{dependency} is for {', '.join(sorted(ONLY_IN[dependency]))} only"
    if dependency == "scipy" and not lazy:
        return "scipy is for functions only: it is slow to import, and not every plan needs it"
    if dependency == "matplotlib" and not (lazy and re.search(r"figure|plotting", ".".join(module.split(".")[-2:]))):
        return "matplotlib is for functions and types of modules named *figure* or *plotting* only"
    return None


def inner_fault(package: str, name: str) -> str | None:
    target = package_of(name)
    if target is None:
        return "import it from the module that defines it, whose layer is known"
    if target == package or target in BASE | MAY_IMPORT[package]:
        return None
    return f"{package} may not import {target}"


def test_no_imports_by_computed_names():
    """Computed names cannot be resolved here, so only the lazy public API may use one."""
    computed = re.compile(r"import_module\(f?.treeopt\.(?!cli\.)")
    computing = [module for module, path in modules().items() if computed.search(path.read_text("utf-8"))]
    assert computing == ["treeopt", "treeopt.trees"]


def test_imports_go_down():
    sources = {module: path.read_text("utf-8") for module, path in modules().items() if module != "treeopt"}
    assert [fault for module, source in sources.items() for fault in faults(module, source)] == []


def reached(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports anywhere, for types too."""
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
    """Return the modules on import cycles, by removing modules without imports or importers until none is left."""
    left = dict(graph)
    while free := [module for module, others in left.items() if not others & set(left)]:
        for module in free:
            del left[module]
    while ends := [module for module in left if not any(module in others for others in left.values())]:
        for module in ends:
            del left[module]
    return sorted(left)


def test_no_import_cycles():
    sources = {module: path.read_text("utf-8") for module, path in modules().items()}
    assert cycles(reached(sources)) == []


def test_import_cycles_are_detected():
    """Negative control with a cycle of three modules; a module that only imports them is not on it."""
    sources = {
        "treeopt.records": "",
        "treeopt.records.acceptance": "from treeopt.records import profile",
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
    expected = {
        "treeopt.errors",
        "treeopt.files",
        "treeopt.trees.token_tree",
        "treeopt.planner.costs",
        "treeopt.cli",
        "treeopt.profiler",
    }
    assert expected <= set(modules())


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("treeopt.trees.shapes", "from treeopt.records.acceptance import A", "may not import treeopt.records"),
        ("treeopt.trees.shapes", "def f():\n    import treeopt.cli.main", "line 2: .*may not import treeopt.cli"),
        ("treeopt.trees.shapes", "try:\n    import torch\nexcept ImportError:\n    pass", "torch is for"),
        ("treeopt.trees.shapes", "if TYPE_CHECKING:\n    import torch", "torch is for"),
        ("treeopt.trees.shapes", "if TYPE_CHECKING:\n    pass\nelse:\n    import treeopt.solver", "line 4: "),
        ("treeopt.trees.shapes", "from ..errors import TreeoptError", "relative"),
        ("treeopt.trees.shapes", "def f():\n    import matplotlib", "matplotlib is for"),
        ("treeopt.trees.figure", "import matplotlib", "matplotlib is for"),
        ("treeopt.trees.formats.growmap", "import torch", "torch is for functions only"),
        ("treeopt.records.profile", "from treeopt import trees, solver", "may not import treeopt.solver"),
        ("treeopt.planner", "from treeopt.engines import vllm", "may not import treeopt.engines"),
        ("treeopt.planner.smoothing", "from scipy.optimize import minimize", "scipy is for functions only"),
        ("treeopt.profiler.rounds", "def f():\n    import scipy", "scipy is for treeopt.planner, treeopt.solver only"),
        ("treeopt.runtime.decoder", "from treeopt.profiler import clock", "may not import treeopt.profiler"),
        ("treeopt.cli.run", "from treeopt import plan", "import it from the module"),
        ("treeopt.files", "from treeopt.trees import load", "may not import treeopt.trees"),
        ("treeopt.profiles", "", "not in any package"),
    ],
)
def test_forbidden_imports_are_detected(module, source, reason):
    (fault,) = faults(module, source)
    assert re.search(reason, fault)
