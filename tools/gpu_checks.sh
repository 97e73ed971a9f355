#!/bin/sh
# What needs a GPU, from the source tree, in less than ten minutes: the tests and the contract suite of all drafters on
# it, then the profiles of the gallery.
# Use: sh tools/gpu_checks.sh FOLDER ACCEPTANCE
# FOLDER gets gpu-tests.txt, and profiles.tar.gz with docs/profiles, whatever was measured before time ran out.
# ACCEPTANCE is Sequoia's acceptance.json.
# PYTHON names the interpreter, TARGETS some of the shapes, TIME_BUDGET the timed seconds of each pair.
set -u
out=$1 acceptance=$2
python=${PYTHON:-python3}
export PYTHONPATH=. PYTHONUNBUFFERED=1

$python -c 'import treeopt.cli.main, treeopt.profiler, treeopt.trees' || exit
OMP_NUM_THREADS=1 TREEOPT_TEST_DEVICE=cuda timeout 240 $python -m pytest tests/test_cuda.py tests/contracts -m "not slow" -n 14 -q -p no:benchmark >"$out/gpu-tests.txt" 2>&1
tests=$?
tail -n 5 "$out/gpu-tests.txt"
timeout 330 $python tools/gallery.py --device cuda --targets ${TARGETS:-1b 7b 13b} --time-budget "${TIME_BUDGET:-8}" \
    --acceptance "$acceptance"
gallery=$?
tar -czf "$out/profiles.tar.gz" docs/profiles
exit $((tests | gallery))
