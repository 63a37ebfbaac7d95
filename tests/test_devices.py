"""Devices: which one is taken, how far the host runs ahead, what the settings mean, and the NPU path on a stand-in."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs torch")

import worlds  # noqa: E402
from plans import compiled  # noqa: E402
from serve_worlds import Serving  # noqa: E402
from test_serve_stream import opened  # noqa: E402

from runtime.arguments import parse  # noqa: E402
from runtime.clock import Clock  # noqa: E402
from runtime.devices import find_device  # noqa: E402
from runtime.devices import progress as progress_module  # noqa: E402
from runtime.devices.accelerator import Accelerator  # noqa: E402
from runtime.devices.communicators import check_room  # noqa: E402
from runtime.devices.npu import communicator_buffers  # noqa: E402
from runtime.devices.progress import StreamProgress  # noqa: E402
from runtime.devices.settings import Setting, check_settings  # noqa: E402
from runtime.session import Session  # noqa: E402
from vppc.costs.model import CostModel, LayerCost, Linear  # noqa: E402
from vppc.errors import InputError  # noqa: E402
from vppc.ir.document import schedule_text, segment_text  # noqa: E402
from vppc.ir.instruction import SEND  # noqa: E402
from vppc.ir.schedule import Request  # noqa: E402

STANDINS = Path(__file__).parent / "standins"
NO_OFFSET = Clock(0.0, 0.0)


@pytest.fixture
def standins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-ins can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(STANDINS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(STANDINS) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def npu(standins: None) -> Any:
    """The stand-in for torch_npu.npu, with a machine of its own whose clock stands at 100 s until it is moved."""
    import torch_npu

    time = [100.0]
    torch_npu.npu.reset(torch_npu.npu.Machine(lambda: time[0]))
    torch_npu.npu.time = time
    torch_npu.npu.set_device(0)
    return torch_npu.npu


class TestChoice:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
    def test_a_machine_without_an_accelerator_computes_on_the_cpu(self) -> None:
        device = find_device("auto")
        assert (device.name, device.backend, device.torch_device) == ("cpu", "gloo", torch.device("cpu"))
        assert device.progress(NO_OFFSET) is None

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("cuda", "--device: no CUDA device can be used on this machine\n  hint: --device cpu"),
            ("npu", "--device: an NPU needs torch_npu, which is not installed\n  hint: pip install '.[npu]'"),
        ],
    )
    def test_a_device_that_is_not_there_is_refused(self, name: str, said: str) -> None:
        with pytest.raises(InputError) as refused:
            find_device(name)
        assert str(refused.value) == said

    @pytest.mark.parametrize("name", ["npu", "auto"])
    def test_an_npu_is_taken_by_local_rank(self, name: str, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_RANK", "1")
        device = find_device(name)
        assert isinstance(device, Accelerator)
        assert (device.name, device.backend, device.torch_device) == ("npu", "hccl", torch.device("npu", 1))
        assert npu.machine.calls == [("set_device", "0"), ("set_device", "1")]
        assert device.describe() == "Ascend910_9382, 64.0 GiB"
        assert device.free_memory() == 60 * 2**30

    def test_more_processes_than_npus_are_refused(self, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_RANK", "2")
        with pytest.raises(InputError, match="process 2 of this machine has no device: 2 can be seen") as refused:
            find_device("npu")
        assert "ASCEND_RT_VISIBLE_DEVICES" in refused.value.remedy

    def test_an_npu_without_a_driver_is_refused_when_asked_for(self, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STANDIN_NPUS", "0")
        with pytest.raises(InputError, match="no NPU can be used"):
            find_device("npu")
        assert find_device("auto").name == "cpu"

    def test_a_torch_npu_that_cannot_be_imported_is_not_passed_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(InputError, match="cannot be imported: libhccl") as refused:
            find_device("auto")
        assert "set_env.sh" in refused.value.remedy


class TestProgress:
    def test_the_host_stays_within_its_limit(self, npu: Any) -> None:
        npu.machine.lazy = True
        progress = StreamProgress(npu, 0, 3, NO_OFFSET, None)
        for index in range(10):
            progress.begin()
            npu.machine.compute.launch(f"kernel {index}")
            progress.end()
            assert npu.machine.recorded - npu.machine.finished == min(index + 1, 3)
        assert npu.machine.most_unfinished == 4  # the one just queued, and the three it may follow
        progress.drain()
        assert npu.machine.finished == 10

    def test_what_is_finished_is_told_when_the_host_looks(self, npu: Any) -> None:
        seen: list[tuple[float, float]] = []
        progress = StreamProgress(npu, 0, 3, NO_OFFSET, lambda start, end: seen.append((start, end)))
        npu.machine.lazy = True
        for _ in range(3):
            progress.begin()
            progress.end()
        assert (progress.settled(), seen) == (False, [])
        while not progress.settled():
            pass
        assert (len(seen), progress.unfinished()) == (3, None)

    def test_it_knows_where_the_device_is(self, npu: Any) -> None:
        npu.machine.lazy = True
        progress = StreamProgress(npu, 0, 3, NO_OFFSET, None)
        assert progress.unfinished() is None
        for _ in range(3):
            progress.begin()
            progress.end()
        # with each look the pretended device finishes one more
        assert [progress.unfinished() for _ in range(4)] == [0, 1, 2, None]

    def test_events_are_used_again(self, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[None] = []
        event = npu.Event
        monkeypatch.setattr(npu, "Event", lambda **options: (made.append(None), event(**options))[1])
        progress = StreamProgress(npu, 0, 4, NO_OFFSET, None)
        for _ in range(100):
            progress.begin()
            progress.end()
        assert len(made) <= 5

    def test_instructions_are_reported_with_the_times_of_the_device(
        self, npu: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        npu.machine.timed = True
        monkeypatch.setattr(progress_module.time, "sleep", lambda _: npu.time.__setitem__(0, npu.time[0] + 0.125))
        seen: list[tuple[float, float]] = []
        offset = Clock(-npu.time[0], 0.0)
        clock = type("Fixed", (), {"now": lambda self: npu.time[0] + offset.offset})()
        progress = StreamProgress(npu, 0, 2, clock, lambda start, end: seen.append((round(start, 6), round(end, 6))))
        npu.time[0] += 1.0
        for seconds in (2.0, 3.0):  # both are queued at 1 s
            progress.begin()
            npu.machine.compute.launch("kernel", seconds=seconds)
            progress.end()
        assert (seen, npu.time[0]) == ([], 101.0)  # they are within the limit
        progress.begin()
        progress.end()  # waits until the first is over, at 3 s
        assert (seen, npu.time[0]) == ([(1.0, 3.0)], 103.0)
        progress.drain()  # at 6 s
        npu.time[0] = 110.0  # the stream has nothing to do until then
        progress.begin()
        npu.machine.compute.launch("kernel", seconds=0.5)
        progress.end()
        progress.drain()
        assert seen == [(1.0, 3.0), (3.0, 6.0), (6.0, 6.0), (10.0, 10.5)]

    def test_a_device_whose_clock_drifts_is_set_right_by_looking(
        self, npu: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A device counts in 32-bit milliseconds, here a thousandth too fast: 0.1 s in the 100 s that this takes."""
        exact, look = npu.Event.elapsed_time, 1e-3
        drifting = lambda self, end: torch.tensor(1.001 * exact(self, end), dtype=torch.float32).item()  # noqa: E731
        monkeypatch.setattr(npu.Event, "elapsed_time", drifting)
        monkeypatch.setattr(progress_module.time, "sleep", lambda _: npu.time.__setitem__(0, npu.time[0] + look))
        npu.machine.timed = True
        seen: list[tuple[float, float]] = []
        clock = type("Fixed", (), {"now": lambda self: npu.time[0]})()
        progress = StreamProgress(npu, 0, 4, clock, lambda start, end: seen.append((start, end)))
        for _ in range(2000):
            progress.begin()
            npu.machine.compute.launch("kernel", seconds=0.05)
            progress.end()
        progress.drain()
        ends = [100.0 + 0.05 * (index + 1) for index in range(2000)]
        assert max(abs(end - known) for (_, end), known in zip(seen, ends, strict=True)) < 1.1 * look
        assert all(start <= end for start, end in seen)

    def test_a_thread_sees_where_a_device_hangs(self, npu: Any) -> None:
        """The host is stuck at its limit, and the watchdog's thread finds the instruction that does not end."""
        npu.machine.stuck_at = 6
        progress = StreamProgress(npu, 0, 2, NO_OFFSET, None)

        def host() -> None:
            npu.set_device(0)
            for _ in range(20):
                progress.begin()
                progress.end()

        thread = threading.Thread(target=host, daemon=True)
        thread.start()
        deadline = time.monotonic() + worlds.LIMIT
        while (progress.unfinished(), progress.next) != (5, 8) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert (progress.unfinished(), progress.next) == (5, 8)
        assert thread.is_alive()
        npu.machine.stuck_at = None  # it goes on, and so does the host
        thread.join(worlds.LIMIT)
        assert not thread.is_alive()

    def test_a_device_that_fails_is_raised_by_the_host_and_located_by_the_watchdog(
        self, npu: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        progress = StreamProgress(npu, 0, 2, NO_OFFSET, None)
        for _ in range(2):
            progress.begin()
            progress.end()
        query = npu.Event.query
        monkeypatch.setattr(npu.Event, "query", lambda self: query(self) if self.number < 2 else fail())

        def fail() -> None:
            raise RuntimeError("507035: vector core exception")

        assert progress.unfinished() == 1
        with pytest.raises(RuntimeError, match="507035"):
            progress.drain()

    def test_a_thread_of_its_own_sets_the_device_before_it_looks(self, npu: Any) -> None:
        progress = StreamProgress(npu, 0, 2, NO_OFFSET, None)
        progress.begin()
        progress.end()
        found: list[int | None] = []
        thread = threading.Thread(target=lambda: found.append(progress.unfinished()))
        thread.start()
        thread.join()
        assert found == [None]


class TestJudge:
    """The pretended device refuses what is wrong, or it proves nothing."""

    def test_a_stream_is_in_order_by_itself(self, npu: Any) -> None:
        npu.machine.compute.launch("write", writes=[1])
        npu.machine.compute.launch("read", reads=[1], writes=[2])
        npu.machine.compute.launch("write again", writes=[1, 2])

    @pytest.mark.parametrize(
        ("first", "second", "said"),
        [
            ("writes", "reads", "second on stream 1 reads what is written by first on stream 0"),
            ("reads", "writes", "second on stream 1 writes what is read by first on stream 0"),
            ("writes", "writes", "second on stream 1 writes what is written by first on stream 0"),
        ],
    )
    def test_streams_need_an_event_between_them(self, first: str, second: str, said: str, npu: Any) -> None:
        from machine import WrongOrder

        compute, other = npu.machine.compute, npu.Stream()
        compute.launch("first", **{first: [7]})
        with pytest.raises(WrongOrder, match=said):
            other.launch("second", **{second: [7]})
        other.wait_stream(compute)
        other.launch("second", **{second: [7]})

    def test_an_event_orders_only_what_was_before_it(self, npu: Any) -> None:
        from machine import WrongOrder

        compute, other = npu.machine.compute, npu.Stream()
        event = compute.record_event()
        compute.launch("late", writes=[7])
        other.wait_event(event)
        with pytest.raises(WrongOrder, match="reads what is written by late"):
            other.launch("read", reads=[7])

    def test_order_is_passed_on(self, npu: Any) -> None:
        compute, second, third = npu.machine.compute, npu.Stream(), npu.Stream()
        compute.launch("write", writes=[7])
        second.wait_stream(compute)
        third.wait_stream(second)
        third.launch("read", reads=[7])

    def test_reading_twice_at_once_is_no_race(self, npu: Any) -> None:
        for stream in (npu.machine.compute, npu.Stream()):
            stream.launch("read", reads=[7])

    @pytest.mark.parametrize("wrong", ["wait", "elapsed", "again"])
    def test_events_that_say_nothing_are_refused(self, wrong: str, npu: Any) -> None:
        from machine import WrongOrder

        npu.machine.lazy = True
        first, second = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
        with pytest.raises(WrongOrder):  # noqa: PT012 - one wrong use each
            if wrong == "wait":
                first.wait()
            first.record()
            if wrong == "again":
                first.record()
            second.record()
            first.elapsed_time(second)

    def test_a_thread_without_a_device_is_refused(self, npu: Any) -> None:
        npu.machine.threads.clear()
        with pytest.raises(RuntimeError, match="context of this thread is empty"):
            npu.Event().record()


ON_NPU = {"ASCEND_HOME_PATH": "/usr/local/Ascend/latest", "ASCEND_OPP_PATH": "/usr/local/Ascend/latest/opp"}


class TestSettings:
    @pytest.mark.parametrize(("device", "given"), [("cpu", {}), ("cuda", {}), ("npu", ON_NPU)])
    def test_the_defaults_are_right(self, device: str, given: dict[str, str]) -> None:
        assert [setting for setting in check_settings(device, given) if setting.problem] == []

    @pytest.mark.parametrize(
        ("device", "name", "value", "problem"),
        [
            ("npu", "HCCL_BLOCKING_WAIT", "1", "the host waits for every transfer"),
            ("npu", "TORCH_HCCL_BLOCKING_WAIT", "true", "the host waits for every transfer"),
            ("npu", "ASCEND_LAUNCH_BLOCKING", "1", "no transfer is hidden"),
            ("npu", "TASK_QUEUE_ENABLE", "0", "launching takes longer"),
            ("npu", "TASK_QUEUE_ENABLE", "3", "is not one of 0, 1, 2"),
            ("npu", "PER_STREAM_QUEUE", "1", "holds the host"),
            ("npu", "STREAMS_PER_DEVICE", "8", "two channels may get one stream"),
            ("npu", "HCCL_CONNECT_TIMEOUT", "60", "is not a whole number from 120 to 7200"),
            ("npu", "HCCL_EXEC_TIMEOUT", "60", "receives are posted ahead"),
            ("npu", "HCCL_EXEC_TIMEOUT", "soon", "is not a whole number"),
            ("npu", "HCCL_EVENT_TIMEOUT", "1836", "not longer than HCCL_EXEC_TIMEOUT"),
            ("npu", "P2P_HCCL_BUFFSIZE", "0", "HCCL_BUFFSIZE (200 MB) instead"),
            ("npu", "TORCH_HCCL_ASYNC_ERROR_HANDLING", "0", "a broken link is noticed only"),
            ("npu", "ASCEND_HOME_PATH", "", "source set_env.sh"),
            ("npu", "ASCEND_RT_VISIBLE_DEVICES", "", "shows none"),
            ("npu", "ASCEND_RT_VISIBLE_DEVICES", "0,1,1", "names a device twice"),
            ("npu", "ASCEND_RT_VISIBLE_DEVICES", "0-7", "is not a list of numbers, as 0,1,2,3"),
            ("npu", "ASCEND_GLOBAL_LOG_LEVEL", "1", "every call writes to the log"),
            ("cuda", "CUDA_LAUNCH_BLOCKING", "1", "no transfer is hidden"),
            ("cuda", "CUDA_DEVICE_MAX_CONNECTIONS", "1", "holds up the compute"),
        ],
    )
    def test_what_is_wrong_is_said(self, device: str, name: str, value: str, problem: str) -> None:
        given = (ON_NPU if device == "npu" else {}) | {name: value}
        (wrong,) = [setting for setting in check_settings(device, given) if setting.problem]
        assert (wrong.name, wrong.value) == (name, value)
        assert problem in wrong.problem

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("HCCL_EXEC_TIMEOUT", "0"),
            ("HCCL_EXEC_TIMEOUT", "3600"),
            ("HCCL_EVENT_TIMEOUT", "0"),
            ("HCCL_EVENT_TIMEOUT", "1868"),
            ("TASK_QUEUE_ENABLE", "2"),
            ("HCCL_OP_EXPANSION_MODE", "AIV"),
            ("ASCEND_RT_VISIBLE_DEVICES", "3, 1"),
            ("ASCEND_GLOBAL_LOG_LEVEL", "2"),
        ],
    )
    def test_what_is_right_is_left_alone(self, name: str, value: str) -> None:
        settings = check_settings("npu", ON_NPU | {name: value})
        assert [setting for setting in settings if setting.problem] == []
        assert (name, value) in [(setting.name, setting.value) for setting in settings]

    def test_what_is_not_set_shows_its_default(self) -> None:
        found = {setting.name: setting for setting in check_settings("npu", ON_NPU)}
        assert found["P2P_HCCL_BUFFSIZE"] == Setting(
            "P2P_HCCL_BUFFSIZE", None, "20", "MB of each of a channel's two buffers on the device", ""
        )


MIB = 2**20


class TestCommunicators:
    @pytest.mark.parametrize(
        ("given", "channels", "tp", "mib"),
        [
            ({}, 4, 1, 4 * 2 * 20),  # an inner rank of a V
            ({}, 4, 8, 4 * 2 * 20 + 2 * 200),
            ({"P2P_HCCL_BUFFSIZE": "64"}, 2, 1, 2 * 2 * 64),
            ({"P2P_HCCL_BUFFSIZE": "0", "HCCL_BUFFSIZE": "100"}, 2, 2, 2 * 2 * 100 + 2 * 100),
        ],
    )
    def test_they_are_counted(
        self, given: dict[str, str], channels: int, tp: int, mib: int, npu: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("P2P_HCCL_BUFFSIZE", "HCCL_BUFFSIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert find_device("npu").communicator_bytes(channels, tp) == mib * MIB

    def test_a_size_that_is_none_is_refused(self) -> None:
        with pytest.raises(InputError, match="P2P_HCCL_BUFFSIZE: 'big' is not a number of MB") as refused:
            communicator_buffers({"P2P_HCCL_BUFFSIZE": "big"})
        assert refused.value.remedy == "unset it for 20"

    def test_more_than_is_free_is_refused_with_the_sum(self, npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        device = find_device("npu")
        monkeypatch.setattr(npu, "mem_get_info", lambda: (560 * MIB, 2**36))
        check_room(device, 4, 8)
        monkeypatch.setattr(npu, "mem_get_info", lambda: (559 * MIB, 2**36))
        with pytest.raises(InputError) as refused:
            check_room(device, 4, 8)
        assert str(refused.value) == (
            "--device npu: the communicators of 4 channels and a tensor-parallel group of 8 take 560 MiB of device "
            "memory, and 559 MiB are free\n"
            "  hint: smaller P2P_HCCL_BUFFSIZE and HCCL_BUFFSIZE (MB), or end what else is on the device"
        )

    def test_a_cpu_has_none(self) -> None:
        device = find_device("cpu")
        assert device.communicator_bytes(4, 8) is None
        check_room(device, 4, 8)


COST = CostModel((LayerCost(8, per_token=1.0, per_pair=0.1),), transfer=Linear(0.5, 0.1))
PLANS = {
    "vpp-async": compiled("vpp-async", (40,), 2, COST, chunk_size=7),
    "vpp": compiled("vpp", (30, 9), 2, COST, chunk_size=8),
    "vpp-packed": compiled("vpp-packed", (25, 3, 18), 2, COST, chunk_size=8),
    "cpp": compiled("cpp", (33,), 2, COST, chunk_size=8),
    "loop": compiled("vpp-packed", (21,), 2, COST, chunk_size=4, placement="loop", vp=3),
}


def on_npu(folder: str, wrong: str, options: list[str]) -> None:
    """A process of a world of pretended NPUs: runs every plan; says what was sampled and what the device was asked."""
    sys.path.insert(0, str(STANDINS))
    os.environ["STANDIN_NPUS"] = os.environ["WORLD_SIZE"]
    import torch_npu
    from kernels import Kernels
    from machine import unordered

    from runtime.devices.links import GroupTransfer
    from runtime.devices.npu import open_npu

    machine = torch_npu.npu.machine
    machine.lazy = True
    device = replace(open_npu(int(os.environ["LOCAL_RANK"])), torch_device=torch.device("cpu"))
    wait = GroupTransfer.wait

    def unheard(self: GroupTransfer) -> None:
        with unordered(machine.compute):
            wait(self)

    def one_buffer(self: Session, schedule: Any, runner: Any) -> Any:
        buffers = list_of_buffers(self, schedule, runner)
        return [buffers[0]] * len(buffers)

    list_of_buffers = Session._buffers
    mutations = {"": (), "waits": ((GroupTransfer, "wait", unheard),), "buffers": ((Session, "_buffers", one_buffer),)}
    with mock.patch("runtime.session.find_device", return_value=device):
        for target, name, new in mutations[wrong]:
            mock.patch.object(target, name, new).start()
        with Kernels(machine):
            _say(folder, options)
    asked = {
        "first": machine.calls[0],
        "calls": Counter(call[0] for call in machine.calls),
        "recorded": machine.recorded,
        "most unfinished": machine.most_unfinished,
    }
    sys.stderr.write(json.dumps(asked))


def started_on_npu(folder: str) -> None:
    """A process of a run from start to end, on pretended NPUs in an environment with a mistake."""
    sys.path.insert(0, str(STANDINS))
    os.environ.update(ON_NPU, HCCL_BLOCKING_WAIT="1")
    import torch_npu
    from kernels import Kernels

    from runtime.devices.npu import open_npu
    from runtime.run import run

    device = replace(open_npu(int(os.environ["LOCAL_RANK"])), torch_device=torch.device("cpu"))
    with mock.patch("runtime.session.find_device", return_value=device), Kernels(torch_npu.npu.machine):
        run(parse([str(Path(folder) / "vpp-async.json"), "--device", "npu"]))


def streamed_on_npu(options: list[str]) -> None:
    """A process that runs a stream on a pretended NPU."""
    sys.path.insert(0, str(STANDINS))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE=str(True))
    import torch_npu
    from kernels import Kernels

    from runtime.devices.npu import open_npu

    torch_npu.npu.machine.lazy = True
    device = replace(open_npu(int(os.environ["LOCAL_RANK"])), torch_device=torch.device("cpu"))
    parsed = parse(["--stream", *options])
    with (
        mock.patch("runtime.session.find_device", return_value=device),
        Kernels(torch_npu.npu.machine),
        Session(parsed) as session,
    ):
        session.stream(parsed)


def on_cpu(folder: str, options: list[str]) -> None:
    """A process of a world of CPUs that runs the same plans."""
    _say(folder, options)


def _say(folder: str, options: list[str]) -> None:
    plans = sorted(Path(folder).glob("*.json"))
    with Session(parse([str(plans[0]), *options])) as session:
        for plan in plans:
            outcome = session.run(parse([str(plan), *options]))
            tokens = sorted((token.request, token.token) for token in outcome.tokens)
            sys.stdout.write(json.dumps([plan.stem, tokens]) + "\n")


def write_plans(folder: Path, *names: str) -> str:
    for name in names:
        (folder / f"{name}.json").write_text("".join(schedule_text(PLANS[name])))
    return str(folder)


class TestStandIn:
    """The whole path of an NPU, with CPU tensors: gloo moves the bytes, the pretended device judges the order."""

    def test_npus_sample_what_cpus_sample_and_everything_is_in_order(self, tmp_path: Path) -> None:
        plans = write_plans(tmp_path, *PLANS)
        journal = tmp_path / "journal"
        options = ["--device", "npu", "--journal", str(journal)]
        npu = worlds.succeeded(worlds.run(tmp_path, 2, on_npu, lambda process: (plans, "", options)))
        (tmp_path / "cpu").mkdir()
        cpu = worlds.succeeded(worlds.run(tmp_path / "cpu", 2, on_cpu, lambda process: (plans, ["--device", "cpu"])))
        assert npu.out == cpu.out
        said = dict(map(json.loads, npu.out[0].splitlines()))
        assert {name: [request for request, _ in tokens] for name, tokens in said.items()} == {
            name: list(range(len(plan.requests))) for name, plan in PLANS.items()
        }
        for rank, written in enumerate(npu.err):
            asked = json.loads(written)
            assert asked["first"] == ["set_device", str(rank)]
            opened = sum(channel.src == rank for plan in PLANS.values() for channel in plan.channels)
            sent = sum(row[0] == SEND for plan in PLANS.values() for row in plan.programs[rank].rows())
            assert asked["calls"]["HcclSend"] == opened + sent
            # an instruction records four events at most, and 17 are queued at once
            assert asked["most unfinished"] <= 17 * 4 < asked["recorded"]
        self.check_journal(journal, PLANS[max(PLANS, key="{}.json".format)])  # the last that was run

    def check_journal(self, journal: Path, plan: Any) -> None:
        """It has every instruction, in the order in which a stream does one after the other."""
        for rank, lines in enumerate(worlds.journal(journal).values()):
            assert sorted(line["i"] for line in lines) == list(range(len(plan.programs[rank])))
            ran = [line for line in lines if "posted" not in line]
            assert all(line["start"] <= line["end"] for line in ran)
            assert all(before["end"] <= after["start"] for before, after in itertools.pairwise(ran))

    def test_what_a_stream_has_run_is_told_while_it_waits_for_more(self, tmp_path: Path) -> None:
        """Or a server with nothing to do takes ranks whose last instructions it has not heard of for stuck."""
        reports, told, done = SimpleQueue[Any](), [0, 0], 0
        with Serving(tmp_path, 2, "--device", "npu", target=streamed_on_npu) as serving:
            segment = opened(serving, Request("a", 20)).close()
            assert segment is not None
            serving.ranks.send("".join(segment_text(segment)))
            serving.ranks.listen(reports.put)
            for _ in range(200):  # two each half a second, or more
                report = reports.get()
                told[report.rank] = report.first + len(report.times) // 2
                if told == [len(program) for program in segment.programs]:
                    break
            assert told == [len(program) for program in segment.programs]
            serving.ranks.close()
            while done < 2:
                done += reports.get().done
            worlds.succeeded(serving.ended())

    def test_tensor_parallel_ranks_are_in_order_too(self, tmp_path: Path) -> None:
        plans = write_plans(tmp_path, "vpp-async")
        npu = worlds.run(tmp_path, 4, on_npu, lambda process: (plans, "", ["--device", "npu", "--tp", "2"]))
        worlds.succeeded(npu)
        assert json.loads(npu.err[0])["calls"]["HcclAllReduce"] > 0
        assert json.loads(npu.out[0])[0] == "vpp-async"

    def test_what_is_wrong_with_the_settings_is_said_at_the_start(self, tmp_path: Path) -> None:
        plans = write_plans(tmp_path, "vpp-async")
        ended = worlds.succeeded(worlds.run(tmp_path, 2, started_on_npu, lambda process: (plans,)))
        assert ended.err == [
            "vppc-run: problem: HCCL_BLOCKING_WAIT the host waits for every transfer "
            "and queues nothing meanwhile: unset it\n",
            "",
        ]
        assert ended.out[0].startswith("request") and not ended.out[1]

    @pytest.mark.parametrize("wrong", ["waits", "buffers"])
    def test_a_program_in_wrong_order_is_refused(self, wrong: str, tmp_path: Path) -> None:
        plans = write_plans(tmp_path, "vpp-async")
        ended = worlds.run(tmp_path, 2, on_npu, lambda process: (plans, wrong, ["--device", "npu", "--timeout", "8"]))
        assert ended.statuses == [1, 1]
        assert any("WrongOrder" in written and "Hccl" in written for written in ended.err), ended.err
