"""Profiles of devices: figures equal a computation by hand, identities hold, broken copies are refused."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import compiled

from vppc.cli import vppc
from vppc.costs.calibration import calibrate
from vppc.costs.model import CostModel, LayerCost, layer_seconds
from vppc.errors import CheckFailed, InputError, VppcError
from vppc.ir.document import schedule_text
from vppc.ir.instruction import FORWARD
from vppc.ir.schedule import Schedule
from vppc.profiles import events
from vppc.profiles.communication import read_communication
from vppc.profiles.events import read_events
from vppc.profiles.folder import rank_of, read_profile
from vppc.profiles.intervals import SECOND, length, overlap, picoseconds, union
from vppc.profiles.kernels import by_class, collective_kind, kernel_class, read_kernels
from vppc.profiles.sources import Reading, gather
from vppc.profiles.step_trace import read_step_trace
from vppc.profiles.trace import read_trace

ASCEND = Path(__file__).resolve().parents[2] / "shared" / "profiles" / "ascend"
needs_profiles = pytest.mark.skipif(not ASCEND.is_dir(), reason="shared/profiles is not here")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(vppc, ["profile", *arguments])


def microseconds(text: str) -> float:
    """Exactly, and only then as a float of seconds."""
    return float(Decimal(text) / 10**6)


# Step traces


OLD = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
OLD += "Communication(Not Overlapped and Exclude Receive)"
NEW = f"Device_id,{OLD},Preparing"
ROW = "2,100.5,40,10,50,9.5,120,30,10"


def file(tmp_path: Path, text: str, name: str = "step_trace_time.csv") -> str:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_a_step_in_the_papers_terms(tmp_path: Path) -> None:
    (only,) = read_step_trace(file(tmp_path, f"{OLD}\n{ROW}\n"))
    times = only.times
    assert (only.rank, times.step, times.preparing) == ("", "2", None)
    assert times.computing == pytest.approx(100.5e-6)
    assert times.exposed == pytest.approx(40e-6)
    assert times.receive == pytest.approx(30e-6)  # the column Bubble
    assert times.bubble == pytest.approx(9.5e-6)
    assert times.total == pytest.approx(150e-6)
    assert times.bubble_ratio == pytest.approx(9.5 / 150)
    assert times.overlap_ratio == pytest.approx(10 / 50)


def test_newer_files_tell_the_device_and_the_launch_stall(tmp_path: Path) -> None:
    text = f"{NEW}\n0\t,{ROW}\t,50\t\n1\t,{ROW},0\n".replace("\n0\t,2", "\n0\t,").replace("\n1\t,2", "\n1\t,")
    first, second = read_step_trace(file(tmp_path, text))
    assert [first.rank, second.rank, first.times.step] == ["0", "1", ""]
    assert first.times.launch_stall == pytest.approx(50e-6)
    assert first.times.bubble_ratio == pytest.approx(59.5 / 200)


def test_the_oldest_header_differs_in_case(tmp_path: Path) -> None:
    text = f"{OLD.replace('Exclude Receive', 'exclude receive')}\n{ROW}\n"
    assert read_step_trace(file(tmp_path, text)) == read_step_trace(file(tmp_path, f"{OLD}\n{ROW}\n"))


CLUSTER = OLD.replace("Step,", "Step,Type,Index,")
RANKS = "2,rank,0,100,40,10,50,10,150,0,40\n2,rank,1,90,60,5,65,20,140,30,30\n"
STAGE = '2,stage,"(0, 1)",100,60,10,65,20,150,30,40\n'


def test_a_cluster_has_ranks_and_stages(tmp_path: Path) -> None:
    ranks = read_step_trace(file(tmp_path, f"{CLUSTER}\n{RANKS}{STAGE}"))
    assert [(each.rank, each.times.receive) for each in ranks] == [("0", 0.0), ("1", pytest.approx(30e-6))]


def test_a_stage_of_ranks_that_are_not_there_is_not_checked(tmp_path: Path) -> None:
    stage = STAGE.replace("(0, 1)", "(2, 3)").replace(",20,", ",24,")
    assert len(read_step_trace(file(tmp_path, f"{CLUSTER}\n{RANKS}{stage}"))) == 2


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InputError, "is empty"),
        (f"{OLD}\n", InputError, "has no ranks"),
        (f"{OLD.replace(',Free', '')}\n2,100.5,40,10,50,120,30,10\n", InputError, 'line 1: has no column "Free"'),
        (f"{OLD}\n{ROW[:-6]}\n", InputError, "line 2: has 7 values for 9 columns"),
        (f"{OLD}\n{ROW}\n{ROW[:9]}", InputError, "line 3: has 3 values for 9 columns"),
        (f"{OLD}\n2,nan,40,10,50,9.5,120,30,10\n", InputError, 'line 2, Computing: "nan" is not a number'),
        (f"{OLD}\n2,NaN,40,10,50,9.5,120,30,10\n", InputError, 'line 2, Computing: "NaN" is not a number'),
        (f"{OLD}\n2,-1,40,10,50,9.5,120,30,10\n", InputError, 'line 2, Computing: "-1" is negative'),
        (f"{OLD}\n2,,40,10,50,9.5,120,30,10\n", InputError, 'line 2, Computing: "" is not a number'),
        (f"{OLD}\n{ROW}\n3{ROW[1:]}\n", InputError, "line 3: is of step 3, but line 2 of 2: steps are not to be mixed"),
        (f"{OLD}\n{ROW}\n{ROW}\n", InputError, "line 3: is a second rank"),
        (f"{OLD}\n{ROW}\n\n{ROW}\n", InputError, "line 3: is blank"),
        (f"{NEW}\n0,{ROW},1\n0,{ROW},1\n", InputError, "line 3: rank 0 is there twice"),
        (f"{OLD}\n{ROW.replace('9.5', '8.4')}\n", CheckFailed, "U1 line 2: Computing + Communication(Not Overlapped)"),
        (f"{OLD}\n{ROW.replace(',10,50', ',10,53')}\n", CheckFailed, "+ Overlapped = Communication does not hold: -3"),
        (f"{OLD}\n{ROW[:-2]}14\n", CheckFailed, "and Exclude Receive) does not hold: -4.00 us"),
        (f"{CLUSTER}\n{RANKS}{STAGE.replace(',20,', ',24,')}", CheckFailed, "U2 line 4, Free: is 24.00 us, but the gr"),
        (f"{CLUSTER}\n{RANKS}{STAGE.replace('(0, 1)', 'both')}", InputError, "line 4, Index: names no ranks"),
    ],
)
def test_broken_step_traces_are_refused(tmp_path: Path, text: str, error: type[VppcError], message: str) -> None:
    with pytest.raises(error) as caught:
        read_step_trace(file(tmp_path, text))
    assert message in str(caught.value)
    assert "step_trace_time.csv" in str(caught.value)


def test_one_of_several_steps_is_picked(tmp_path: Path) -> None:
    path = file(tmp_path, f"{OLD}\n{ROW}\n3,200,0,0,0,50,250,0,0\n")
    assert read_step_trace(path, "3")[0].times.computing == pytest.approx(200e-6)
    with pytest.raises(InputError, match="has no rank of step 4"):
        read_step_trace(path, "4")


@needs_profiles
def test_identities_of_a_real_cluster_hold_to_a_third_of_a_microsecond() -> None:
    path = ASCEND / "cluster_pp2_tp8_step_trace_time.csv"
    ranks = {each.rank: each.times for each in read_step_trace(str(path))}
    assert len(ranks) == 16
    worst = Decimal(0)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["Type"] == "stage":
                continue
            times = ranks[row["Index"]]
            assert times.computing == pytest.approx(microseconds(row["Computing"]), rel=1e-12)
            assert times.exposed == pytest.approx(microseconds(row["Communication(Not Overlapped)"]), rel=1e-12)
            assert times.receive == pytest.approx(microseconds(row["Bubble"]), rel=1e-12)
            assert times.free == pytest.approx(microseconds(row["Free"]), rel=1e-12)
            whole = Decimal(row["Stage"]) + Decimal(row["Bubble"])
            assert times.total == pytest.approx(float(whole) / 1e6, abs=0.33e-6)
            worst = max(worst, abs(Decimal(f"{times.total * 1e6:.6f}") - whole))
    assert Decimal("0.1") < worst < Decimal("0.33")


@needs_profiles
@pytest.mark.parametrize("rank", ["rank_0", "rank_1"])
def test_a_real_rank_is_the_one_in_the_clusters_table(rank: str) -> None:
    (alone,) = read_step_trace(str(ASCEND / rank / "step_trace_time.csv"))
    cluster = {each.rank: each.times for each in read_step_trace(str(ASCEND / "cluster_pp2_tp8_step_trace_time.csv"))}
    together = cluster[rank[-1]]
    assert (alone.times.computing, alone.times.free) == (together.computing, together.free)
    assert alone.times.overlap_ratio == pytest.approx(0.045, abs=5e-4)


@needs_profiles
@pytest.mark.parametrize(
    "name",
    [
        "cluster_pp2_tp8_step_trace_time.csv",
        "rank_0/step_trace_time.csv",
        "rank_0/kernel_details.csv",
        "rank_1/kernel_details.csv",
    ],
)
def test_every_line_of_a_real_table_that_is_cut_is_refused_by_its_number(tmp_path: Path, name: str) -> None:
    lines = (ASCEND / name).read_text().splitlines()
    for number in range(1, len(lines)):
        cut = [*lines[:number], lines[number][: len(lines[number]) // 2], *lines[number + 1 :]]
        with pytest.raises(InputError, match=f"line {number + 1}[:,]"):
            read_profile(file(tmp_path, "\n".join(cut) + "\n"))


@needs_profiles
@pytest.mark.parametrize("name", ["rank_0/communication.json", "trace_view.json"])
def test_real_json_that_is_cut_is_refused(tmp_path: Path, name: str) -> None:
    text = (ASCEND / name).read_text()
    for part in (0.1, 0.5, 0.9, 0.999):
        with pytest.raises(InputError, match="line 1"):
            read_profile(file(tmp_path, text[: int(part * len(text))], "x.json"))


# Kernel tables


KERNELS = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),HF32 Eligible,Input Shapes"
ROWS = (
    '2,FusedInferAttentionScore,FusedInferAttentionScore,MIX_AIC,1700000000000000.25\t,900.5\t,1,NO,"""1,128;2"""',
    '2,Slice,Slice,AI_CORE,1700000000000901\t,10.25\t,0,NO,""""""',
    "2,aclnnMatMulV3,MatMulV3,AI_CORE,1700000000000912,20,0,YES,N/A",
    "2,MemSet_7,0,AI_VECTOR_CORE,1700000000000932,5,0,N/A,N/A",
    "2,hcom_allGather__483_3,hcom_allGather_,HCCL,1700000000000940,40,0,N/A,N/A",
    "2,hcom_allGather__483_4,hcom_allGather_,HCCL,1700000000000990,60,0,N/A,N/A",
)


def kernel_table(*rows: str) -> str:
    return "".join(f"{row}\n" for row in (KERNELS, *rows))


def test_kernels_by_type_and_class(tmp_path: Path) -> None:
    kernels = read_kernels(file(tmp_path, kernel_table(*ROWS), "kernel_details.csv"))
    totals = {name: (total.count, round(total.seconds * 1e6, 6)) for name, total in by_class(kernels.types).items()}
    assert totals == {"attention": (1, 900.5), "slice": (1, 10.25), "matmul": (1, 20.0), "other": (1, 5.0)}
    assert "MemSet_7" in kernels.types  # the type column is 0
    gathers = kernels.collectives["hcom_allGather"]
    assert (gathers.count, gathers.mean) == (2, pytest.approx(50e-6))
    assert kernels.step == "2"
    assert kernels.remarks == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("FusedInferAttentionScore", "attention"),
        ("FlashAttentionScore", "attention"),
        ("SparseFlashAttention", "attention"),
        ("LightningIndexer", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("Slice", "slice"),
        ("StridedSliceD", "slice"),
        ("MatMulV3", "matmul"),
        ("MatMulCommon", "matmul"),
        ("GroupedMatmul", "other"),  # the experts, which the paper counts as other kernels
        ("sm90_xmma_gemm_bf16bf16", "matmul"),
        ("Cast", "other"),
        ("ReduceSlice", "other"),
    ],
)
def test_classes_of_kernels(kind: str, expected: str) -> None:
    assert kernel_class(kind) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hcom_allReduce__459_0@10471851537367425459", "hcom_allReduce"),
        ("hcom_broadcast_", "hcom_broadcast"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "ncclDevKernel_AllGather_RING_LL(x)"),
    ],
)
def test_kinds_of_collectives(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


def test_a_row_that_has_lost_a_value_in_the_middle_is_left_out_and_told(tmp_path: Path) -> None:
    """All behind the lost value have slipped: 1, the wait, would be read as the duration."""
    slipped = ROWS[0].replace(",900.5\t", "")
    kernels = read_kernels(file(tmp_path, kernel_table(slipped, *ROWS), "kernel_details.csv"))
    assert kernels.types["FusedInferAttentionScore"].count == 1
    assert kernels.types["FusedInferAttentionScore"].seconds == pytest.approx(900.5e-6)
    (remark,) = kernels.remarks
    assert "line 2 has lost a value (8 of 9), so its FusedInferAttentionScore is left out" in remark


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel_table(), "has no kernels"),
        (kernel_table(*ROWS).replace("Duration(us),", "Time(us),"), 'line 1: has no column "Duration(us)"'),
        (kernel_table(*ROWS)[:-20], "line 7: has 5 values for 9 columns"),
        (kernel_table(ROWS[2][:40], ROWS[1]), "line 2: has 5 values for 9 columns"),
        (kernel_table(*ROWS).replace("900.5\t", "NaN"), 'line 2, Duration(us): "NaN" is not a number'),
        (kernel_table(*ROWS).replace("10.25\t", "-1"), 'line 3, Duration(us): "-1" is negative'),
        (kernel_table(*ROWS).replace("1700000000000912", "N/A"), 'line 4, Start Time(us): "N/A" is not a time'),
        (kernel_table(ROWS[0], "3" + ROWS[1][1:]), "line 3: is of step 3, but line 2 of 2: steps are not to be mixed"),
        (kernel_table(ROWS[0] + ",7"), "line 2: has 10 values for 9 columns"),
        (kernel_table(ROWS[2].removesuffix(",N/A")), "line 2: has 8 values for 9 columns"),
        (kernel_table(ROWS[0][:-3]), "line 2: not CSV: unexpected end of data"),
    ],
)
def test_broken_kernel_tables_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_kernels(file(tmp_path, text, "kernel_details.csv"))
    assert message in str(error.value)


def test_kernels_of_one_step_are_picked(tmp_path: Path) -> None:
    path = file(tmp_path, kernel_table(*ROWS, "3" + ROWS[1][1:]), "kernel_details.csv")
    assert sum(total.count for total in read_kernels(path, "3").types.values()) == 1
    with pytest.raises(InputError, match="has no kernels of step 4"):
        read_kernels(path, "4")


@needs_profiles
@pytest.mark.parametrize("rank", ["rank_0", "rank_1"])
def test_real_kernels_add_up(rank: str) -> None:
    with (ASCEND / rank / "kernel_details.csv").open(newline="") as stream:
        whole = [row for row in csv.DictReader(stream) if row["aiv_l0c_write_bw(GB/s)"] is not None]
    kernels = read_kernels(str(ASCEND / rank / "kernel_details.csv"))
    compute = [row for row in whole if row["Accelerator Core"] != "HCCL"]
    seconds = sum(total.seconds for total in kernels.types.values())
    assert seconds == pytest.approx(microseconds(str(sum(Decimal(row["Duration(us)"]) for row in compute))), rel=1e-12)
    assert sum(total.count for total in kernels.types.values()) == len(compute)
    assert sum(total.count for total in kernels.collectives.values()) == len(whole) - len(compute)
    attention = by_class(kernels.types)["attention"]
    assert (attention.count, round(attention.seconds * 1e6, 4)) == ((3, 21112.8507) if rank == "rank_0" else (0, 0.0))
    assert len(kernels.remarks) == (1 if rank == "rank_0" else 0)  # line 17 has 31 of 32 values


# Communication


def operator(elapse: float, transit: float = 0.0, wait: float = 0.0) -> dict[str, Any]:
    times = {"Elapse Time(ms)": elapse, "Transit Time(ms)": transit, "Wait Time(ms)": wait}
    return {"Communication Time Info": times, "Communication Bandwidth Info": {}}


def communication(**changes: Any) -> dict[str, Any]:
    collective = {
        "hcom_allGather__1_0@9": operator(2.0, 0.5, 1.5),
        "hcom_allGather__1_1@9": operator(4.0, 0.5, 0.0),
        "hcom_allReduce__1_2@9": operator(1.0),
        "Total Op Info": operator(7.0, 1.0, 1.5),
    }
    return {"p2p": {"hcom_receive__2_0@8": operator(0.5)}, "collective": {**collective, **changes}}


def test_collectives_by_count_and_mean(tmp_path: Path) -> None:
    found = read_communication(file(tmp_path, json.dumps({"step2": communication()}), "communication.json"))
    assert found.step == "2"
    gather = found.kinds["hcom_allGather"]
    assert (gather.count, gather.seconds, gather.mean) == (2, pytest.approx(6e-3), pytest.approx(3e-3))
    assert (gather.transit, gather.wait) == (pytest.approx(1e-3), pytest.approx(1.5e-3))
    assert found.kinds["hcom_receive"].count == 1


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ({"step2": communication(), "step3": communication()}, InputError, 'has steps "step2", "step3"'),
        ({}, InputError, "has no step"),
        ({"step2": []}, InputError, "step2: a list is not an object"),
        ({"step2": {"p2p": {"hcom_send": {}}}}, InputError, "Communication Time Info"),
        ({"step2": communication(bad=operator(-1.0))}, InputError, "-1.0 is not a time"),
        ({"step2": communication(hcom_x=operator(1.0))}, CheckFailed, "is 7.0000 ms, but the operators add up"),
    ],
)
def test_broken_communication_is_refused(
    tmp_path: Path, document: dict[str, Any], error: type[VppcError], message: str
) -> None:
    with pytest.raises(error) as caught:
        read_communication(file(tmp_path, json.dumps(document), "communication.json"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text[:-30], "communication.json: line 1, column"),
        (lambda text: text.replace("4.0", "NaN"), "NaN is not a finite number"),
    ],
)
def test_communication_that_is_cut_or_not_a_number_is_refused(
    tmp_path: Path, edit: Callable[[str], str], message: str
) -> None:
    text = edit(json.dumps({"step2": communication()}))
    with pytest.raises(InputError) as error:
        read_communication(file(tmp_path, text, "communication.json"))
    assert message in str(error.value)


@needs_profiles
@pytest.mark.parametrize("rank", ["rank_0", "rank_1"])
def test_real_communication_adds_up(rank: str) -> None:
    groups = json.loads((ASCEND / rank / "communication.json").read_text())["step2"]
    found = read_communication(str(ASCEND / rank / "communication.json"))
    elapsed: dict[str, list[float]] = {}
    for group in groups.values():
        for name, each in group.items():
            if name != "Total Op Info":
                milliseconds = each["Communication Time Info"]["Elapse Time(ms)"]
                elapsed.setdefault(name.split("__")[0], []).append(milliseconds)
    assert {kind: total.count for kind, total in found.kinds.items()} == {k: len(v) for k, v in elapsed.items()}
    for kind, total in found.kinds.items():
        assert total.mean * 1e3 == pytest.approx(sum(elapsed[kind]) / len(elapsed[kind]))


# Chrome traces: the reader


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=6), values, max_size=4), max_size=6),
    st.sampled_from([1, 2, 3, 7, 64, 1 << 20]),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
@settings(max_examples=50)
def test_events_are_those_of_json_however_little_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, trace: list[Any], read: int, indent: int | None, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace"
    document = {"number": 12345, "fraction": 12.5, "small": 1e-07, "traceEvents": trace, "after": [2]}
    text = json.dumps(document, indent=indent, ensure_ascii=packed)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    beside: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "_READ", read)
        assert list(read_events(str(path), beside)) == trace
    assert beside == {"number": 12345, "fraction": "12.5", "small": "1e-07", "after": [2]}


def test_fractions_come_as_their_text(tmp_path: Path) -> None:
    path = file(tmp_path, '[{"ts": 1704161511420306.491, "dur": 1e3, "n": 7}]', "trace.json")
    assert list(read_events(path)) == [{"ts": "1704161511420306.491", "dur": "1e3", "n": 7}]


def test_every_trace_that_is_cut_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"a": 1, "traceEvents": [{"ph": "X", "ts": "1.5", "dur": 2}, {"name": "b"}], "c": [3.25]})
    for read in (1, 1 << 20):
        monkeypatch.setattr(events, "_READ", read)
        for end in range(len(text)):
            with pytest.raises(InputError) as error:
                list(read_events(file(tmp_path, text[:end], "trace.json")))
            assert ("is empty" if not end else "line 1: ") in str(error.value)
        assert len(list(read_events(file(tmp_path, text, "trace.json")))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", 'line 1: not JSON: "h" where "[" or "{" is expected'),
        ('[{"a": 1}\n{"b": 2}]', 'line 2: not JSON: "{" where "," or "]" is expected'),
        ('[{"a": 1},\n{"b": NaN}]', "line 2: NaN is not a number"),
        ('[{"a": 1},\n-Infinity]', "line 2: -Infinity is not a number"),
        ("[1]", "line 1: 1 is not an event"),
        ('[{"a" 1}]', "line 1: not JSON: expecting ':' delimiter"),
        ('{"a": 1}', "has no traceEvents"),
        ("{}", "has no traceEvents"),
        ('{"traceEvents": [], "traceEvents": []}', 'the key "traceEvents" appears twice'),
        ("{1: 2}", "line 1: 1 is not a key"),
        ("[] []", "line 1: more follows the end of the trace"),
    ],
)
def test_traces_that_are_not_json_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        list(read_events(file(tmp_path, text, "trace.json")))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"a": "\xff"}]', "byte 0xff is not UTF-8"),
        (gzip.compress(b"[" + b'{"a": 1},' * 1000, mtime=0)[:-20], "cannot be read: Compressed file ended"),
    ],
    ids=["not UTF-8", "packed and cut"],
)
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "trace.json").write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_events(str(tmp_path / "trace.json")))


# Chrome traces: what they tell


def trace(tmp_path: Path, found: Any, name: str = "trace_view.json") -> str:
    return file(tmp_path, json.dumps(found), name)


def lane(name: str, start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 9, "tid": 0, "ts": str(1700000000000000 + start), "dur": duration}


def task(name: str, start: float, duration: float, kind: str = "AI_CORE") -> dict[str, Any]:
    return lane(name, start, duration) | {"pid": 8, "args": {"Task Type": kind}}


ASCEND_TRACE = [
    {"ph": "M", "name": "process_name", "pid": 8, "args": {"name": "Ascend Hardware"}},
    {"ph": "s", "cat": "HostToDevice", "name": "HostToDevice1", "id": 1, "pid": 1, "tid": 1, "ts": "1700000000000000"},
    {"ph": "s", "cat": "async_npu", "name": "x", "id": 1, "pid": 1, "tid": 1, "ts": "1700000000000000"},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": "1700000000000000", "dur": 3},
    task("aclnnMm_MatMulCommon_MatMulV3", 0, 10),
    task("trans_Slice_7", 10, 5),
    task("MEMCPY_ASYNC", 16, 1, "Other"),
    task("wait", 17, 3, "EVENT_WAIT"),
    lane("hcom_receive__1_0", 12, 8),
    lane("hcom_allGather__1_1", 20, 4),
    lane("Computing", 0, 15),
    lane("Communication", 12, 12),
    lane("Communication(Not Overlapped)", 15, 9),
    lane("Free", 24, 6),
]


def test_an_ascend_trace_by_hand(tmp_path: Path) -> None:
    found = read_trace(trace(tmp_path, ASCEND_TRACE))
    assert (found.device, found.rank, found.host_launches) == ("Ascend", None, 1)
    times = found.times
    seen = (times.computing, times.exposed, times.overlapped, times.communication, times.free, times.receive)
    assert seen == pytest.approx((15e-6, 9e-6, 3e-6, 12e-6, 6e-6, 5e-6))  # of the receive, 12 to 15 is hidden
    assert times.total == pytest.approx(30e-6)
    assert {kind: total.count for kind, total in found.types.items()} == {"MatMulV3": 1, "Slice": 1}
    assert {kind: total.count for kind, total in found.collectives.items()} == {"hcom_receive": 1, "hcom_allGather": 1}


def kernel(name: str, start: float, duration: float, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration}


CUDA_TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 4},
    "traceEvents": [
        kernel("cudaLaunchKernel", 0.5, 1, "cuda_runtime"),
        kernel("cudaDeviceSynchronize", 2, 90, "cuda_runtime"),
        kernel("void at::native::vectorized_elementwise_kernel<4, F>(int, F)", 10, 10),
        kernel("flash_fwd_splitkv_kernel<P>", 15, 15),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 25, 15),
        kernel("ncclDevKernel_SendRecv(x)", 50, 10),
        kernel("Memcpy DtoD", 58.5, 3.25, "gpu_memcpy"),
        kernel("nccl:all_reduce", 25, 15, "gpu_user_annotation"),
    ],
}


def test_a_cuda_trace_by_hand(tmp_path: Path) -> None:
    found = read_trace(trace(tmp_path, CUDA_TRACE))
    assert (found.device, found.rank, found.host_launches) == ("CUDA", 3, 1)
    times = found.times
    assert times.computing == pytest.approx(23.25e-6)  # 10 to 30 and 58.5 to 61.75
    assert times.communication == pytest.approx(25e-6)
    assert times.overlapped == pytest.approx(6.5e-6)  # 25 to 30 and 58.5 to 60
    assert times.exposed == pytest.approx(18.5e-6)
    assert times.receive == pytest.approx(8.5e-6)
    assert times.free == pytest.approx(10e-6)  # 40 to 50
    assert not list(times.broken_identities())
    assert {kind: kernel_class(kind) for kind in found.types} == {
        "at::native::vectorized_elementwise_kernel": "other",
        "flash_fwd_splitkv_kernel": "attention",
        "Memcpy DtoD": "other",
    }


def cpu(name: str, start: int, duration: int, thread: int = 1) -> dict[str, Any]:
    return kernel(name, start, duration, "cpu_op") | {"tid": thread}


def test_without_a_device_the_outermost_operators_count(tmp_path: Path) -> None:
    found = read_trace(
        trace(
            tmp_path,
            [
                cpu("aten::linear", 0, 10),
                cpu("aten::addmm", 1, 8),  # within the one before
                cpu("aten::softmax", 10, 5),
                cpu("aten::add", 12, 8, thread=2),
                cpu("gloo:send", 30, 4),
            ],
        )
    )
    assert (found.device, found.host_launches) == ("CPU", None)
    assert set(found.types) == {"aten::linear", "aten::softmax", "aten::add"}
    assert found.times.computing == pytest.approx(20e-6)
    assert found.times.exposed == pytest.approx(4e-6)
    assert found.times.free == pytest.approx(10e-6)


def test_forwards_in_which_the_runner_slept_are_busy_and_told(tmp_path: Path) -> None:
    ranges = [
        kernel("3 FORWARD c0 s1", 10, 100, "user_annotation"),
        kernel("7 FORWARD c1 s1", 130, 60, "user_annotation"),
    ]
    few = [cpu("aten::empty", 0, 2), cpu("aten::copy_", 20, 3)]
    slept = read_trace(trace(tmp_path, [{**each, "tid": 1} for each in ranges] + few))
    assert slept.types["FORWARD (asleep: no kernels ran)"].count == 2
    assert slept.times.computing == pytest.approx(162e-6)  # with the operator beside them, without the one inside
    assert slept.times.free == pytest.approx(28e-6)
    awake = read_trace(trace(tmp_path, [*ranges, cpu("aten::mm", 15, 90), cpu("aten::mm", 130, 60)]))
    assert set(awake.types) == {"aten::mm"}
    assert awake.times.computing == pytest.approx(150e-6)


def test_a_step_goes_from_its_beginning_to_that_of_the_next(tmp_path: Path) -> None:
    steps = [kernel(f"ProfilerStep#{n}", 100 * n, 40, "user_annotation") for n in (1, 2)]
    found = [*steps, *(kernel("k", start, 5) for start in (50, 110, 190, 230))]
    path = trace(tmp_path, found)
    with pytest.raises(InputError, match="has several steps, which are not to be mixed\n  hint: pick one with --step"):
        read_trace(path)
    assert read_trace(path, "1").types["k"].count == 2
    assert read_trace(path, "2").types["k"].count == 1
    with pytest.raises(InputError, match="has no step 7"):
        read_trace(path, "7")
    idle = trace(tmp_path, [*steps, kernel("k", 230, 5)])
    with pytest.raises(InputError, match="has no kernels that take time in step 1\n  hint: one in which"):
        read_trace(idle, "1")
    with pytest.raises(InputError, match="has no step 7: it does not tell of steps"):
        read_trace(trace(tmp_path, found[2:]), "7")


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        ([], InputError, "has no kernels"),
        ([kernel("k", 1, 0)], InputError, "has no kernels that take time"),
        (
            [kernel("k", 1, 1), {"ph": "X", "cat": "kernel", "name": "k", "ts": 1}],
            InputError,
            "event 1: dur: is missing",
        ),
        ([kernel("k", 1, 1) | {"ts": "soon"}], InputError, 'event 0: ts: "soon" is not a time'),
        ([kernel("k", 1, 1) | {"dur": -1}], InputError, "event 0: dur: -1 is not a time"),
        ([kernel("k", 1, 1) | {"dur": True}], InputError, "event 0: dur: true is not a time"),
        ([kernel("k", 1, 1) | {"name": 3}], InputError, "event 0: name: 3 is not a name"),
        (ASCEND_TRACE[:-2] + ASCEND_TRACE[-1:], CheckFailed, "U1 Overlap Analysis: Computing + Communication"),
    ],
)
def test_broken_traces_are_refused(tmp_path: Path, found: Any, error: type[VppcError], message: str) -> None:
    with pytest.raises(error) as caught:
        read_trace(trace(tmp_path, found))
    assert message in str(caught.value)


@needs_profiles
@pytest.mark.parametrize("form", ["array", "object", "numbers", "packed"])
def test_a_real_trace_in_every_form(tmp_path: Path, form: str) -> None:
    """The lanes of its own analysis, added up by hand; without communication, all is compute or free."""
    text = (ASCEND / "trace_view.json").read_text()
    found = json.loads(text)
    path = tmp_path / "trace_view.json"
    if form == "object":
        found = {"traceEvents": found}
    if form == "numbers":
        for event in found:
            if "ts" in event:
                event["ts"] = float(event["ts"])
    path.write_bytes(gzip.compress(text.encode()) if form == "packed" else json.dumps(found).encode())
    seen = read_trace(str(path))
    lanes: dict[str, Decimal] = {}
    for event in json.loads(text, parse_float=Decimal):
        if event["ph"] == "X" and event["pid"] == 4376751100:
            lanes[event["name"]] = lanes.get(event["name"], Decimal(0)) + Decimal(event["dur"])
    assert set(lanes) == {"Computing", "Free"}
    close = 1e-4 if form == "numbers" else 1e-12  # a float keeps a quarter of a microsecond of such times
    assert seen.times.computing == pytest.approx(float(lanes["Computing"]) / 1e6, rel=close)
    assert seen.times.free == pytest.approx(float(lanes["Free"]) / 1e6, rel=close)
    assert seen.times.total == pytest.approx(0.011269917, rel=1e-4)
    assert (seen.host_launches, sum(total.count for total in seen.types.values())) == (274, 274)
    assert sum(total.seconds for total in seen.types.values()) == pytest.approx(seen.times.computing, rel=1e-6)


@pytest.mark.slow
def test_a_trace_that_torch_wrote_here(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    left = torch.ones(64, 64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            torch.mm(left, left)
    path = tmp_path / "run.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    (rank,) = read_profile(str(tmp_path)).ranks
    assert rank.types["aten::mm"].count == 5
    assert rank.times is not None
    assert 0.0 < rank.times.computing <= rank.times.total
    assert by_class(rank.types)["matmul"].count == 5


# Intervals


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda t: (t[0], t[0] + t[1])), max_size=8)


@given(spans, spans)
def test_intervals_are_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    def moments(intervals: list[tuple[int, int]]) -> set[int]:
        return {moment for start, end in intervals for moment in range(start, end)}

    assert moments(union(left)) == moments(left)
    assert length(union(left)) * SECOND == pytest.approx(len(moments(left)))
    assert overlap(union(left), union(right)) * SECOND == pytest.approx(len(moments(left) & moments(right)))


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1704161511420306.491", 1704161511420306491000),
        ("0.0000019", 1),
        ("7", 7000000),
        ("7.", 7000000),
        ("-1", None),
        ("1e3", None),
        ("nan", None),
        ("", None),
    ],
)
def test_decimal_microseconds(text: str, time: int | None) -> None:
    assert picoseconds(text) == time


# Folders


def test_the_rank_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rank in {"rank_3": 3, "rank12": 12, "7": 7, "Rank-4": 4, "run2": None, "out": None}.items():
        (tmp_path / name).mkdir()
        assert rank_of(tmp_path / name) == rank
    output = tmp_path / "host_12_20260101_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    assert rank_of(output) is None
    (output.parent / "profiler_info_0_before.json").touch()
    assert rank_of(output) is None
    (output.parent / "profiler_info_5.json").touch()
    assert rank_of(output) == 5
    monkeypatch.chdir(output)
    assert rank_of(Path(".")) == 5
    (tmp_path / "rank_6").symlink_to(output.parent.parent / "run2")
    assert rank_of(tmp_path / "rank_6") == 6


def test_a_profile_in_the_working_directory_has_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(tmp_path, kernel_table(*ROWS), "prefill/kernel_details.csv")
    monkeypatch.chdir(tmp_path / "prefill")
    assert [rank.name for rank in read_profile(".").ranks] == ["prefill"]


def test_in_the_folder_of_a_rank_the_number_of_its_device_is_no_rank(tmp_path: Path) -> None:
    file(tmp_path, f"{NEW}\n7,{ROW},50\n", "rank_3/step_trace_time.csv")
    file(tmp_path, kernel_table(*ROWS), "rank_3/kernel_details.csv")
    [only] = read_profile(str(tmp_path / "rank_3")).ranks
    assert (only.name, only.rank) == ("rank 3", 3)
    assert only.times is not None and only.times.launch_stall == pytest.approx(50e-6)
    file(tmp_path, f"{NEW}\n7,{ROW},50\n", "alone/step_trace_time.csv")
    assert [rank.name for rank in read_profile(str(tmp_path / "alone")).ranks] == ["rank 7"]


def two_ranks(tmp_path: Path) -> Path:
    file(tmp_path, f"{CLUSTER}\n{RANKS}{STAGE}", "cluster_step_trace_time.csv")
    file(tmp_path, f"{OLD}\n2,100,40,10,50,10,150,0,40\n", "rank_0/step_trace_time.csv")
    file(tmp_path, kernel_table(*ROWS), "rank_0/kernel_details.csv")
    file(tmp_path, json.dumps({"step2": communication()}), "rank_1/communication.json")
    return tmp_path


def test_a_folder_of_ranks_is_held_together(tmp_path: Path) -> None:
    first, second = read_profile(str(two_ranks(tmp_path))).ranks
    assert (first.name, first.rank, second.rank) == ("rank 0", 0, 1)
    assert first.times is not None
    assert second.times is not None
    assert (first.times.computing, second.times.computing) == pytest.approx((100e-6, 90e-6))
    assert set(first.types) == {"FusedInferAttentionScore", "Slice", "MatMulV3", "MemSet_7"}
    assert first.collectives["hcom_allGather"].count == 2
    assert set(second.collectives) == {"hcom_allGather", "hcom_allReduce", "hcom_receive"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "rank_0/step_trace_time.csv",
            f"{OLD}\n2,104,40,10,50,6,150,0,40\n",
            "U5 rank 0, Computing: is 100.00 us in",
        ),
        ("rank_0/kernel_details.csv", kernel_table("3" + ROWS[0][1:]), "U4 rank 0: kernel_details.csv of step 3"),
        (
            "rank_2/communication.json",
            json.dumps({"step3": communication()}),
            "U4 rank 2: is of step 3, but rank 0 of step 2",
        ),
    ],
)
def test_files_that_disagree_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    two_ranks(tmp_path)
    file(tmp_path, text, name)
    with pytest.raises(CheckFailed) as error:
        read_profile(str(tmp_path))
    assert message in str(error.value)


def test_a_trace_beside_a_step_trace_is_not_read_and_that_is_said(tmp_path: Path) -> None:
    file(tmp_path, "broken", "rank_0/trace_view.json")
    profile = read_profile(str(two_ranks(tmp_path)))
    assert "trace_view.json is not read: step_trace_time.csv tells the same" in profile.remarks[0]


def test_traces_of_several_ranks_in_one_folder(tmp_path: Path) -> None:
    """As torch's own handler and the runtime write them."""
    trace(tmp_path, [cpu("aten::mm", 0, 1)], "rank-0-tp-0.json")
    trace(tmp_path, [cpu("aten::mm", 0, 2)], "rank-0-tp-1.json")
    trace(tmp_path, [cpu("aten::mm", 0, 3)], "host_1.17.pt.trace.json")
    trace(tmp_path, CUDA_TRACE, "host_2.17.pt.trace.json")
    ranks = read_profile(str(tmp_path)).ranks
    assert [rank.name for rank in ranks] == ["rank 0", "rank 3", "host_1.17.pt.trace.json", "rank 0, tp rank 1"]


def test_step_traces_of_ranks_without_names_are_refused(tmp_path: Path) -> None:
    file(tmp_path, f"{OLD}\n{ROW}\n", "a_step_trace_time.csv")
    file(tmp_path, f"{OLD}\n{ROW}\n", "b_step_trace_time.csv")
    with pytest.raises(InputError, match="are of ranks that have no names"):
        read_profile(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "a,b\n1,2\n", "the columns a, b are of no profile that is known"),
        ("x.csv", "", "x.csv: is empty"),
        ("x.json", "{}", "has no steps\n  hint: communication.json, or another file of a profile"),
        ("x.json", '{"traceEvents": [', "ends too early"),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_profile(file(tmp_path, text, name))
    assert message in str(error.value)


def test_a_pipe_which_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, name in (("-", "stdin"), (str(tmp_path / "pipe"), str(tmp_path / "pipe"))):
        with pytest.raises(InputError, match=f"^{name}: is read twice, which no pipe can be\n  hint: name a file"):
            read_profile(path)


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no profile"):
        read_profile(str(tmp_path))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_profile(str(tmp_path / "nowhere"))


# The command


def test_the_tables_of_a_profile(tmp_path: Path) -> None:
    assert run(str(two_ranks(tmp_path))).output.replace(str(tmp_path), "..") == GOLDEN


GOLDEN = """\
(a) end to end, step 2
rank              compute    bubble  exposed comm  in receives     total  bubble ratio  overlap
---------------  --------  --------  ------------  -----------  --------  ------------  -------
rank 0           100.0 us  10.00 us      40.00 us          0 s  150.0 us          6.7%    20.0%
rank 1           90.00 us  20.00 us      60.00 us     30.00 us  170.0 us         11.8%     7.7%
longest: rank 1  90.00 us  20.00 us      60.00 us     30.00 us  170.0 us         11.8%     7.7%

exposed comm   Communication(Not Overlapped), what a rank waits in receives included
in receives    the profiler's column Bubble: time in hcom_receive*, which is not the paper's bubble
bubble         Free and, where the profiler tells it (Preparing), the launch stall
overlap        hidden communication over all communication

(b) compute by kernel class
rank        attention          slice         matmul          other  kernels  host launches
------  -------------  -------------  -------------  -------------  -------  -------------
rank 0  900.5 us in 1  10.25 us in 1  20.00 us in 1  5.000 us in 1        4        unknown

(c) bubble
rank        free  launch stall
------  --------  ------------
rank 0  10.00 us       unknown
rank 1  20.00 us       unknown

rank 0, kernels
type                      class      count     total      mean
------------------------  ---------  -----  --------  --------
FusedInferAttentionScore  attention      1  900.5 us  900.5 us
MatMulV3                  matmul         1  20.00 us  20.00 us
Slice                     slice          1  10.25 us  10.25 us
MemSet_7                  other          1  5.000 us  5.000 us

rank 0, communication
operator        count     total      mean  waiting in it
--------------  -----  --------  --------  -------------
hcom_allGather      2  100.0 us  50.00 us        unknown

rank 1, communication
operator        count     total      mean  waiting in it
--------------  -----  --------  --------  -------------
hcom_allGather      2  6.000 ms  3.000 ms       1.500 ms
hcom_allReduce      1  1.000 ms  1.000 ms            0 s
hcom_receive        1  500.0 us  500.0 us            0 s
"""


def test_json_has_the_keys_of_simulate(tmp_path: Path) -> None:
    shown = json.loads(run(str(two_ranks(tmp_path)), "--json").output)
    assert list(shown) == ["makespan", "ideal", "efficiency", "lower_bound", "ttft", "requests", "ranks", "remarks"]
    assert shown["makespan"] == pytest.approx(170e-6)
    first = shown["ranks"][0]
    assert first["rank"] == 0
    assert first["compute"] == pytest.approx(100e-6)
    assert first["bubble_ratio"] == pytest.approx(10 / 150)
    assert first["launch_stall"] is None
    assert first["launches"] == 4
    assert first["kernels"]["attention"] == {
        "count": 1,
        "seconds": pytest.approx(900.5e-6),
        "mean": pytest.approx(900.5e-6),
    }
    assert shown["ranks"][1]["exposed_transfer"] == pytest.approx(30e-6)
    assert shown["ranks"][1]["communication"]["hcom_allGather"]["wait"] == pytest.approx(1.5e-3)


@needs_profiles
def test_all_real_profiles_are_read() -> None:
    files = [path for path in ASCEND.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in (ASCEND, ASCEND / "rank_0", ASCEND / "rank_1", *files):
        result = run(str(path))
        assert result.exit_code == 0, (path, result.exception)
        json.loads(run(str(path), "--json").output)
    whole = run(str(ASCEND)).output
    assert "longest: rank 11  79.88 ms  82.66 ms      231.7 ms     195.5 ms  394.2 ms         21.0%     3.3%" in whole
    assert "line 17 has lost a value (31 of 32), so its FlashAttentionScore is left out" in whole


# Calibration from kernel tables


COST = CostModel((LayerCost(1, 2e-4, 3e-7, 6e-11, 4e-9, collective_fixed=5e-5, collective_per_token=2e-8),))


def profiled(schedule: Schedule, rank: int, seed: int) -> Iterator[str]:
    """A kernel table of a rank: each layer has kernels before and after attention, and a collective."""
    draw = random.Random(seed)
    now = 1_700_000_000_000_000.0
    kind = COST.layers[0]

    def row(name: str, seconds: float, core: str = "AI_CORE") -> str:
        nonlocal now
        microseconds = seconds * 1e6 * draw.gauss(1.0, 0.01)
        line = f"2,{name},{name.partition('__')[0]},{core},{now:.2f}\t,{microseconds:.4f}\t,0,NO,N/A"
        now += microseconds
        return line

    yield KERNELS
    for op, chunk, stage, *_ in schedule.programs[rank].rows():
        if op != FORWARD:
            continue
        parts = schedule.chunks[chunk].parts
        first, last = schedule.stages[stage].layers
        yield row("hcom_receive__1_0", 3e-3, "HCCL")
        for _ in range(first, last):
            attention = layer_seconds(CostModel((LayerCost(1, per_pair=kind.per_pair),)), 0, 1, parts)
            tokens = sum(part.tokens for part in parts)
            rest = layer_seconds(
                CostModel((LayerCost(1, kind.fixed, kind.per_token, 0.0, kind.per_prefix_token),)), 0, 1, parts
            )
            yield row("Slice", 0.3 * rest)
            yield row("FusedInferAttentionScore", attention)
            yield row("MatMulV3", 0.7 * rest)
            yield row("hcom_allReduce__2_0", kind.collective_fixed + kind.collective_per_token * tokens, "HCCL")


def test_a_kernel_table_and_its_schedule_give_costs(tmp_path: Path) -> None:
    model = CostModel((LayerCost(12, 1e-3),))
    schedule = compiled("vpp-async", (131072, 50000, 3000), 2, model, chunk_size=12288)
    plan = file(tmp_path, "".join(schedule_text(schedule)), "plan.json")
    file(tmp_path, "".join(f"{line}\n" for line in profiled(schedule, 1, 5)), "rank_1/kernel_details.csv")
    measured = gather([str(tmp_path / "rank_1")], Reading(), schedule_file=plan)
    ops = sum(1 for op, *_ in schedule.programs[1].rows() if op == FORWARD)
    assert len(measured.forwards) == ops * 2  # of three layers a stage, without the last
    found = calibrate(measured).cost.layers[0]
    for name in ("per_token", "per_pair", "fixed", "collective_fixed", "collective_per_token"):
        assert getattr(found, name) == pytest.approx(getattr(COST.layers[0], name), rel=0.05), name
    again = gather([str(tmp_path / "rank_1" / "kernel_details.csv")], Reading(), schedule_file=plan, rank=1)
    assert again.forwards == measured.forwards


def test_of_a_kernel_table_with_several_steps_one_is_taken(tmp_path: Path) -> None:
    schedule = compiled("cpp", (4096,), 2, CostModel((LayerCost(12, 1e-3),)), chunk_size=1024)
    plan = file(tmp_path, "".join(schedule_text(schedule)), "plan.json")
    header, *rows = profiled(schedule, 0, 5)
    alone = file(tmp_path, "\n".join([header, *rows]), "alone/kernel_details.csv")
    both = [header, *rows, *(f"3{row[1:]}" for row in rows)]  # each row begins with its step, 2
    given = [file(tmp_path, "\n".join(both), "rank_0/kernel_details.csv"), "--schedule", plan, "--json"]
    with pytest.raises(InputError, match=r"is of step 3, but line 2 of 2.*\n  hint: pick one with --step"):
        gather(given[:1], Reading(), schedule_file=plan)
    for step in ("2", "3"):
        found = gather(given[:1], Reading(), schedule_file=plan, step=step)
        (expected,) = [gather([alone], Reading(), schedule_file=plan, rank=0)]
        assert [each.seconds for each in found.forwards] == [each.seconds for each in expected.forwards]
    fits = json.loads(CliRunner().invoke(vppc, ["calibrate", *given, "--step", "3"]).output)["fits"]
    assert fits[0]["count"] == len(expected.forwards)


def test_of_a_layer_only_exposed_collectives_count(tmp_path: Path) -> None:
    """Two layers, of which the first ends with the attention of the second; point-to-point is no collective."""
    schedule = compiled("cpp", (64,), 1, CostModel((LayerCost(2, 1e-3),)), chunk_size=64)
    plan = file(tmp_path, "".join(schedule_text(schedule)), "plan.json")
    rows = (
        ("Slice", "Slice", "AI_CORE", 0, 5),
        ("FusedInferAttentionScore", "FusedInferAttentionScore", "AI_CORE", 10, 20),
        ("MatMulV3", "MatMulV3", "AI_CORE", 30, 10),
        ("hcom_allReduce__1_0", "hcom_allReduce_", "HCCL", 35, 25),  # 40 to 60 is exposed
        ("hcom_send__1_1", "hcom_send_", "HCCL", 60, 30),
        ("FusedInferAttentionScore", "FusedInferAttentionScore", "AI_CORE", 95, 20),
    )
    text = [f"2,{name},{kind},{core},{start},{took},0,NO,N/A" for name, kind, core, start, took in rows]
    file(tmp_path, kernel_table(*text), "rank_0/kernel_details.csv")
    (only,) = gather([str(tmp_path / "rank_0")], Reading(), schedule_file=plan).forwards
    assert (only.tokens, only.layers) == (64, (1,))
    assert only.seconds == pytest.approx(30e-6)
    assert only.collective == pytest.approx(20e-6)
    assert only.place.endswith("kernel_details.csv: line 3")


def test_a_kernel_table_must_be_of_the_schedule(tmp_path: Path) -> None:
    schedule = compiled("cpp", (4096,), 2, CostModel((LayerCost(12, 1e-3),)), chunk_size=1024)
    plan = file(tmp_path, "".join(schedule_text(schedule)), "plan.json")
    file(tmp_path, kernel_table(*ROWS), "rank_0/kernel_details.csv")
    file(tmp_path, kernel_table(*ROWS), "other/kernel_details.csv")
    with pytest.raises(
        CheckFailed, match="has 1 of FusedInferAttentionScore, but rank 0 of the schedule runs 24 layers"
    ):
        gather([str(tmp_path / "rank_0")], Reading(), schedule_file=plan)
    with pytest.raises(InputError, match="the schedule that was profiled is needed\n  hint: --schedule FILE"):
        gather([str(tmp_path / "rank_0")], Reading())
    with pytest.raises(InputError, match="is of an unknown rank"):
        gather([str(tmp_path / "other")], Reading(), schedule_file=plan)
    with pytest.raises(InputError, match="is of rank 2, but the schedule has 2"):
        gather([str(tmp_path / "other")], Reading(), schedule_file=plan, rank=2)
