"""PyTorch's schedule CSV: what is read and written, what is refused, and that PyTorch reads it as we mean it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.costs.model import CostModel, LayerCost
from vppc.errors import InputError
from vppc.ir.instruction import Forward, Program, Recv, Sample, Send, Wait
from vppc.ir.placement import stage_ranks
from vppc.ir.schedule import Channel, Model, Order, Schedule, Stage
from vppc.ir.torch_csv import parse_torch_csv, to_torch_csv
from vppc.passes.insert_transfers import InsertTransfers

GOLDEN = Path(__file__).parent / "golden"

COMPUTE = "0F0,0F1,3F0,3F1\r\n1F0,2F0,1F1,2F1\r\n"
COMMS = "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\r\n1RECV_F0,1F0,2F0,2SEND_F0,1RECV_F1,1F1,2F1,2SEND_F1\r\n"


def written(schedule: Schedule, *, compute_only: bool) -> str:
    return "".join(to_torch_csv(schedule, compute_only=compute_only))


def test_compute_only_is_an_order() -> None:
    schedule = parse_torch_csv(COMPUTE)
    assert schedule.order == Order(((0, 4, 3, 7), (1, 2, 5, 6)))
    assert schedule.programs == ()
    assert (schedule.pp, schedule.vp, schedule.model) == (2, 2, Model("torch-csv", 4))
    assert schedule.stages == tuple(Stage(stage, rank, (stage, stage + 1)) for stage, rank in enumerate((0, 1, 1, 0)))
    assert schedule.channels == (Channel(0, 0, 1), Channel(1, 1, 0))
    assert schedule.samples == (False, True)
    assert written(schedule, compute_only=True) == COMPUTE


def test_posted_transfers_wait_as_pytorch_does() -> None:
    schedule = parse_torch_csv(COMMS)
    assert schedule.order is None
    assert schedule.programs[0] == Program.of(
        0,
        5,
        [
            Forward(0, 0, None, 0),
            Send(0, 0, 1, 0, 0),
            Forward(1, 0, None, 1),
            Send(1, 0, 1, 0, 1),
            Recv(0, 3, 1, 1, 2),
            Wait(4),
            Forward(0, 3, 2, None),
            Recv(1, 3, 1, 1, 3),
            Wait(7),
            Forward(1, 3, 3, 4),
            Sample(1, 4),
            Wait(1),
            Wait(3),
        ],
    )
    assert list(schedule.programs[1])[:5] == [
        Recv(0, 1, 0, 0, 0),
        Wait(0),
        Forward(0, 1, 0, 1),
        Forward(0, 2, 1, 2),
        Send(0, 2, 0, 1, 2),
    ]


def test_blocking_transfers_are_waited_at_once() -> None:
    program = parse_torch_csv(COMMS, transfers="blocking").programs[1]
    assert program == Program.of(
        1,
        6,
        [
            Recv(0, 1, 0, 0, 0),
            Wait(0),
            Forward(0, 1, 0, 1),
            Forward(0, 2, 1, 2),
            Send(0, 2, 0, 1, 2),
            Wait(4),
            Recv(1, 1, 0, 0, 3),
            Wait(6),
            Forward(1, 1, 3, 4),
            Forward(1, 2, 4, 5),
            Send(1, 2, 0, 1, 5),
            Wait(10),
        ],
    )


@pytest.mark.parametrize("transfers", ["posted", "blocking"])
def test_transfers_write_back(transfers: Any) -> None:
    schedule = parse_torch_csv(COMMS, transfers=transfers)
    assert written(schedule, compute_only=False) == COMMS
    assert written(schedule, compute_only=True) == "0F0,0F1,3F0,3F1\r\n1F0,2F0,1F1,2F1\r\n"


def test_empty_cells_blanks_and_line_ends_do_not_matter() -> None:
    loose = ' 0F0 ,0F1,,3F0,"3F1"\n,1F0,2F0,1F1,2F1,\n\n'
    assert parse_torch_csv(loose) == parse_torch_csv(COMPUTE)


def test_wrong_programs_are_read_for_the_verifier_to_refuse() -> None:
    """A forward run twice, an input that never comes and one received twice: wrong, but programs."""
    schedule = parse_torch_csv("0F0,0F0,0SEND_F0\n1RECV_F0,1RECV_F0,1F0,1F0\n")
    assert list(schedule.programs[0]) == [
        Forward(0, 0, None, 0),
        Forward(0, 0, None, 0),
        Send(0, 0, 1, 0, 0),
        Wait(2),
    ]
    assert list(schedule.programs[1])[:5] == [
        Recv(0, 1, 0, 0, 0),
        Recv(0, 1, 0, 0, 0),
        Wait(0),
        Wait(1),
        Forward(0, 1, 0, 1),
    ]
    lost = parse_torch_csv("0F0,0SEND_F0\n1F0\n")
    assert lost.programs[1][0] == Forward(0, 1, 0, 1)


def test_an_unlowered_schedule_has_no_transfers_to_write() -> None:
    with pytest.raises(InputError, match="no programs"):
        written(parse_torch_csv(COMPUTE), compute_only=False)


BAD = {
    "nothing": "\r\n",
    "backward": "0F0,0B0\n1F0\n",
    "weight": "0F0\n1F0,,1W0\n",
    "unshard": "0UNSHARD,0F0\n",
    "overlap": "(0F1;0B0)OVERLAP_F_B\n",
    "receive of a gradient": "0F0,0RECV_B0\n1F0\n",
    "no action": "0F0\n1F0 then wait\n",
    "no microbatch": "0F\n",
    "header": "rank,action\n",
    "large": "9999999999F0\n",
    "not yet large": "999999999F0\n",
    "not CSV": '0F0\n"' + "1" * 200_000 + '"\n',
    "two ranks": "0F0,1F0\n1F0\n",
    "stage missing": "0F0\n2F0\n",
    "no stages": "0F0,1F0\n\n2F0,3F0\n",
    "unequal": "0F0,1F0\n2F0\n",
    "only transfers": "0SEND_F0\n1RECV_F0\n",
    "microbatch missing": "0F0,0F2\n1F0,1F2\n",
    "twice": "0F0,0F0\n1F0\n",
    "missing": "0F0,0F1\n1F0\n",
    "send of the last stage": "0F0\n1F0,1SEND_F0\n",
    "receive of tokens": "0RECV_F0,0F0\n1F0\n",
    "no such stage": "0F0\n1F0,7RECV_F0\n",
    "on the wrong rank": "0F0,1RECV_F0\n1F0\n",
    "fold": "0F0,3F0\n1F0,1SEND_F0,2F0\n",
}


def message(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_torch_csv(text, "plan.csv")
    return str(caught.value)


def test_messages() -> None:
    said = "".join(f"# {name}\n{message(text)}\n" for name, text in BAD.items())
    assert said == (GOLDEN / "torch_csv_errors.txt").read_text()


@st.composite
def orders(draw: st.DrawFn) -> tuple[tuple[int, ...], int, list[list[tuple[int, int]]]]:
    """Ranks of the stages, microbatches, and for every rank its (chunk, stage)s in an order that can run."""
    placement, pp = draw(st.sampled_from(["straight", "v", "zigzag", "loop"])), draw(st.integers(1, 4))
    vp = {"straight": 1, "v": 2}.get(placement) or draw(st.integers(2, 4))
    ranks, chunks = stage_ranks(placement, pp, vp), draw(st.integers(1, 5))
    done = [0] * chunks  # stages of each chunk that have run
    rows: list[list[tuple[int, int]]] = [[] for _ in range(pp)]
    while open_chunks := [c for c in range(chunks) if done[c] < len(ranks) and (c == 0 or done[c - 1] > done[c])]:
        chunk = draw(st.sampled_from(open_chunks))
        rows[ranks[done[chunk]]].append((chunk, done[chunk]))
        done[chunk] += 1
    return ranks, chunks, rows


def compute_csv(rows: list[list[tuple[int, int]]]) -> str:
    return "".join(",".join(f"{stage}F{chunk}" for chunk, stage in row) + "\r\n" for row in rows)


@given(orders())
def test_any_order_round_trips(plan: tuple[tuple[int, ...], int, list[list[tuple[int, int]]]]) -> None:
    ranks, chunks, rows = plan
    schedule = parse_torch_csv(compute_csv(rows))
    assert schedule.stage_ranks == ranks
    assert len(schedule.chunks) == chunks
    assert written(schedule, compute_only=True) == compute_csv(rows)


@settings(max_examples=50)
@given(st.text(alphabet="01239FSENDRCV_B,\n", max_size=60))
def test_any_text_is_read_or_refused_with_a_message(text: str) -> None:
    try:
        schedule = parse_torch_csv(text)
    except InputError:  # anything else fails the test
        return
    form = written(schedule, compute_only=not schedule.programs)
    assert parse_torch_csv(form) == schedule


@pytest.fixture(scope="module")
def lowered() -> Callable[[str, int, int, int], dict[int, list[Any]]]:
    """PyTorch's own reader and lowering of a compute-only CSV: for every rank its actions with transfers."""
    pytest.importorskip("torch", reason="needs torch, which only the runtime does")
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    def lower(path: str, pp: int, stages: int, microbatches: int) -> dict[int, list[Any]]:
        runtime = object.__new__(_PipelineScheduleRuntime)  # its constructor wants a process group and a model
        runtime._stages, runtime._defer_pp_recv = [], False
        runtime.pp_group_size, runtime._num_stages, runtime._n_microbatches = pp, stages, microbatches
        runtime.pipeline_order = {}
        runtime._load_csv(path, format="compute_only")
        return {rank: list(map(str, actions)) for rank, actions in runtime.pipeline_order_with_comms.items()}

    return lower


def with_backwards(text: str, ranks: tuple[int, ...], chunks: int) -> str:
    """The CSV with a backward for every forward behind it: PyTorch reads no schedule without."""
    rows = list(csv.reader(io.StringIO(text)))
    for stage in reversed(range(len(ranks))):
        rows[ranks[stage]] += [f"{stage}B{chunk}" for chunk in range(chunks)]
    return "".join(",".join(row) + "\r\n" for row in rows)


def prefill(actions: list[str]) -> list[str]:
    return [action for action in actions if action.rstrip("0123456789")[-1] == "F"]


@settings(max_examples=40)
@given(plan=orders())
def test_pytorch_reads_and_lowers_what_we_write(
    lowered: Callable[..., dict[int, list[Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    plan: tuple[tuple[int, ...], int, list[list[tuple[int, int]]]],
) -> None:
    """PyTorch lowers our CSV to the transfers that our own lowering makes, rank by rank, and we read its CSV back."""
    ranks, chunks, rows = plan
    path = tmp_path_factory.mktemp("csv") / "plan.csv"
    ours = written(parse_torch_csv(compute_csv(rows)), compute_only=True)
    path.write_text(with_backwards(ours, ranks, chunks), newline="")
    theirs = lowered(str(path), max(ranks) + 1, len(ranks), chunks)
    text = "".join(",".join(prefill(theirs[rank])) + "\r\n" for rank in sorted(theirs))
    schedule = parse_torch_csv(text)
    assert written(schedule, compute_only=True) == ours
    if schedule.programs:  # there are none where one rank needs no transfers
        assert written(schedule, compute_only=False) == text
    cost = CostModel((LayerCost(len(ranks), fixed=1.0),))
    mine = written(InsertTransfers(cost)(parse_torch_csv(ours)), compute_only=False)
    assert [sorted(row.split(",")) for row in mine.splitlines()] == [
        sorted(row.split(",")) for row in text.splitlines()
    ]
