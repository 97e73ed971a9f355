"""A draft with noise on its weights, as `benchmarks/recalibration.py` decodes with."""

from tests.scripts import ROOT, script

perturbed_model = script(ROOT / "benchmarks" / "streams.py").perturbed_model
