"""``vppc serve`` as a process: the ranks that it starts, SIGTERM, the death of a rank and its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner
from serve_worlds import Serving
from worlds import LIMIT, ROOT, Launcher, eventually, free_port

from vppc.cli import vppc
from vppc.costs.document import read_cost
from vppc.errors import InputError, VppcError
from vppc.ir.document import parse_schedule
from vppc.ir.instruction import FORWARD, SAMPLE
from vppc.profiles.journal import read_journal
from vppc.serving.coordinator import Served
from vppc.serving.writer import Writer

COST = str(ROOT / "examples" / "costs" / "deepseek-v3.1-910c-tp8.json")


class Command:
    """``vppc serve`` on two timed ranks that take a second for 1,000 tokens, with its ends in the test's hands."""

    def __init__(self, folder: Path, *options: str) -> None:
        layer = {"count": 4, "per_token": 0.0005}
        cost = folder / "cost.json"
        cost.write_text(json.dumps({"format": "vppc.cost", "version": 1, "layers": [layer]}))
        command = [sys.executable, "-m", "vppc", "serve", "--pp", "2", "--cost", str(cost), "--runner", "timed"]
        self.process = subprocess.Popen(
            [*command, "--chunk-size", "100", *options],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, **document: Any) -> None:
        print(json.dumps(document), file=self._end(self.process.stdin), flush=True)

    def hear(self) -> dict[str, Any]:
        line = self._end(self.process.stdout).readline()
        assert line, self.process.communicate()
        return dict(json.loads(line))

    def ranks(self) -> list[int]:
        folder = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in folder.read_text().split()]

    def ended(self) -> tuple[int, list[dict[str, Any]], str]:
        """Wait for the command, of which no process may be left: its status and what it wrote since."""
        ranks = self.ranks()
        out, err = self.process.communicate(timeout=LIMIT)
        eventually(lambda: not any(map(_is_alive, ranks)) or None)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err

    @staticmethod
    def _end(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_sigterm_drains(tmp_path: Path) -> None:
    """What has been accepted is finished, what comes or counts later is refused; costs are fitted to what ran."""
    refitted = tmp_path / "refitted.json"
    with Command(tmp_path, "--refitted", str(refitted)) as serving:
        serving.say(id="late", prompt_tokens=10, arrival=1000)
        serving.say(id="first", prompt_tokens=10)
        assert serving.hear()["id"] == "first"
        serving.say(id="long", prompt_tokens=2000)
        serving.say(cancel="long", arrival=1000)  # by then it is through
        serving.say(id="wrong", prompt_tokens=-1)
        assert "error" in serving.hear()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.hear() == {"id": "late", "refused": "the server is about to end"}
        serving.say(id="after", prompt_tokens=10)
        assert serving.hear() == {"id": "after", "refused": "the server is about to end"}
        status, out, err = serving.ended()
    assert status == 0
    assert [each["id"] for each in out] == ["long", "long"] and "token" in out[0]
    assert out[1]["error"] == "no request 'long' is open: it is through, or has not come"
    assert "vppc: 2 first tokens of 2 requests in " in err and "; 2 refused; 2 wrong" in err
    [layer] = read_cost(str(refitted)).layers
    assert layer.count == 4 and layer.per_token == pytest.approx(0.0005, rel=0.25)


def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    with Command(tmp_path) as serving:
        serving.say(id="long", prompt_tokens=1_000_000)
        serving.say(id="late", prompt_tokens=10, arrival=1000)
        serving.say(id="wrong", prompt_tokens=-1)
        assert "error" in serving.hear()  # so the requests before are accepted
        serving.process.send_signal(signal.SIGTERM)
        assert serving.hear() == {"id": "late", "refused": "the server is about to end"}
        serving.process.send_signal(signal.SIGTERM)
        status, out, err = serving.ended()
    assert (status, out, err) == (143, [], "")


def test_of_no_requests_there_is_a_journal_and_nothing_to_fit(tmp_path: Path) -> None:
    folder, refitted = tmp_path / "journal", tmp_path / "refitted.json"
    with Command(tmp_path, "--journal", str(folder), "--refitted", str(refitted)) as serving:
        status, out, err = serving.ended()
    assert (status, out) == (2, [])
    assert err == (
        "vppc: 0 first tokens of 0 requests in 0.000 s\n"
        "vppc: --refitted: no FORWARD has run to fit costs to\n  hint: send some requests\n"
    )
    assert not refitted.exists()
    journal = read_journal(str(folder))
    assert journal.schedule.requests == () and journal.schedule.certificate is not None
    assert [len(process.starts) for rank in journal.ranks for process in rank] == [0, 0]


def test_a_journal_is_read_as_that_of_a_run(tmp_path: Path) -> None:
    """Of two processes a rank, one request cancelled in its middle: what was sent, proven, and when each ran it."""
    folder = tmp_path / "journal"
    with Command(tmp_path, "--tp", "2", "--journal", str(folder)) as serving:
        before = time.monotonic()
        serving.say(id="first", prompt_tokens=250)
        serving.say(id="long", prompt_tokens=100000)
        heard = serving.hear()
        waited = time.monotonic() - before
        assert heard["id"] == "first"
        serving.say(cancel="long")
        assert serving.hear() == {"id": "long", "cancelled": True}
        assert serving.process.stdin is not None
        serving.process.stdin.close()
        serving.process.stdin = None
        status, _, err = serving.ended()
    assert status == 0, err
    journal = read_journal(str(folder))
    assert [request.id for request in journal.schedule.requests] == ["first", "long"]
    assert journal.schedule.extra["cancelled"] == [1] and journal.schedule.certificate is not None
    assert [len(rank) for rank in journal.ranks] == [2, 2]
    sample = next(index for index, row in enumerate(journal.schedule.programs[0].rows()) if row[0] == SAMPLE)
    told = heard["ttft"] + journal.schedule.requests[0].arrival  # when the token was made, by clocks that nearly agree
    assert any(each.starts[sample] - 1e-3 <= told <= each.ends[sample] + 1e-3 for each in journal.ranks[0])
    assert 0.25 < heard["ttft"] < waited  # 250 tokens take a rank a quarter of a second
    for program, rank in zip(journal.schedule.programs, journal.ranks, strict=True):
        for process in rank:
            forwards = [index for index, row in enumerate(program.rows()) if row[0] == FORWARD]
            ends = [process.ends[index] for index in forwards]
            assert ends == sorted(ends) and len(ends) == 2 * len(journal.schedule.chunks)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_dead_rank_ends_all(number: int, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Command(tmp_path, "--timeout", "8", "--journal", str(folder)) as serving:
        serving.say(id="first", prompt_tokens=10)
        assert serving.hear()["id"] == "first"
        serving.say(id="long", prompt_tokens=50000)
        serving.say(id="wrong", prompt_tokens=-1)
        assert "error" in serving.hear()  # so the request before is accepted
        os.kill(serving.ranks()[1], number)
        status, _, err = serving.ended()
    assert status == 1
    (message,) = [line for line in err.splitlines() if "vppc" in line]  # the other rank leaves it to the server
    assert re.fullmatch(r"vppc: rank 1 at instruction \d+.* is dead or stopped", message)
    assert "Traceback" not in err
    broken_off = parse_schedule((folder / "schedule.json").read_text())  # as far as it was sent, which proves nothing
    assert [request.id for request in broken_off.requests] == ["first", "long"] and broken_off.certificate is None


def test_what_no_rank_can_run_is_said_once(tmp_path: Path) -> None:
    with Command(tmp_path, "--runner", "reference", "--checkpoint", str(tmp_path / "none")) as serving:
        status, _, err = serving.ended()
    assert status == 2
    (message,) = [line for line in err.splitlines() if "vppc" in line]
    assert message.startswith("vppc: ") and str(tmp_path / "none") in message


def test_ranks_do_not_outlive_the_coordinator(tmp_path: Path) -> None:
    with Command(tmp_path) as serving:
        serving.say(id="first", prompt_tokens=10)
        serving.hear()
        ranks = serving.ranks()
        serving.process.kill()
        _, err = serving.process.communicate()
        eventually(lambda: not any(map(_is_alive, ranks)) or None)
    assert "is dead or stopped" in err


def test_attached_to_where_the_ranks_say_that_they_are(tmp_path: Path) -> None:
    """And not to where the launchers of several nodes meet."""
    port = free_port()
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"id": "a", "prompt_tokens": 10}\n')
    (tmp_path / "out").write_text("of the last time\n" * 9)
    usual = [str(requests), "--pp", "2", "--cost", COST, "-o", str(tmp_path / "out")]
    arguments = ["--stream", "--runner", "null"]
    options = {"nnodes": 1, "nproc_per_node": 2, "rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{port}"}
    with Launcher(arguments, **options) as launcher:
        assert launcher.agent.stderr is not None
        said = next(line for line in launcher.agent.stderr if "vppc-run: ready for vppc serve --attach " in line)
        wrong = CliRunner().invoke(vppc, ["serve", *usual, "--attach", f"127.0.0.1:{port}"])
        assert isinstance(wrong.exception, InputError)
        assert f"--attach: at 127.0.0.1:{port} torchrun's nodes meet" in str(wrong.exception)
        right = CliRunner().invoke(vppc, ["serve", *usual, "--attach", said.split()[-1]])
        assert right.exit_code == 0, right.exception
        assert launcher.ended()[0] == 0
    assert json.loads((tmp_path / "out").read_text())["token"] == 0


def test_ranks_of_another_number_of_processes_are_not_served_on(tmp_path: Path) -> None:
    """Two ranks of two processes, of which who serves has forgotten that they are two."""
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"id": "a", "prompt_tokens": 10}\n')
    usual = [str(requests), "--pp", "2", "--cost", COST, "-o", str(tmp_path / "out")]
    with Serving(tmp_path, 4, "--runner", "null", "--tp", "2", timeout=20) as serving:
        attach = ["--attach", f"127.0.0.1:{serving.store.port}", "--timeout", "20"]
        wrong = CliRunner().invoke(vppc, ["serve", *usual, *attach])
        ended = serving.ended()
    assert isinstance(wrong.exception, VppcError), wrong.exception
    assert (wrong.exception.exit_status, ended.statuses) == (2, [2] * 4)
    assert "--tp: the schedule is for 1 process a rank, not 2\n  hint: run it with --tp 1" in str(wrong.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attach", "nowhere"], "--attach: 'nowhere' is no address\n"),
        (["--attach", "127.0.0.1:1", "--timeout", "2"], "no launcher of ranks at 127.0.0.1:1: "),
        (["no/such/file"], "no/such/file: cannot be read: No such file or directory"),
        (["--decode-tokens", "8192"], "8192 tokens for decoding leave nothing of a chunk of 8192\n"),
        (["--max-buffers", "1"], "--max-buffers: 1 is too few\n"),
        (["--strategy", "cpp", "--placement", "v"], "--placement: strategy cpp is for the straight placement, not v\n"),
        (["/proc/self/mem"], "/proc/self/mem: cannot be read: Input/output error"),
        (["--journal", "/dev/null/no"], "/dev/null/no: cannot be written: Not a directory\n"),
        (["-o", "no/such/file"], f"no/such/file: cannot be written: {Path.cwd()}/no/such is not a folder"),
    ],
    ids=["address", "nobody there", "input", "limits", "buffers", "placement", "unreadable", "journal", "output"],
)
def test_bad_usage(options: list[str], message: str, tmp_path: Path) -> None:
    requests = [] if options[0].startswith(("no/", "/")) else [os.devnull]
    (tmp_path / "out").write_text("of the last time")
    usual = ["--pp", "2", "--cost", COST, "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(vppc, ["serve", *usual, *requests, *options])
    assert result.output == ""
    assert (tmp_path / "out").read_text() == "of the last time"
    assert isinstance(result.exception, VppcError) and str(result.exception).startswith(message)


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_closed_streams(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, stream, None)
    requests = [] if stream == "stdin" else [os.devnull]
    with pytest.raises(InputError, match=f"{stream}: cannot be (read|written): it is closed"):
        vppc.main(["serve", "--pp", "2", "--cost", COST, *requests], standalone_mode=False)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    refused = CliRunner().invoke(vppc, ["serve", "--pp", "2", "--cost", COST, os.devnull])
    assert isinstance(refused.exception, InputError)
    assert str(refused.exception) == "serve: needs torch, which is not installed\n  hint: pip install '.[runtime]'"


@pytest.mark.parametrize(
    ("served", "drift", "summary"),
    [
        (Served(), None, "0 first tokens of 0 requests in 0.000 s"),
        (
            Served(3, 1, 0, 2, array("d", [0.5, 0.25]), 1.0, 2.5),
            -0.125,
            "2 first tokens of 3 requests in 1.500 s; TTFT P50 0.250 s, P99 0.500 s, at most 0.500 s; 1 cancelled; "
            "2 wrong; FORWARDs took 12.5% less than planned",
        ),
    ],
    ids=["nothing", "some"],
)
def test_what_an_operator_is_told_at_the_end(served: Served, drift: float | None, summary: str) -> None:
    assert served.summary(drift) == summary


def test_a_trace_is_refused_once(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 655, "hash_ids": [1, 2]}\n' * 3)
    (tmp_path / "out").write_text("of the last time")
    result = CliRunner().invoke(vppc, ["serve", "--pp", "2", "--cost", COST, "-o", str(tmp_path / "out"), str(trace)])
    assert result.output == ""
    assert (tmp_path / "out").read_text() == "of the last time"
    assert str(result.exception) == (
        f"{trace}: is a Mooncake trace, whose lines are no requests\n"
        "  hint: jq -c '{prompt_tokens: .input_length, arrival: (.timestamp / 1000)}' makes them such; "
        "vppc serve-sim takes a trace as it is"
    )


def test_an_output_that_nobody_reads_ends_the_server() -> None:
    reader, descriptor = os.pipe()
    write = Writer(descriptor, "stdout", 0.2)
    message = "stdout: cannot be written: nobody has read it for 0.2 s"
    for _ in range(64):  # as much as a pipe takes
        write({"text": "x" * 4096})
    with pytest.raises(InputError, match=message):
        write.close()
    with pytest.raises(InputError, match=message):
        write({})
    os.close(reader)  # which ends the thread


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with file.open("wb") as stream:
        write = Writer(stream.fileno(), str(file), 5)
        for index in range(100):
            write({"id": index})
        write.close()
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == list(range(100))
