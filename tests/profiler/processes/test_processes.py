"""Several processes measure exactly what one measures, and when one ends all end and name it.

Run as a script under `torchrun`, this file is what each process does; most tests fork the processes instead.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.profiler.pretended import FakeClock, interrupt, measure_profile
from tests.support.forked import FORK, forks
from tests.support.slow import slow
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler import Checkpoint, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.acceptance.incremental import random_groups
from treeopt.profiler.processes.distributed import local_device, processes_for
from treeopt.profiler.processes.processes import Processes
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.trees import chain, k_ary

SETTINGS = Settings(
    rules=("sequoia", "traversal"),
    samplings=(GREEDY, Sampling(0.7)),
    context_tokens=(20,),
    max_tokens=4,
    rounds=1,
    positions=8 * 18,
    depth=2,
    branching=2,
)
SPLIT = replace(SETTINGS, rules=("sequoia",), samplings=(Sampling(0.8),))
SPLIT_PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8]]
CPU = torch.device("cpu")
LIMIT_S = 100
FINISHED = 0
ROOT = Path(__file__).resolve().parents[3]


def fastest_tree(profile):
    """Return another tree once the gain of the first is known, as a planner does."""
    return k_ary(2, 2) if profile.acceptances[0].table.p[0, 0] > 0.5 else chain(3)


def measure(case, checkpoint, settings=SETTINGS, processes=None, *, seconds=1.0):
    processes = processes or Processes()
    clock = processes.clock(FakeClock(lambda: seconds))
    options = {"clock": clock, "checkpoint": checkpoint, "processes": processes, "fastest_tree": fastest_tree}
    return measure_profile(*case, settings, **options)


def open_checkpoint(path, *, resume=False, processes=None):
    return Checkpoint(path, "conditions", resume=resume, processes=processes)


def save(profile, path):
    """Save a profile without its date and return the bytes."""
    replace(profile, created="").save(path)
    return path.read_bytes()


# ---- what each process does ------------------------------------------------------------------------------------------


def measure_together(folder, case, processes):
    """Measure from the beginning, and resume what one process began."""
    for name, resume in (("whole", False), ("resumed", True)):
        checkpoint = open_checkpoint(folder / f"{name}.partial", resume=resume, processes=processes)
        profile = measure(case, checkpoint, processes=processes)
        if processes.rank == 0:
            (folder / f"{name}.files").write_text(json.dumps([file.name for file in folder.glob(f"{name}.partial*")]))
            save(profile, folder / f"{name}.yaml")
            checkpoint.remove()
    (folder / f"{processes.rank}.json").write_text(json.dumps(call_on_first(processes)))


def call_on_first(processes):
    """Return the result of a call that process 0 decides, and how often this process made it."""
    calls = []
    return [processes.run_on_first(lambda: calls.append(1) or processes.rank + 40), len(calls)]


def end_after_one_group(reason, checkpoint_path):
    """End this process once it has counted a group of prompts and others have too."""
    continue_prompts, counted = per_prompt.continue_prompts, []

    def end_then(*arguments):
        if counted:
            while sum('"acceptance' in file.read_text() for file in checkpoint_path.parent.glob("*.partial*")) < 2:
                time.sleep(0.05)
            if reason == "failed":
                raise MemoryError("no more")
            os.kill(os.getpid(), signal.SIGKILL if reason == "killed" else signal.SIGINT)
        counted.append(1)
        return continue_prompts(*arguments)

    per_prompt.continue_prompts = end_then


def measure_split(folder, processes):
    """Measure a target split over both processes; the clock of process 1 has other seconds."""
    from treeopt.runtime.models.hf import load_adapter

    target, draft = (load_adapter(folder / "llama", tensor_parallel=split) for split in (True, False))
    text = torch.arange(20)[None] % 7
    logits = target.reference_logits(text).double(), draft.reference_logits(text).double()
    resumed = open_checkpoint(folder / "split.partial", resume=True, processes=processes)
    entries = sum(1 for kind in resumed.kinds() for _ in resumed.entries(kind))
    case, seconds = (target, draft, SPLIT_PROMPTS), 1.0 if processes.rank == 0 else 77.0
    save(measure(case, resumed, SPLIT, processes, seconds=seconds), folder / f"split.{processes.rank}.yaml")
    files = sorted(file.name for file in folder.glob("split.partial*"))
    try:
        processes.gather({0: (float(processes.rank),)})
        refusal = ""
    except TreeoptError as error:
        refusal = str(error)
    result = {
        "error": (logits[0] - logits[1]).abs().max().item(),
        "total": logits[0].sum().item().hex(),
        "shape": list(target._model.model.layers[0].mlp.up_proj.weight.to_local().shape),
        "entries": entries,
        "files": files,
        "call on first": call_on_first(processes),
        "refusal": refusal,
    }
    (folder / f"{processes.rank}.json").write_text(json.dumps(result))


def main(folder, task):
    processes = processes_for(os.environ, tensor_parallel=task == "split", device=local_device("cpu", os.environ))
    path = folder / "profile.yaml.partial"
    try:
        with processes.supervise(path):
            if task == "split":
                measure_split(folder, processes)
                return
            case = torch.load(folder / "case.pt", weights_only=False)
            if task == "together":
                measure_together(folder, case, processes)
                return
            reason, rank = task.split("-")
            if processes.rank == int(rank):
                end_after_one_group(reason, path)
            measure(case, open_checkpoint(path, processes=processes), processes=processes)
    except TreeoptError as error:
        print(f"Error of {processes.rank}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


# ---- what is expected of them ----------------------------------------------------------------------------------------


def run_copy(rank, folder, task, count, port):
    """Run one of several forks, which need not import torch again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
    with (folder / f"stderr.{rank}").open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    environ = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in environ.items()}
    main(folder, task)


def run_forks(folder, task, case, count=2):
    """Run forks of this process to their end; return the last exit code and standard error."""
    torch.save(case, folder / "case.pt")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    copies = [FORK.Process(target=run_copy, args=(rank, folder, task, count, port)) for rank in range(count)]
    for process in copies:
        process.start()
    for process in copies:
        process.join(LIMIT_S)
        process.kill()
    stderr = "".join((folder / f"stderr.{rank}").read_text() for rank in range(count))
    return max((process.exitcode for process in copies), key=abs), stderr


def run_under_torchrun(folder, task, case, count=2):
    """Run processes to their end; return the exit code and standard error."""
    torch.save(case, folder / "case.pt")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*launcher, __file__, str(folder), task],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONWARNINGS": "ignore"},
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def case(target, draft, prompts):
    return target, draft, prompts * 3


@pytest.fixture(scope="module")
def whole(case, tmp_path_factory):
    """Return the saved profile of one process."""
    return save(measure(case, open_checkpoint(None)), tmp_path_factory.mktemp("one") / "profile.yaml")


@forks
def test_two_processes_measure_what_one_does_and_resume_what_one_began(case, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt(patch, per_prompt, "continue_prompts", 3)
        with pytest.raises(KeyboardInterrupt):
            measure(case, open_checkpoint(tmp_path / "resumed.partial"))
    (tmp_path / "whole.partial.7").write_text("left by an earlier run of eight")
    code, stderr = run_forks(tmp_path, "together", case)
    assert code == FINISHED, stderr
    for name in ("whole", "resumed"):
        assert (tmp_path / f"{name}.yaml").read_bytes() == whole
        files = json.loads((tmp_path / f"{name}.files").read_text())
        assert sorted(files) == [f"{name}.partial", f"{name}.partial.1"]
    assert len(Profile.load(tmp_path / "whole.yaml").acceptances) == 3
    assert list(tmp_path.glob("*.partial*")) == []
    calls = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert calls == [[40, 1], [40, 0]]


@forks
@pytest.mark.parametrize(
    ("run", "reason", "rank", "message"),
    [
        (run_forks, "killed", 1, "killed, or cut off"),
        (run_forks, "interrupted", 1, "interrupted"),
        (run_forks, "failed", 1, "MemoryError: no more"),
        *slow([(run_under_torchrun, "killed", 0, "killed, or cut off")]),
    ],
)
def test_all_processes_end_with_one_and_name_it_and_one_process_resumes(
    run, reason, rank, message, case, whole, tmp_path
):
    code, stderr = run(tmp_path, f"{reason}-{rank}", case)
    path = tmp_path / "profile.yaml.partial"
    assert code != FINISHED
    lines = [line for line in stderr.splitlines() if line.startswith("Error of")]
    hint = f"What was measured is in {path}*; the same command with --resume goes on from there."
    assert lines == [f"Error of {1 - rank}: process {rank} of 2 ended ({message}). {hint}"], stderr
    files = sorted(tmp_path.glob("*.partial*"))
    assert files == [path, Path(f"{path}.1")]
    assert all('"acceptance on' in file.read_text() for file in files)
    resumed = open_checkpoint(path, resume=True)
    counted = {entry.key for entry in resumed.entries("acceptance on 8 positions, sequoia 0.7")}
    assert counted >= {number for group in random_groups(18)[:2] for number in group}
    assert save(measure(case, resumed), tmp_path / "profile.yaml") == whole


@forks
@pytest.mark.slow
def test_two_processes_measure_a_split_target(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    from treeopt.runtime.models.hf import load_adapter

    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.4))
    model.save_pretrained(tmp_path / "llama")
    lines = [{"conditions": "conditions, target split over 2 processes"}, ["verify 20x1 sampled", 1, [1.0]]]
    (tmp_path / "split.partial").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, stderr = run_forks(tmp_path, "split", case)
    assert code == FINISHED, stderr
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["total"] == results[1]["total"]
    for rank, result in enumerate(results):
        assert result["error"] < 1e-4
        assert result["shape"] == [12, 16]  # half of the 24 rows
        assert (result["entries"], result["files"]) == (1, ["split.partial"])  # process 0 writes, all resume
        assert result["call on first"] == [40, 1]  # all make the call
        assert result["refusal"].endswith(f"others from process {1 - rank}: use devices of one kind.")

    assert (tmp_path / "split.0.yaml").read_bytes() == (tmp_path / "split.1.yaml").read_bytes()
    profile = Profile.load(tmp_path / "split.0.yaml")
    seconds = {seconds for timing in profile.latencies[0].verify.timings for seconds in timing.samples_s}
    assert seconds == {1.0}  # by the clock of process 0
    model = load_adapter(tmp_path / "llama")
    alone = measure((model, model, SPLIT_PROMPTS), open_checkpoint(None), SPLIT).acceptance()
    tables = (torch.tensor(acceptance.table.p) for acceptance in (profile.acceptance(), alone))
    torch.testing.assert_close(*tables, atol=1e-3, rtol=0)


class TestSingleProcess:
    def test_process_is_alone_without_a_launcher(self):
        for environ in ({}, {"WORLD_SIZE": "1"}):
            assert type(processes_for(environ, tensor_parallel=False, device=CPU)) is Processes
            assert local_device("cuda:1", environ) == torch.device("cuda:1")

    def test_one_process_cannot_split_a_target(self):
        with pytest.raises(InvalidValueError, match="tensor_parallel: expected several processes"):
            processes_for({}, tensor_parallel=True, device=CPU)

    def test_processes_that_do_not_find_each_other_are_refused(self, monkeypatch):
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(TreeoptError, match=r"processes: expected 4, as WORLD_SIZE says.*with torchrun"):
            processes_for({"WORLD_SIZE": "4"}, tensor_parallel=False, device=CPU)

    def test_interruption_names_the_checkpoint(self, tmp_path):
        path = tmp_path / "checkpoint"
        for checkpoint in (None, path):
            with pytest.raises(KeyboardInterrupt), Processes().supervise(checkpoint):
                raise KeyboardInterrupt
        path.touch()
        reason = f"interrupted. What was measured is in {path}; the same command"
        with pytest.raises(TreeoptError, match=reason), Processes().supervise(path):
            raise KeyboardInterrupt


SEVERAL = {"WORLD_SIZE": "4", "LOCAL_RANK": "2"}


class TestDevices:
    def test_each_of_several_processes_takes_its_own_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        assert local_device("cuda", SEVERAL) == torch.device("cuda:2")
        assert local_device("cpu", SEVERAL) == CPU

    def test_a_process_without_a_gpu_is_refused(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(InvalidValueError, match=r"device: expected a GPU for each process.*Got 2 GPUs"):
            local_device("cuda", SEVERAL)
        with pytest.raises(InvalidValueError, match=r"device: expected LOCAL_RANK.*start them with torchrun"):
            local_device("cuda", {"WORLD_SIZE": "4"})

    def test_several_processes_do_not_share_a_gpu(self):
        with pytest.raises(InvalidValueError, match=r"device: expected cuda, since.*Got cuda:1"):
            local_device("cuda:1", SEVERAL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
