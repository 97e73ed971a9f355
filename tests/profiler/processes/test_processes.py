"""Several processes measure what one measures, exactly, and when one of them ends all end and say which it was.

Run as a script under `torchrun`, this file is what each of the processes does; a fast run forks them in its place.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.support.slow import slow
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.processes.distributed import DataParallel, local_device, processes_for
from treeopt.profiler.processes.processes import OneProcess
from treeopt.records.profile import Profile
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.trees import chain, k_ary

SETTINGS = Settings(
    rules=("sequoia", "traversal"),
    samplings=(GREEDY, Sampling(0.7), Sampling(1.0, 0.9)),
    context_tokens=(20,),
    max_tokens=8,
    rounds=2,
    positions=60,
    depth=3,
    branching=3,
)
SPLIT = replace(SETTINGS, rules=("sequoia",), samplings=(Sampling(0.8),), positions=48)
CPU = torch.device("cpu")
LIMIT_S = 100
FINISHED = 0
ROOT = Path(__file__).resolve().parents[3]


def fastest_tree(profile):
    """Return another tree once the gain of the first is known, as a planner does."""
    return k_ary(2, 2) if profile.acceptances[0].table.p[0, 0] > 0.5 else chain(3)


def measured(case, checkpoint, settings, processes=None, *, seconds=1.0):
    processes = processes or OneProcess()
    return Measurement(
        *case,
        settings,
        clock=processes.clock(FakeClock(lambda: seconds)),
        checkpoint=checkpoint,
        fastest_tree=fastest_tree,
        processes=processes,
    ).profile(show_progress=False)


def checkpoint_of(path, *, resume=False, processes=None):
    return Checkpoint(path, "conditions", resume=resume, processes=processes)


def saved(profile, path):
    replace(profile, created="").save(path)
    return path.read_bytes()


def ends_after(prompts, how, checkpoint_path):
    """Make this process end once it has counted so many prompts, and once others have kept some too."""
    continue_prompt, counted = per_prompt.continue_prompt, []

    def until_then(*arguments):
        if len(counted) == prompts:
            while not all('"acceptance' in file.read_text() for file in checkpoint_path.parent.glob("*.partial*")):
                time.sleep(0.05)
            how()
        counted.append(1)
        return continue_prompt(*arguments)

    per_prompt.continue_prompt = until_then


def run_out_of_memory():
    raise MemoryError("no more")


# ---- what each process does ------------------------------------------------------------------------------------------


def work(folder, task, processes):
    case = torch.load(folder / "case.pt", weights_only=False)
    if task == "together":
        shares(folder, case, processes)
    elif task == "split":
        splits(folder, processes)
    else:
        task, who = task.split("-")
        hows = {
            "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
            "failed": run_out_of_memory,
        }
        path = folder / "profile.yaml.partial"
        if processes.rank == int(who):
            ends_after(1, hows[task], path)
        measured(case, checkpoint_of(path, processes=processes), SETTINGS, processes)


def made_first(processes):
    """Return what comes of a call that process 0 decides, and how often this process made it."""
    calls = []
    return [processes.run_on_first(lambda: calls.append(1) or processes.rank + 40), len(calls)]


def shares(folder, case, processes):
    """Measure anew, go on with what one process began, and measure while numbers are forgotten."""
    for name, resume in (("whole", False), ("resumed", True)):
        checkpoint = checkpoint_of(folder / f"{name}.partial", resume=resume, processes=processes)
        profile = measured(case, checkpoint, SETTINGS, processes)
        if processes.rank == 0:
            (folder / f"{name}.files").write_text(json.dumps([each.name for each in folder.glob(f"{name}.partial*")]))
            saved(profile, folder / f"{name}.yaml")
            checkpoint.remove()
    made = made_first(processes)
    refusal = None
    true_gathered = DataParallel._all_gather
    DataParallel._all_gather = lambda self, own: [*true_gathered(self, own)[:-1], {}]
    try:
        measured(case, checkpoint_of(None), SETTINGS, processes)
    except KeyError as error:
        refusal = f"prompt {error} is missing"
    DataParallel._all_gather = true_gathered
    (folder / f"{processes.rank}.json").write_text(json.dumps([made, refusal]))


def splits(folder, processes):
    """Measure a target that both share, by clocks of which only that of process 0 goes by seconds."""
    from treeopt.runtime.models.hf import load_adapter

    target, draft = (load_adapter(folder / "llama", tensor_parallel=split) for split in (True, False))
    text = torch.arange(20)[None] % 7
    logits = target.reference_logits(text).double(), draft.reference_logits(text).double()
    shape = list(target._model.model.layers[0].mlp.up_proj.weight.to_local().shape)
    case = target, draft, [[1, 2, 3], [4, 5], [6], [7, 8]]
    path = folder / "split.partial"
    begun = checkpoint_of(path, resume=True, processes=processes)
    entries = sum(map(len, begun._entries.values()))
    profile = measured(case, begun, SPLIT, processes, seconds=1.0 if processes.rank == 0 else 77.0)
    saved(profile, folder / f"split.{processes.rank}.yaml")
    files = sorted(each.name for each in folder.glob("split.partial*"))
    try:
        processes.gather({0: (float(processes.rank),)})
        refusal = ""
    except TreeoptError as error:
        refusal = str(error)
    found = [
        (logits[0] - logits[1]).abs().max().item(),
        logits[0].sum().item().hex(),
        shape,
        entries,
        files,
        made_first(processes),
        refusal,
    ]
    (folder / f"{processes.rank}.json").write_text(json.dumps(found))


def main(folder, task):
    processes = processes_for(os.environ, tensor_parallel=task == "split", device=local_device("cpu", os.environ))
    try:
        with processes.supervise(folder / "profile.yaml.partial"):
            work(folder, task, processes)
    except TreeoptError as error:
        print(f"Error of {processes.rank}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


# ---- what is expected of them ----------------------------------------------------------------------------------------


def copy(rank, folder, task, count, port):
    """Be one of several copies of this process, which need not import torch again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
    with (folder / f"said.{rank}").open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    number = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in number.items()}
    main(folder, task)


def forked(folder, task, case, count=2):
    """Run copies of this process to their end; return the last exit code and what stands on standard error."""
    torch.save(case, folder / "case.pt")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    copies = [fork.Process(target=copy, args=(rank, folder, task, count, port)) for rank in range(count)]
    for each in copies:
        each.start()
    for each in copies:
        each.join(LIMIT_S)
        each.kill()
    said = "".join((folder / f"said.{rank}").read_text() for rank in range(count))
    return max((each.exitcode for each in copies), key=abs), said


def under_torchrun(folder, task, case, count=2):
    """Run processes to their end; return the exit code and what stands on standard error."""
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


def forks(test):
    """Mark tests that fork this process, threads of the test runner and all."""
    return pytest.mark.process(pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")(test))


@pytest.fixture(scope="module")
def case(target, draft, prompts):
    return target, draft, prompts


@pytest.fixture(scope="module")
def whole(case, tmp_path_factory):
    """Return the profile that one process measures, as it is written."""
    return saved(measured(case, checkpoint_of(None), SETTINGS), tmp_path_factory.mktemp("one") / "profile.yaml")


@contextmanager
def interrupted_after(prompts, monkeypatch):
    true_texts, counted = per_prompt.continue_prompt, []

    def until_interrupted(*arguments):
        if len(counted) == prompts:
            raise KeyboardInterrupt
        counted.append(1)
        return true_texts(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(per_prompt, "continue_prompt", until_interrupted)
        yield


@pytest.fixture(scope="module")
def together(case, tmp_path_factory):
    """Return the folder in which two processes measured what one had begun, and what one had not."""
    folder = tmp_path_factory.mktemp("together")
    with interrupted_after(3, pytest.MonkeyPatch()), pytest.raises(KeyboardInterrupt):
        measured(case, checkpoint_of(folder / "resumed.partial"), SETTINGS)
    (folder / "whole.partial.7").write_text("left by an earlier run of eight")
    code, said = forked(folder, "together", case)
    assert code == FINISHED, said
    return folder


@forks
class TestSharingOut:
    def test_two_processes_measure_what_one_does(self, together, whole):
        assert (together / "whole.yaml").read_bytes() == whole
        assert len(Profile.load(together / "whole.yaml").acceptances) == 5

    def test_two_processes_go_on_where_one_stopped(self, together, whole):
        assert (together / "resumed.yaml").read_bytes() == whole

    def test_every_process_keeps_a_checkpoint_until_the_profile_is_there(self, together):
        for name in ("whole", "resumed"):
            kept = json.loads((together / f"{name}.files").read_text())
            assert sorted(kept) == [f"{name}.partial", f"{name}.partial.1"]
        assert list(together.glob("*.partial*")) == []

    def test_what_process_0_makes_alone_is_what_all_have(self, together):
        made = [json.loads((together / f"{rank}.json").read_text())[0] for rank in (0, 1)]
        assert made == [[40, 1], [40, 0]]

    def test_numbers_that_are_forgotten_are_missed(self, together):
        assert [json.loads((together / f"{rank}.json").read_text())[1] for rank in (0, 1)] == [
            "prompt 1 is missing"
        ] * 2


@forks
class TestEnding:
    @pytest.mark.parametrize(
        ("started", "how", "who", "reason"),
        [
            (forked, "killed", 1, "killed, or cut off"),
            (forked, "interrupted", 1, "interrupted"),
            (forked, "failed", 1, "MemoryError: no more"),
            *slow([(under_torchrun, "killed", 0, "killed, or cut off")]),
        ],
    )
    def test_all_end_with_one_and_name_it_and_one_process_goes_on(
        self, started, how, who, reason, case, whole, tmp_path
    ):
        code, said = started(tmp_path, f"{how}-{who}", case)
        path = tmp_path / "profile.yaml.partial"
        assert code != FINISHED
        lines = [line for line in said.splitlines() if line.startswith("Error of")]
        ended = f"process {who} of 2 ended ({reason})"
        kept = f"What was measured is in {path}*; the same command with --resume goes on from there."
        assert lines == [f"Error of {1 - who}: {ended}. {kept}"], said
        files = sorted(tmp_path.glob("*.partial*"))
        assert files == [path, Path(f"{path}.1")]
        assert all('"acceptance"' in file.read_text() for file in files)
        resumed = checkpoint_of(path, resume=True)
        assert {entry.key for entry in resumed.entries("acceptance")} >= {0, 1}
        assert saved(measured(case, resumed, SETTINGS), tmp_path / "profile.yaml") == whole


@pytest.fixture(scope="module")
def split(case, tmp_path_factory):
    """Return the folder in which two processes measured a target split over both, and what each of them found."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("split")
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.4))
    model.save_pretrained(folder / "llama")
    heading = {"conditions": "conditions, target split over 2 processes"}
    begun = ["verify 20x1 sampled", 1, [1.0]]
    (folder / "split.partial").write_text(f"{json.dumps(heading)}\n{json.dumps(begun)}\n")
    code, said = under_torchrun(folder, "split", case)
    assert code == FINISHED, said
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.process
@pytest.mark.slow
class TestSplitting:
    def test_a_split_target_has_the_logits_of_a_whole_one_on_all_alike(self, split):
        _, ((error, total, shape, *_), (_, other_total, *_)) = split
        assert error < 1e-4
        assert total == other_total
        assert shape == [12, 16]  # half of the 24 rows

    def test_all_measure_one_profile_by_the_clock_of_process_0(self, split):
        folder, _ = split
        ours, theirs = ((folder / f"split.{rank}.yaml").read_bytes() for rank in (0, 1))
        assert ours == theirs
        latency = Profile.load(folder / "split.0.yaml").latency()
        assert {seconds for timing in latency.verify.timings for seconds in timing.samples_s} == {1.0}

    def test_acceptance_is_that_of_the_whole_target(self, split):
        from treeopt.runtime.models.hf import load_adapter

        folder, _ = split
        model = load_adapter(folder / "llama")
        alone = measured((model, model, [[1, 2, 3], [4, 5], [6], [7, 8]]), checkpoint_of(None), SPLIT).acceptance()
        found = Profile.load(folder / "split.0.yaml").acceptance()
        torch.testing.assert_close(torch.tensor(found.table.p), torch.tensor(alone.table.p), atol=1e-3, rtol=0)

    def test_only_process_0_keeps_a_checkpoint_and_all_go_on_with_it(self, split):
        for *_, entries, files, _, _ in split[1]:
            assert (entries, files) == (1, ["split.partial"])

    def test_what_process_0_makes_is_made_by_all_and_taken_from_it(self, split):
        assert [found[-2] for found in split[1]] == [[40, 1], [40, 1]]

    def test_counts_that_differ_are_refused(self, split):
        refusals = [found[-1] for found in split[1]]
        assert [each.split("Got ")[1] for each in refusals] == [
            f"others from process {rank}: use devices of one kind." for rank in (1, 0)
        ]


class TestOneProcess:
    def test_it_is_alone_where_no_launcher_says_otherwise(self):
        for environ in ({}, {"WORLD_SIZE": "1"}):
            assert isinstance(processes_for(environ, tensor_parallel=False, device=CPU), OneProcess)
            assert local_device("cuda:1", environ) == torch.device("cuda:1")

    def test_alone_it_cannot_split_a_target(self):
        with pytest.raises(InvalidValueError, match="tensor_parallel: expected several processes"):
            processes_for({}, tensor_parallel=True, device=CPU)

    def test_others_that_cannot_be_found(self, monkeypatch):
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(TreeoptError, match=r"processes: expected 4, as WORLD_SIZE says.*with torchrun"):
            processes_for({"WORLD_SIZE": "4"}, tensor_parallel=False, device=CPU)

    def test_an_interruption_says_what_is_kept(self, tmp_path):
        path = tmp_path / "checkpoint"
        for kept in (None, path):
            with pytest.raises(KeyboardInterrupt), OneProcess().supervise(kept):
                raise KeyboardInterrupt
        path.touch()
        said = f"interrupted. What was measured is in {path}; the same command"
        with pytest.raises(TreeoptError, match=said), OneProcess().supervise(path):
            raise KeyboardInterrupt


SEVERAL = {"WORLD_SIZE": "4", "LOCAL_RANK": "2"}


class TestDevices:
    def test_each_of_several_takes_a_gpu_of_its_own(self):
        assert local_device("cuda", SEVERAL) == torch.device("cuda:2")
        assert local_device("cpu", SEVERAL) == CPU

    def test_several_do_not_share_a_gpu(self):
        with pytest.raises(InvalidValueError, match=r"device: expected cuda, since.*Got cuda:1"):
            local_device("cuda:1", SEVERAL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
