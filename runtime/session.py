"""A session: a world of processes in which schedules run, one after another, under the watchdog's eyes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NoReturn

import torch.distributed as dist

from runtime.arguments import Arguments
from runtime.board import Board, Verdict
from runtime.channels import agreement, open_links, tensor_group
from runtime.clock import Clock, agree
from runtime.devices import find_device
from runtime.devices.communicators import check_room
from runtime.devices.cpu import CpuDevice
from runtime.devices.protocol import Device, Link
from runtime.faults import Position, State, described, out_of_memory
from runtime.interpreter import Cancellation, Interpreter, Mark, Token, loads_of
from runtime.journal import Journal, make_folder
from runtime.mailbox import Inbox, Outbox
from runtime.make_runner import GrowingRunnerFactory, Place, RunnerFactory, make_runner
from runtime.prefixes import scratch, warm_prefixes
from runtime.profiling import profiled
from runtime.program import Loaded, load_together
from runtime.reference.parallel import ALONE, TensorParallel
from runtime.runners.protocol import BoundedRunner, Buffer, PrefixRunner, Runner
from runtime.runners.timed import TimedRunner
from runtime.stream import DOWN, STREAM, UP, Feed, Growing, Reporter
from runtime.watchdog import Watchdog, say
from runtime.world import World
from vppc.errors import InputError, VppcError
from vppc.ir.schedule import Channel, Schedule

HEAD_START = 0.02
"""Seconds from the agreement on the start to the start, so that everybody knows of it by then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run made: the tokens of all processes, in the order in which each made them; and how long it took,
    in seconds from the start that all agreed on to the end of the last process."""

    schedule: Schedule
    tokens: tuple[Token, ...]
    makespan: float


class Session:
    """The processes of a run, met and watched; a context manager. Enter it before anything that can fail.

    An exception inside ends all processes, this one too: with one message and exit status that all share, that of
    the error where it is a :class:`VppcError`, else 1.
    """

    def __init__(self, arguments: Arguments) -> None:
        """Meet the other processes. Raises InputError without a launcher or a device, RunFailed if they do not come."""
        # the timed runner sends clock readings, for which gloo is right whatever the device
        self.device: Device = CpuDevice() if arguments.runner == "timed" else find_device(arguments.device)
        self.world = World.meet(arguments.timeout)
        self.tp = arguments.tp
        self.rank, self.tp_rank = divmod(self.world.process, self.tp)
        self.position = Position(self.rank, self.tp_rank, self.tp)
        board = Board(self.world.connection("board"), self.world.process, self.world.size)
        world, quiet = self.world, arguments.quiet
        self._watchdog = Watchdog(board, world.process, world.holder, self.position, arguments.timeout, quiet=quiet)
        self._watchdog.on_cancel = self._cancel_asked
        self._watchdog.on_usr2 = lambda: (self._runs, self.position.requests)
        self._timeout = arguments.timeout
        self._cancellation = Cancellation()
        self._runs = 0

    def __enter__(self) -> Session:
        self._watchdog.open()
        self._watchdog.await_others(self._timeout)
        self.world.connect(self._timeout)
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail(error)
        self._watchdog.stop()
        self.world.leave()

    def run(self, arguments: Arguments, make: RunnerFactory = make_runner, mark: Mark | None = None) -> Outcome:
        """Run this process's part of a schedule; all processes call it together.

        ``mark``, when given, is entered around every instruction. Raises InputError, CheckFailed and RunFailed, and
        whatever the runner raises.
        """
        self._runs += 1
        self.position.prepare("reading the schedule", State.IDLE)
        loaded = load_together(self.world, arguments.schedule)
        schedule = loaded.schedule
        check_world(schedule, self.world.size, self.tp)
        self._cancellation = Cancellation(
            cancelled_at_start(arguments, schedule), agreement(schedule, self.world, self.tp)
        )
        place = self._place(schedule)
        clock = place.clock
        self.position.prepare("making its runner", State.IDLE)
        runner = self.world.together(lambda: make(arguments, schedule, place))
        links = self._links(schedule, runner)
        if isinstance(runner, PrefixRunner):
            self.position.prepare("computing the cached prefixes", State.IDLE)
            warm_prefixes(schedule, self.rank, runner, links, self.device.torch_device)
        journal = self.world.together(lambda: self._journal(arguments, loaded, clock))
        with profiled(arguments.profile, self.device, schedule, self.rank, self.tp_rank, self.tp) as profiler_mark:
            interpreter = Interpreter(
                schedule,
                self.rank,
                runner,
                loads_of(schedule, self.rank),
                links,
                self._buffers(schedule, runner),
                clock,
                position=self.position,
                progress=self.device.progress(clock, journal.report if journal is not None else None),
                times=journal,
                cancellation=self._cancellation,
                mark=mark or profiler_mark,
                check_finite=arguments.check_finite,
            )
            self._execute(interpreter, journal)
        made = [[token.request, token.token, token.seconds] for token in interpreter.tokens]
        everybodys, seconds = self.world.gather(made), max(self.world.gather(interpreter.seconds))
        if journal is not None:
            self._watchdog.on_end = _nothing
            self.world.together(journal.close)
        tokens = tuple(Token(int(request), int(token), when) for its in everybodys for request, token, when in its)
        return Outcome(schedule, tokens, seconds)

    def stream(self, arguments: Arguments, make: GrowingRunnerFactory = make_runner, mark: Mark | None = None) -> None:
        """Run this process's part of what a coordinator sends, until it closes the stream; all processes together.

        Raises as :meth:`run` does, and RunFailed when the coordinator is gone.
        """
        self.position.prepare("waiting for the coordinator", State.IDLE)
        self._watchdog.on_usr2 = _left_to_the_server
        cancellation = Cancellation()
        silence = self._timeout / 2
        feed = Feed(Inbox(self.world.connection(STREAM), DOWN), silence, cancellation.now)
        opening = self.world.together(feed.open).schedule
        check_world(opening, self.world.size, self.tp)
        cancellation.agree = agreement(opening, self.world, self.tp)
        place = self._place(opening)
        outbox = Outbox(self.world.connection(STREAM), UP)
        reporter = Reporter(outbox, self.world.process, self.rank, place.clock, feed)
        growing = Growing(opening, self.rank, feed.take, self.position, cancellation)
        self.position.prepare("making its runner", State.IDLE)
        runner = self.world.together(lambda: make(arguments, growing, place))
        reporter.prefixes = not isinstance(runner, PrefixRunner)
        reporter.longest = runner.longest if isinstance(runner, BoundedRunner) else None
        interpreter = Interpreter(
            growing,
            self.rank,
            runner,
            growing.loads,
            self._links(opening, runner),
            self._buffers(opening, runner),
            place.clock,
            position=self.position,
            progress=self.device.progress(place.clock, reporter.report),
            times=reporter,
            cancellation=cancellation,
            deliver=reporter.deliver,
            mark=mark,
            check_finite=arguments.check_finite,
        )
        growing.attach(runner.release, interpreter.progress)
        if interpreter.progress is not None:
            feed.settled = interpreter.progress.settled
        self._execute(interpreter, reporter)
        self.position.prepare("waiting for the others to end", State.WAITING)
        reporter.close()
        self.world.gather(None)

    def _execute(self, interpreter: Interpreter, journal: Journal | Reporter | None) -> None:
        """Start with all others at once and run the program, while signals and faults can reach it."""
        clock = interpreter.clock
        self.position.prepare("waiting for the others to start", State.WAITING)
        origin = max(self.world.gather(clock.now())) + HEAD_START
        if journal is not None:
            journal.origin = origin
        if isinstance(journal, Journal):
            self._watchdog.on_end = journal.close
        time.sleep(max(0.0, origin - clock.now()))
        interpreter.run(origin)

    def cancel(self, request: int) -> None:
        """Compute nothing more for a request, by index, on this process; from any thread, while it runs.

        The program goes on without the request's parts, and so do those of ranks that do not know yet.
        """
        self._cancellation.now(request)

    def _cancel_asked(self, asked: Sequence[tuple[int, int]]) -> None:
        for run, request in asked:
            if run == self._runs:
                self.cancel(request)

    def _fail(self, error: BaseException) -> NoReturn:
        """End all processes because of an exception in this one."""
        expected = isinstance(error, VppcError | KeyboardInterrupt) or out_of_memory(error)
        dependent = self.position.depends and isinstance(error, RuntimeError) and not expected
        # of a bug, a runner's perhaps, whoever mends it needs to know where
        trace = "" if expected else "".join(traceback.format_exception(error))
        message = described(error)
        if self.position.running or not isinstance(error, VppcError):
            message = f"{self.position}: {message}"
        status = error.exit_status if isinstance(error, VppcError) else 1
        self._watchdog.fail(Verdict(status, message), dependent=dependent, trace=trace)

    def _place(self, schedule: Schedule) -> Place:
        clock = agree(self.world.process, self.world.size)
        return Place(self.rank, self._tensor_parallel(schedule), self.device.torch_device, clock)

    def _links(self, schedule: Schedule, runner: Runner) -> Mapping[int, Link]:
        def opening(channel: Channel) -> None:
            words = f"opening channel {channel.id}, rank {channel.src} -> rank {channel.dst}"
            self.position.prepare(words, State.WAITING)

        ends = sum(self.rank in (channel.src, channel.dst) for channel in schedule.channels)
        self.world.together(lambda: check_room(self.device, ends, self.tp))
        links = open_links(schedule.channels, self.world, self.tp, self.device, opening)
        if isinstance(runner, TimedRunner):
            return {channel: runner.link(link) for channel, link in links.items()}
        return links

    def _tensor_parallel(self, schedule: Schedule) -> TensorParallel:
        group = tensor_group(schedule, self.world, self.tp, self.device.backend)
        if group is None:
            return ALONE
        return TensorParallel(self.tp_rank, self.tp, partial(dist.all_reduce, group=group))

    def _journal(self, arguments: Arguments, loaded: Loaded, clock: Clock) -> Journal | None:
        if arguments.journal is None:
            return None
        make_folder(arguments.journal, arguments.schedule, loaded.schedule.pp, self.tp)
        program = loaded.schedule.programs[self.rank]
        return Journal(arguments.journal, program, self.rank, self.tp_rank, loaded.digest, clock)

    def _buffers(self, schedule: Schedule, runner: Runner) -> list[Buffer]:
        """The buffers that the compiler allocated, as tensors; made once."""
        tokens = max([schedule.extra.get("buffer_tokens", 0), *(chunk.tokens for chunk in schedule.chunks)])
        return [
            scratch(runner.payload, tokens, self.device.torch_device)
            for _ in range(schedule.programs[self.rank].buffers)
        ]


def check_world(schedule: Schedule, size: int, tp: int) -> None:
    """Whether ``size`` processes, ``tp`` a rank, are those that the schedule is for; InputError when not."""
    planned = schedule.extra.get("tp", tp)
    if planned != tp:
        raise InputError(
            f"the schedule is for {planned} {'process' if planned == 1 else 'processes'} a rank, not {tp}",
            file="--tp",
            remedy=f"run it with --tp {planned}",
        )
    if size != schedule.pp * tp:
        raise InputError(
            f"{size} processes for {schedule.pp} ranks of {tp}",
            file="torchrun",
            remedy=f"start {schedule.pp * tp} in all, with --nproc-per-node and --nnodes",
        )


def cancelled_at_start(arguments: Arguments, schedule: Schedule) -> dict[int, int]:
    """What ``--cancel`` asks for: the chunk, by request. Raises InputError for what the schedule does not have."""
    ids = {request.id: index for index, request in enumerate(schedule.requests)}
    at: dict[int, int] = {}
    for name, chunk in arguments.cancel:
        if name not in ids:
            raise InputError(
                f"the schedule has no request {name!r}", file="--cancel", remedy=f"one of {', '.join(list(ids)[:8])}"
            )
        if chunk >= len(schedule.chunks):
            raise InputError(
                f"the schedule has no chunk {chunk}", file="--cancel", remedy=f"0 to {len(schedule.chunks) - 1}"
            )
        at[ids[name]] = chunk
    return at


def _left_to_the_server() -> tuple[int, tuple[int, ...]]:
    """Nothing is to be cancelled: who asked for a request would wait for it."""
    say('vppc-run: USR2 cancels nothing in a stream: a line to the server does, {"cancel": ..}\n')
    return 0, ()


def _nothing() -> None:
    """There is nothing to do when the run ends early."""
