"""Where the time of each rank goes, and when each request gets its first token.

The clock of a schedule starts when the first chunk can: at the earliest arrival. That is the first start of
every schedule that does not idle on purpose, and it does not depend on the order, so that a bound can be given
for it. From there to the last end is the **makespan**, and every rank's share of it divides into

* compute and collective: its FORWARDs, and its SAMPLEs, which take time only when measured (a slow-down by
  interference counts as compute);
* exposed transfer: time in a WAIT after both ends of what it waits for are posted, queueing on the channel
  included; before that, the rank waits for its peer to compute, not for the link;
* launch stall: the rest of the time before its first FORWARD;
* free: what is left. Launch stall and free together are the rank's bubble.

Hidden transfer lies beside all that: time in which a transfer of the rank is under way and no WAIT shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vppc.analysis.times import Timing
from vppc.costs.model import OpCosts
from vppc.ir.instruction import FORWARD, SAMPLE, WAIT
from vppc.ir.schedule import Schedule

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RankBreakdown:
    """The makespan as one rank spends it, in seconds; ``hidden_transfer`` runs beside the rest.

    ``bubble_ratio`` is (launch_stall + free) / makespan.
    """

    rank: int
    compute: float
    collective: float
    exposed_transfer: float
    hidden_transfer: float
    launch_stall: float
    free: float
    bubble_ratio: float


def clock_start(schedule: Schedule) -> float:
    """The seconds at which the first chunk can start: its requests have arrived."""
    return min(schedule.chunk_arrivals, default=0.0)


def makespan(schedule: Schedule, timing: Timing) -> float:
    """Seconds from the start of the clock to the last end of any instruction on any rank."""
    start = clock_start(schedule)
    return max((max(ends) for ends in timing.ends if ends), default=start) - start


def breakdown(schedule: Schedule, timing: Timing, costs: OpCosts) -> tuple[RankBreakdown, ...]:
    """Divide the makespan on every rank; n log n in the number of instructions."""
    total = makespan(schedule, timing)
    posted = both_ends_posted(schedule, timing)
    transfers = _transfer_intervals(schedule, timing)
    return tuple(
        _rank_breakdown(schedule, timing, costs, rank, total, posted[rank], transfers[rank])
        for rank in range(len(schedule.programs))
    )


def first_tokens(schedule: Schedule, timing: Timing) -> tuple[float | None, ...]:
    """For every request the seconds from its arrival to its first token (TTFT): the SAMPLE where its prompt ends.

    None where the programs do not sample it, which is so only for an open stream.
    """
    sampled: dict[int, float] = {}  # chunk -> when its SAMPLE is done
    for program, ends in zip(schedule.programs, timing.ends, strict=True):
        for index, (op, chunk, *_) in enumerate(program.rows()):
            if op == SAMPLE:
                sampled[chunk] = ends[index]
    tokens: list[float | None] = [None] * len(schedule.requests)
    for chunk, when in sampled.items():
        for part in schedule.chunks[chunk].parts:
            request = schedule.requests[part.request]
            if part.end == request.prompt_tokens:  # a decode part lies behind the prompt
                tokens[part.request] = when - request.arrival
    return tuple(tokens)


def _rank_breakdown(
    schedule: Schedule,
    timing: Timing,
    costs: OpCosts,
    rank: int,
    total: float,
    posted: list[float],
    transfers: list[Interval],
) -> RankBreakdown:
    starts, ends = timing.starts[rank], timing.ends[rank]
    stages = len(schedule.stages)
    origin = clock_start(schedule)
    busy = collective = exposed = 0.0
    launch: float | None = None  # not known before the first FORWARD
    exposures: list[Interval] = []
    for index, (op, chunk, stage, x, _, _) in enumerate(schedule.programs[rank].rows()):
        if op == FORWARD:
            if launch is None:
                launch = starts[index] - origin - exposed
            busy += ends[index] - starts[index]
            collective += costs.collective[chunk * stages + stage]
        elif op == SAMPLE:
            busy += ends[index] - starts[index]
        elif op == WAIT:
            begin, end = max(starts[index], posted[x]), ends[index]
            if end > begin:
                exposed += end - begin
                exposures.append((begin, end))
    if launch is None:
        launch = total
    launch = max(0.0, launch)  # a difference that is nothing may round to less
    free = max(0.0, total - busy - exposed - launch)
    return RankBreakdown(
        rank=rank,
        compute=max(0.0, busy - collective),
        collective=collective,
        exposed_transfer=exposed,
        hidden_transfer=_uncovered(sorted(transfers), exposures),
        launch_stall=launch,
        free=free,
        bubble_ratio=(launch + free) / total if total else 0.0,
    )


def both_ends_posted(schedule: Schedule, timing: Timing) -> list[list[float]]:
    """``[rank][index]``: for an instruction that posts a transfer, when the transfer's later end is posted."""
    posted = [[0.0] * len(program) for program in schedule.programs]
    for channel, transfers in zip(schedule.channels, timing.transfers, strict=True):
        src, dst = posted[channel.src], posted[channel.dst]
        both = map(max, transfers.send_posted, transfers.recv_posted)
        for send, recv, when in zip(transfers.sends, transfers.recvs, both, strict=False):
            src[send] = dst[recv] = when
    return posted


def _transfer_intervals(schedule: Schedule, timing: Timing) -> list[list[Interval]]:
    """For every rank, when the transfers that it is an end of are under way."""
    intervals: list[list[Interval]] = [[] for _ in schedule.programs]
    for channel, transfers in zip(schedule.channels, timing.transfers, strict=True):
        under_way = list(zip(transfers.starts, transfers.ends, strict=True))
        intervals[channel.src] += under_way
        intervals[channel.dst] += under_way
    return intervals


def _uncovered(intervals: Iterable[Interval], covers: list[Interval]) -> float:
    """The length of the union of ``intervals`` outside all ``covers``; both ascend, covers are disjoint."""
    length = 0.0
    done = float("-inf")  # up to here everything is counted
    following = 0
    for start, end in intervals:
        done = max(done, start)
        while done < end:
            while following < len(covers) and covers[following][1] <= done:
                following += 1
            if following == len(covers) or covers[following][0] >= end:
                length += end - done
                done = end
            else:
                begin, over = covers[following]
                length += max(0.0, begin - done)
                done = over
    return length
