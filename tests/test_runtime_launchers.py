"""Under torchrun, as users start it: one agent or two, and what is left when a rank dies or somebody presses Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from plans import paper
from worlds import Launcher, World, eventually, free_port, journal, succeeded

from runtime.__main__ import main
from vppc.files import write_text
from vppc.ir.document import schedule_text


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Half a second for the timed runner."""
    return written(tmp_path_factory.mktemp("plans") / "plan.json", 0.005)


@pytest.fixture
def long(tmp_path: Path) -> list[str]:
    """What runs for longer than any test."""
    return [written(tmp_path / "plan.json", 1.0), "--runner", "timed", "--timeout", "16"]


def written(file: Path, seconds: float) -> str:
    write_text(str(file), schedule_text(paper("vpp-packed", (5, 3), 2, t=seconds, transfer=seconds)))
    return str(file)


def tokens(printed: str) -> list[list[str]]:
    """Requests and tokens of the printed table."""
    return [line.split()[:2] for line in printed.splitlines()[1:]]


def started(launcher: Launcher, folder: Path) -> None:
    """Wait until all ranks have started; the journal is made just before."""
    eventually(lambda: (folder / "rank-1-tp-0.jsonl").exists() or launcher.agent.poll())
    time.sleep(1.5)


class TestOneAgent:
    def test_a_run(self, plan: str, tmp_path: Path) -> None:
        with Launcher([plan, "--journal", str(tmp_path / "journal")], standalone=True, nproc_per_node=2) as launcher:
            status, out, err = launcher.ended()
        assert status == 0, err
        forked = succeeded(World(tmp_path, 2, main, lambda process: ([plan],)).ended())
        assert tokens(out) == tokens(forked.out[0])
        assert [name for name, _ in tokens(out)] == ["r0", "r1"]
        assert sorted(journal(tmp_path / "journal")) == ["rank-0-tp-0.jsonl", "rank-1-tp-0.jsonl"]

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_a_rank_dies(self, number: int, long: list[str], tmp_path: Path) -> None:
        """The launcher ends the others; they still find out who it was."""
        with Launcher([*long, "--journal", str(tmp_path)], standalone=True, nproc_per_node=2) as launcher:
            started(launcher, tmp_path)
            os.kill(launcher.rank(1), number)
            status, _, err = launcher.ended()
        assert status == 1
        assert re.search(r"^vppc-run: rank 1 at instruction \d+ of \d+, .*\(request r0\) is dead or stopped", err, re.M)

    def test_interrupt(self, long: list[str], tmp_path: Path) -> None:
        with Launcher([*long, "--journal", str(tmp_path)], standalone=True, nproc_per_node=2) as launcher:
            started(launcher, tmp_path)
            launcher.agent.send_signal(signal.SIGINT)
            status, _, err = launcher.ended()
        assert status != 0
        assert err.count("vppc-run: interrupted") == 2

    def test_the_launcher_dies(self, long: list[str], tmp_path: Path) -> None:
        """Nobody is there to end the ranks; they do it themselves."""
        with Launcher([*long, "--journal", str(tmp_path)], standalone=True, nproc_per_node=2) as launcher:
            started(launcher, tmp_path)
            launcher.agent.kill()
            eventually(lambda: launcher.left() == [] or None)
            _, _, err = launcher.ended()
        assert len(re.findall("^vppc-run: the launcher is dead or stopped: rank", err, re.M)) == 2


class TestTwoAgents:
    def test_they_meet(self, plan: str, tmp_path: Path) -> None:
        """Two nodes, as far as torchrun can tell, with a rank each."""
        where = {"rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{free_port()}", "rdzv_id": "two"}

        def node() -> Launcher:
            return Launcher([plan], nnodes=2, nproc_per_node=1, **where)

        with node() as one, node() as two:
            ended = [each.ended() for each in (one, two)]
        assert [status for status, _, _ in ended] == [0, 0], ended
        forked = succeeded(World(tmp_path, 2, main, lambda process: ([plan],)).ended())
        assert [tokens(out) for _, out, _ in ended if out] == [tokens(forked.out[0])]
