"""Faults: whatever happens to one process, all end in time, and say which rank it was, where, and for whom."""

from __future__ import annotations

import dataclasses
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoints import CONFIGS
from faulty import AFTER, BEFORE, Fault, faulty
from plans import paper
from worlds import LIMIT, ROOT, Ended, World

from examples.tiny_checkpoint import write_checkpoint
from runtime.__main__ import main
from runtime.clock import Clock
from runtime.journal import Journal
from runtime.peers import Peer
from runtime.program import load, proven
from runtime.session import check_world
from vppc.errors import InputError
from vppc.files import write_text
from vppc.ir.document import schedule_text
from vppc.ir.instruction import Forward, Recv, Send, Wait
from vppc.ir.schedule import Schedule

TIMEOUT = 6.0
UNHURRIED = ("--timeout", "60")
"""Where somebody says what is wrong, and nobody is to be taken for dead on a busy machine before that is heard."""
SCHEDULE = paper("vpp-async", (4, 3), 2)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(SCHEDULE, tmp_path_factory.mktemp("plans") / "plan.json")


def write(schedule: Schedule, file: Path) -> Path:
    write_text(str(file), schedule_text(schedule))
    return file


def start(folder: Path, plan: Path, faults: Sequence[Fault], *more: str, runner: str = "", size: int = 2) -> World:
    arguments = [str(plan), "--runner", "null", "--timeout", str(TIMEOUT), *more]
    return World(folder, size, faulty, lambda process: (arguments, faults, runner))


def first(rank: int, kind: type, after: int = 0) -> int:
    """The index of the first instruction of a kind."""
    return next(index for index, each in enumerate(SCHEDULE.programs[rank]) if index >= after and type(each) is kind)


def failed(ended: Ended, statuses: Sequence[int], message: str) -> None:
    """Every process that could speak said the same, in time."""
    assert ended.statuses == list(statuses), ended.err
    for status, err in zip(ended.statuses, ended.err, strict=True):
        if status >= 0:
            assert re.search(f"^vppc-run: {message}", err, re.MULTILINE), err
            assert "Traceback" not in err
    assert ended.seconds < TIMEOUT + 4  # starting and a busy machine included


def place(rank: int, index: int) -> str:
    return rf"rank {rank} at instruction {index} of {len(SCHEDULE.programs[rank])}, \w+ .*\(request r0\)"


SENT = {rank: first(rank, Send) for rank in (0, 1)}
SENT_WAITED = {
    rank: next(i for i, each in enumerate(SCHEDULE.programs[rank]) if each == Wait(SENT[rank])) for rank in (0, 1)
}
RECEIVED_WAITED = next(i for i, each in enumerate(SCHEDULE.programs[1]) if each == Wait(first(1, Recv)))


class TestKilled:
    """Process 0 holds the store that all share, so its death is noticed in another way."""

    @pytest.mark.parametrize("process", [0, 1])
    def test_before_a_transfer(self, process: int, plan: Path, tmp_path: Path) -> None:
        fault = Fault(process, SENT[process], BEFORE, ("pause", "die"))
        ended = start(tmp_path, plan, [fault]).ended()
        statuses = [1, 1]
        statuses[process] = -signal.SIGKILL
        failed(ended, statuses, f"{place(process, SENT[process])} is dead or stopped")

    @pytest.mark.parametrize("process", [0, 1])
    def test_in_a_transfer(self, process: int, plan: Path, tmp_path: Path) -> None:
        index = SENT[process]
        faults = [Fault(process, index, BEFORE, ("pause",)), Fault(process, index, AFTER, ("die",))]
        ended = start(tmp_path, plan, faults, runner="wide").ended()
        statuses = [1, 1]
        statuses[process] = -signal.SIGKILL
        failed(ended, statuses, f"{place(process, index)} is dead or stopped")

    def test_while_it_waits_for_one(self, plan: Path, tmp_path: Path) -> None:
        faults = [Fault(1, RECEIVED_WAITED, BEFORE, ("die_soon",)), Fault(0, SENT[0], BEFORE, ("hang",))]
        ended = start(tmp_path, plan, faults).ended()
        failed(ended, [1, -signal.SIGKILL], f"{place(1, RECEIVED_WAITED)} is dead or stopped")

    @pytest.mark.parametrize("process", [0, 1])
    def test_after_a_transfer(self, process: int, plan: Path, tmp_path: Path) -> None:
        index = SENT_WAITED[process]
        ended = start(tmp_path, plan, [Fault(process, index, AFTER, ("pause", "die"))]).ended()
        statuses = [1, 1]
        statuses[process] = -signal.SIGKILL
        failed(ended, statuses, f"{place(process, index)} is dead or stopped")

    def test_while_it_loads_the_model(self, plan: Path, tmp_path: Path) -> None:
        ended = start(tmp_path, plan, [], runner="dies loading").ended()
        failed(ended, [1, -signal.SIGKILL], "rank 1 at its start, making its runner is dead or stopped")

    def test_of_four_the_right_one_is_named(self, tmp_path: Path) -> None:
        schedule = paper("vpp-packed", (4, 3), 4)
        index = next(i for i, each in enumerate(schedule.programs[2]) if type(each) is Forward and each.chunk == 4)
        plan = write(schedule, tmp_path / "plan.json")
        ended = start(tmp_path, plan, [Fault(2, index, BEFORE, ("pause", "die"))], size=4).ended()
        failed(
            ended,
            [1, 1, -signal.SIGKILL, 1],
            rf"rank 2 at instruction {index} of \d+, FORWARD c4 .*\(request r1\) is dead or stopped",
        )


class TestStopped:
    @pytest.mark.parametrize("process", [0, 1])
    def test_it_is_named_and_ended(self, process: int, plan: Path, tmp_path: Path) -> None:
        index = first(process, Forward, 3)
        ended = start(tmp_path, plan, [Fault(process, index, BEFORE, ("pause", "stop"))]).ended()
        statuses = [1, 1]
        statuses[process] = -signal.SIGKILL
        failed(ended, statuses, f"{place(process, index)} is dead or stopped")

    def test_who_goes_on_after_a_while_does_not_blame_the_others(self, plan: Path, tmp_path: Path) -> None:
        """All are stopped, as when a machine is suspended: none has heard the others, and none is to blame."""
        index = first(0, Forward, 3)
        faults = [Fault(process, index, BEFORE, ("pause", "say", "pause")) for process in (0, 1)]
        world = start(tmp_path, plan, faults)
        for process in (0, 1):
            world.wait_for("here", process)
        for process in (0, 1):
            world.kill(process, signal.SIGSTOP)
        world.processes[0].join(TIMEOUT / 2)
        for process in (0, 1):
            world.kill(process, signal.SIGCONT)
        ended = world.ended()
        assert ended.statuses == [0, 0], ended.err


class TestStalled:
    def test_who_is_stuck_is_named_and_not_who_waits(self, plan: Path, tmp_path: Path) -> None:
        ended = start(tmp_path, plan, [], runner="hang").ended()
        failed(ended, [1, 1], f"{place(1, first(1, Forward))} has not gone on for 4.5 s")


class TestExceptions:
    def test_in_a_forward(self, plan: Path, tmp_path: Path) -> None:
        ended = start(tmp_path, plan, [], *UNHURRIED, runner="divide").ended()
        assert ended.statuses == [1, 1]
        message = f"vppc-run: {place(1, first(1, Forward))}: ZeroDivisionError: no such quotient"
        for err in ended.err:
            assert re.search(message, err)
        assert "Traceback" in ended.err[1]  # for whoever has to mend the runner
        assert "faulty.py" in ended.err[1]
        assert "Traceback" not in ended.err[0]
        assert ended.seconds < TIMEOUT

    @pytest.mark.parametrize(("runner", "tp"), [("complain", 1), ("complain", 2), ("fails loading", 1)])
    def test_of_torch(self, runner: str, tp: int, plan: Path, tmp_path: Path) -> None:
        """A RuntimeError could also be a transfer's, whose other end has died; nobody has."""
        ended = start(tmp_path, plan, [], *UNHURRIED, "--tp", str(tp), runner=runner, size=2 * tp).ended()
        assert ended.statuses == [1] * 2 * tp
        where = r"instruction \d+ of \d+, FORWARD .*" if runner == "complain" else "its start, making its runner"
        for err in ended.err:
            assert re.search(
                rf"^vppc-run: rank 1( \(tp rank [01]\))? at {where}: RuntimeError: mat1", err, re.MULTILINE
            )
        assert ["Traceback" in err for err in ended.err].count(True) == 1
        assert "faulty.py" in "".join(ended.err[tp:])
        assert ended.seconds < TIMEOUT

    def test_not_finite(self, plan: Path, tmp_path: Path) -> None:
        ended = start(tmp_path, plan, [], *UNHURRIED, "--runner=reference", "--check-finite", runner="nan").ended()
        failed(ended, [1, 1], r"rank 1 at instruction \d+ of \d+, FORWARD c2 s1 .* \(request r0\): wrote 1 values of 1")

    def test_not_finite_is_not_looked_for_unless_asked(self, plan: Path, tmp_path: Path) -> None:
        assert start(tmp_path, plan, [], *UNHURRIED, runner="nan").ended().statuses == [0, 0]

    @pytest.mark.parametrize("kind", ["exhaust", "exhaust_torch"])
    def test_out_of_memory(self, kind: str, plan: Path, tmp_path: Path) -> None:
        ended = start(tmp_path, plan, [], *UNHURRIED, runner=kind).ended()
        failed(ended, [1, 1], f"{place(1, first(1, Forward))}: out of memory")
        assert "  hint: smaller chunks, or fewer in flight\n" in ended.err[0]

    def test_nobody_reads_the_message(self, plan: Path, tmp_path: Path) -> None:
        """A launcher that was killed leaves pipes without a reader."""
        faults = [Fault(process, 1, BEFORE, ("unheard",)) for process in (0, 1)]
        assert start(tmp_path, plan, faults, *UNHURRIED, runner="divide").ended().statuses == [1, 1]

    @pytest.mark.parametrize(("runner", "status"), [("divide", 1), ("", 2)])
    def test_no_space_for_the_journal(self, runner: str, status: int, plan: Path, tmp_path: Path) -> None:
        """Whether it is written because the run has failed or because it is over."""
        folder = tmp_path / "journal"
        folder.mkdir()
        (folder / "rank-0-tp-0.jsonl").symlink_to("/dev/full")
        ended = start(tmp_path, plan, [], *UNHURRIED, "--journal", str(folder), runner=runner).ended()
        assert ended.statuses == [status, status]
        assert f"{folder}: cannot be written: No space left on device" in ended.err[0]
        assert len((folder / "rank-1-tp-0.jsonl").read_text().splitlines()) > 1


class TestInputs:
    def test_another_file_on_one_rank(self, plan: Path, tmp_path: Path) -> None:
        other = write(paper("vpp-async", (4, 2), 2), tmp_path / "other.json")
        arguments = ["--runner", "null", *UNHURRIED]
        world = World(tmp_path, 2, main, lambda process: ([str(other if process else plan), *arguments],))
        failed(world.ended(), [1, 1], "another schedule file on process 1 than on process 0: 0 has [0-9a-f]{12}, 1 has")

    def test_no_file_on_one_rank(self, plan: Path, tmp_path: Path) -> None:
        arguments = ["--runner", "null", *UNHURRIED]
        world = World(tmp_path, 2, main, lambda process: ([f"{plan}{'x' * process}", *arguments],))
        ended = world.ended()
        assert ended.statuses == [2, 2], ended.err
        assert "cannot be read" in ended.err[0]
        assert "cannot be read" in ended.err[1]

    def test_a_truncated_checkpoint(self, plan: Path, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        write_checkpoint(folder, {**CONFIGS["llama"], "num_hidden_layers": 4})
        file = next(folder.glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:-100])
        arguments = [str(plan), "--model", str(folder), *UNHURRIED]
        ended = World(tmp_path, 2, main, lambda process: (arguments,)).ended()
        assert ended.statuses == [2, 2], ended.err
        assert all(str(file) in err and "Traceback" not in err for err in ended.err)

    @pytest.mark.parametrize("option", ["--journal", "--profile"])
    def test_a_folder_that_cannot_be_made(self, option: str, plan: Path, tmp_path: Path) -> None:
        (tmp_path / "taken").touch()
        ended = start(tmp_path, plan, [], option, str(tmp_path / "taken" / "folder")).ended()
        failed(ended, [2, 2], f"{tmp_path}/taken/folder: cannot be ")

    def test_a_port_in_use(self, plan: Path, tmp_path: Path) -> None:
        """By a stranger who listens and never answers."""
        arguments = [str(plan), "--runner", "null", "--timeout", "2"]
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            ended = World(tmp_path, 2, main, lambda process: (arguments,), port=port).ended()
        assert ended.statuses == [1, 1]
        assert re.search(f"process 0 of 2 cannot meet the others at 127.0.0.1:{port}: .*EADDRINUSE", ended.err[0])
        assert re.search(f"process 1 of 2 cannot .* at 127.0.0.1:{port}", ended.err[1])

    def test_one_that_never_comes(self, plan: Path, tmp_path: Path) -> None:
        arguments = [str(plan), "--runner", "null", "--timeout", "2"]
        ended = World(tmp_path, 3, main, lambda process: (arguments,), processes=[0, 2]).ended()
        assert ended.statuses == [1, 1]
        assert "process 1 has not come within 2 s" in ended.err[0]
        assert re.search("process 1 has not come within 2 s|process 0, .* went before all had come", ended.err[1])

    def test_an_unproven_schedule(self, tmp_path: Path) -> None:
        file = write(dataclasses.replace(SCHEDULE, certificate=None), tmp_path / "bare.json")
        with pytest.raises(InputError) as refused:
            load(str(file))
        assert str(refused.value) == (
            f"{file}: has no certificate, and unproven programs are not run\n"
            f"  hint: `vppc verify {file} -o PROVEN` writes it with one"
        )

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ('"pp": 2', '"pp": "2"', 'pp: "2" is not an integer'),
            ('"id": "r0"', '"id": 0', "requests[0].id: 0 is not a string"),
            ('"start": 0,', '"start": 0, "decode": 1,', "chunks[0].parts[0].decode: 1 is not a truth value"),
            ('"buffers": ', '"memory": {"limit": "40"}, "buffers": ', 'programs[0].memory.limit: "40" is not a number'),
            ("vppc.schedule", "vppc.segment", "is a segment, not a schedule"),
        ],
        ids=["a number", "a text", "a truth", "an amount", "a segment"],
    )
    def test_what_is_no_schedule(
        self, old: str, new: str, said: str, plan: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the words of the compiler's reader; without what that needs, in those of Python."""
        text = plan.read_text()
        assert old in text
        data = text.replace(old, new, 1).encode()
        with pytest.raises(InputError) as refused:
            proven(data, "plan.json")
        assert said in str(refused.value)
        monkeypatch.setitem(sys.modules, "vppc.ir.document", None)
        with pytest.raises(
            InputError, match=r"plan\.json: is no schedule that can be run: .*Error\(.*\n  hint: `vppc ver"
        ):
            proven(data, "plan.json")

    def test_another_number_of_processes(self) -> None:
        check_world(SCHEDULE, 4, 2)
        with pytest.raises(InputError) as refused:
            check_world(SCHEDULE, 3, 2)
        assert str(refused.value) == (
            "torchrun: 3 processes for 2 ranks of 2\n  hint: start 4 in all, with --nproc-per-node and --nnodes"
        )
        shared = dataclasses.replace(SCHEDULE, extra={**SCHEDULE.extra, "tp": 4})
        with pytest.raises(InputError) as refused:
            check_world(shared, 4, 2)
        assert str(refused.value) == ("--tp: the schedule is for 4 processes a rank, not 2\n  hint: run it with --tp 4")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "the following arguments are required: SCHEDULE"),
            (["--stream", "plan.json"], "--stream takes no schedule"),
            (["--stream", "--journal", "out"], "--stream takes no journal"),
        ],
        ids=["nothing", "a schedule", "a journal"],
    )
    def test_bad_usage(self, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert capsys.readouterr().err.endswith(f"error: {said}\n")

    def test_a_journal_that_cannot_be_opened(self, tmp_path: Path) -> None:
        (tmp_path / "rank-0-tp-0.jsonl").mkdir()
        with pytest.raises(InputError, match=f"^{tmp_path}: cannot be written: Is a directory"):
            Journal(tmp_path, SCHEDULE.programs[0], 0, 0, "", Clock(0.0, 0.0))

    def test_without_torch(self) -> None:
        run = "import sys; sys.modules['torch'] = None; from runtime.__main__ import main; main(['plan.json'])"
        ended = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == "vppc-run: needs torch, which is not installed\n  hint: pip install '.[runtime]'\n"

    def test_without_a_launcher(self, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main([str(plan)])
        assert caught.value.code == 2
        assert "is to be started by torchrun" in capsys.readouterr().err


class TestSignals:
    def test_interrupt(self, plan: Path, tmp_path: Path) -> None:
        """Ctrl-C reaches all processes of a terminal."""
        world = start(tmp_path, plan, [Fault(1, SENT[1], BEFORE, ("say", "hang"))])
        world.wait_for("here", 1)
        world.mark()
        for process in (0, 1):
            world.kill(process, signal.SIGINT)
        ended = world.ended()
        failed(ended, [130, 130], "interrupted")
        assert ended.seconds < TIMEOUT / 2

    @pytest.mark.parametrize("process", [0, 1])
    def test_interrupting_one_ends_all(self, process: int, plan: Path, tmp_path: Path) -> None:
        world = start(tmp_path, plan, [Fault(1, SENT[1], BEFORE, ("say", "hang"))])
        world.wait_for("here", 1)
        world.mark()
        world.kill(process, signal.SIGINT)
        failed(world.ended(), [130, 130], "interrupted")

    def test_terminate(self, plan: Path, tmp_path: Path) -> None:
        world = start(tmp_path, plan, [Fault(1, SENT[1], BEFORE, ("say", "hang"))])
        world.wait_for("here", 1)
        world.mark()
        world.kill(0, signal.SIGTERM)
        failed(world.ended(), [143, 143], "terminated")

    def test_where_every_rank_stands(self, plan: Path, tmp_path: Path) -> None:
        world = start(tmp_path, plan, [Fault(1, SENT[1], BEFORE, ("pause", "say", "hang"))])
        world.wait_for("here", 1)
        world.kill(0, signal.SIGUSR1)
        written = world.wait_for(f"{place(1, SENT[1])}, for ")
        assert re.search(
            r"^vppc-run: rank 0 at instruction \d+ of \d+, WAIT \d+ ; \w+ .*, for \d", written, re.MULTILINE
        )
        world.kill(0, signal.SIGINT)
        assert world.ended().statuses == [130, 130]


class TestPeers:
    def test_nobody_else_is_ended(self) -> None:
        """Numbers of processes are given out again, and other machines have the same ones."""
        me = Peer.here()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            stat = Path(f"/proc/{child.pid}/stat").read_text()
            peer = Peer(me.machine, child.pid, stat.rpartition(")")[2].split()[19])
            for stranger in (
                dataclasses.replace(peer, started="1"),
                dataclasses.replace(peer, machine="elsewhere"),
                dataclasses.replace(peer, machine=""),
                me,
            ):
                stranger.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
            peer.kill()
            assert child.wait(LIMIT) == -signal.SIGKILL
            peer.kill()  # it is gone
        finally:
            child.kill()
            child.communicate()
