"""Every file that the compiler's commands read, small and right, with commands that read it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.edits import by_hand
from tests.fuzzing import Target, commands
from tests.journals import journal_lines
from tests.plans import EXAMPLES, deepseek, paper
from vppc.analysis.timing import simulate
from vppc.compiler import paper_cost
from vppc.costs.document import cost_json, parse_cost
from vppc.costs.model import OpCosts
from vppc.ir.assembly import to_assembly
from vppc.ir.document import digest, schedule_text, segment_text
from vppc.ir.instruction import WIDTH, Program
from vppc.ir.schedule import Schedule
from vppc.ir.segment import Continuation, Segment
from vppc.ir.torch_csv import to_torch_csv


def text(pieces: Any) -> bytes:
    return "".join(pieces).encode()


PLAN = paper("vpp-async", (3, 2), transfer=0.5)
SMALL = text(schedule_text(paper("vpp", 1, 1)))
COST = (EXAMPLES / "costs" / "deepseek-v3.1-910c-tp8.json").read_bytes()
REQUESTS = [
    "compile",
    "--pp",
    "2",
    "--cost",
    "DIR/cost.json",
    "--chunk-size",
    "2147483647",
    "-o",
    "DIR/out.json",
    "--requests",
]


def seeds_of_schedules() -> tuple[bytes, ...]:
    packed = text(schedule_text(deepseek("vpp-packed", (40000, 9000), 16384)))
    return (
        SMALL,
        text(schedule_text(PLAN)),
        text(schedule_text(replace(by_hand(), extra={"cost": cost_json(paper_cost(4, 1.0, 0.5))}))),
        packed,
    )


def segments() -> tuple[Mapping[str, bytes], bytes]:
    """A schedule without its second half, and the segment that is this half."""
    whole = replace(by_hand(), extra={})
    half = [len(program) // 2 for program in whole.programs]
    first = replace(
        whole,
        programs=tuple(
            Program(each.rank, each.buffers, each.code[: end * WIDTH])
            for each, end in zip(whole.programs, half, strict=True)
        ),
    )
    head = text(schedule_text(first))
    rest = tuple(
        Continuation(each.rank, end, each.code[end * WIDTH :]) for each, end in zip(whole.programs, half, strict=True)
    )
    return {"head.json": head}, text(segment_text(Segment(1, digest(head), programs=rest)))


def journal(schedule: Schedule) -> tuple[Mapping[str, bytes], bytes]:
    """A journal's files but that of rank 0, and that."""
    data = text(schedule_text(schedule))
    timing = simulate(schedule, OpCosts.of(schedule, parse_cost(schedule.extra["cost"])))

    def lines(rank: int) -> bytes:
        header = {"format": "vppc.journal", "version": 1, "rank": rank, "tp_rank": 0, "digest": digest(data)}
        every = [{**header, "clock_offset": 0.0, "clock_uncertainty": 1e-6}, *journal_lines(schedule, timing, rank)]
        return b"".join(json.dumps(each).encode() + b"\n" for each in every)

    return {"schedule.json": data, "rank-1.jsonl": lines(1)}, lines(0)


def events(*kinds: str) -> bytes:
    """A trace with some events of every kind that is told apart."""
    spans = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10.5, "dur": 4, "pid": 0, "tid": 7, "args": {"stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 12, "dur": 9.25, "pid": 0, "tid": 20},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 9, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 8, "dur": 3, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "gloo:send", "ts": 14, "dur": 3, "pid": 1, "tid": 2},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1, "dur": 90, "pid": 1, "tid": 1},
        {"ph": "X", "name": "MatMulV2", "ts": "20.1", "dur": 5, "pid": 3, "tid": 1, "args": {"Task Type": "AI_CORE"}},
        {"ph": "X", "name": "hcom_receive__1_2", "ts": "26.5", "dur": 5, "pid": 3, "tid": 2},
        {"ph": "s", "cat": "HostToDevice", "name": "HostToDevice", "ts": "19", "id": 4, "pid": 3, "tid": 1},
    ]
    chosen = [each for each in spans if not kinds or each.get("cat", "ascend") in kinds]
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 1}, "traceEvents": chosen}).encode()


STEP_TRACE = (
    b"Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    b"Communication(Not Overlapped and Exclude Receive),Preparing\n"
    b"0,2,700.5,100.25,20,120.25,200,940.75,60,40.25,3\n"
)
KERNELS = (
    b"Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    b"Wait Time(us),Block Dim,Mix Block Dim\n"
    b"2,0,1,1,2,MatMulV2_1,MatMulV2,static,AI_CORE,\t100.5,20.25,0,24,0\n"
    b"2,0,1,2,2,hcom_receive__1,hcom_receive_,static,COMMUNICATION,\t130.5,9.5,1,0,0\n"
)
COMMUNICATION = json.dumps(
    {
        "step2": {
            "collective": {
                "hcom_allReduce__1@77": {
                    "Communication Time Info": {
                        "Start Timestamp(us)": 1.5,
                        "Elapse Time(ms)": 0.5,
                        "Transit Time(ms)": 0.25,
                        "Wait Time(ms)": 0.125,
                        "Synchronization Time(ms)": 0.125,
                        "Idle Time(ms)": 0.125,
                    },
                    "Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": 3.5, "Transit Time(ms)": 0.25}},
                }
            },
            "p2p": {},
        }
    }
).encode()
CONFIG = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
DENSE = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "intermediate_size": 128,
    "tie_word_embeddings": True,
    "dtype": "float16",
}
FORWARDS = b"chunk_tokens,prefix_tokens,seconds,layers\n" + b"".join(
    f"{tokens},{prefix},{1e-3 + tokens * 1e-6 + tokens * prefix * 1e-10},4\n".encode()
    for tokens in (512, 1024, 2048, 4096)
    for prefix in (0, 4096, 16384)
)
TRANSFERS = b"tokens,seconds\n1024,0.001\n2048,0.0015\n4096,0.0026\n"
CONTEXT = b"isl,step,latency,batch_size,tp_size\n" + b"".join(
    f"{tokens},{prefix},{0.5 + tokens * 1e-3 + tokens * prefix * 1e-7},1,8\n".encode()
    for tokens in (512, 1024, 2048, 4096)
    for prefix in (0, 4096)
)

RANK = {
    "rank": 0,
    "compute": 3.0,
    "collective": 0.5,
    "exposed_transfer": 0.25,
    "hidden_transfer": 0.0,
    "launch_stall": 0.0,
    "free": 0.25,
    "bubble_ratio": 0.0625,
}
PRICE = {"makespan": 4.0, "efficiency": 0.75, "lower_bound": 3.5, "ranks": [RANK]}
MADE = {"compiler": "vppc 0.1.0", "command": "vppc compare"}


def comparison() -> bytes:
    """What compare prints: two queues of one length, at sizes of which one is refused."""
    outcomes = [
        {"chunk_size": 1024, "chunks": 3, "throughput": 768.0, **PRICE},
        {"chunk_size": 8, "refused": "no room"},
    ]
    rows = [
        {
            "cost": "c",
            "queue": queue,
            "tokens": 2048,
            "prompts": 2,
            "strategy": "cpp",
            "contestant": "cpp",
            "best_chunk_size": 1024,
            "may_be_better": None,
            "outcomes": outcomes,
        }
        for queue in ("2,048 + 1,024", "2,048 + 512")
    ]
    return json.dumps({"pp": 1, "rows": rows, "provenance": MADE}).encode()


def tuning() -> bytes:
    """What tune prints."""
    found = {
        "chunks": [1024, 1024],
        "layers": [[0, 2], [2, 4]],
        "bound_of_any_chunking": 3.5,
        "gap_to_any_chunking": 0.1,
    }
    placements = [{"placement": placement, "vp": vp, **found, **PRICE} for placement, vp in (("v", 2), ("straight", 1))]
    return json.dumps({"pp": 1, "placements": placements, "advice": ["fold it"], "provenance": MADE}).encode()


def shadow() -> bytes:
    """What vLLM on one rank writes in shadow mode."""
    header = {"format": "vppc.shadow", "version": 1, "model": "m", "model_layers": 4, "layers": [0, 4]}
    lines = [{**header, "rank": 0, "pp": 1, "chunk_size": 2048}]
    now = 100.0
    for index, tokens in enumerate((256, 512, 1024, 2048, 300, 700, 1500, 900)):
        took = 1e-3 + 1e-6 * tokens + 1e-10 * tokens**2
        lines += [
            {"start": now, "end": now + took, "parts": [[f"{index}-a", 0, tokens, tokens]]},
            {"start": now + took, "end": now + took + 1e-3, "parts": [[f"{index}-a", tokens, 1, tokens]]},
        ]
        now += 2 * took + 1e-3
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


STUDIES = {"study": Target("study.json", (comparison(), tuning()), commands(["report", "FILE", "-o", "DIR/out.html"]))}

_HEAD, _SEGMENT = segments()
_BESIDE, _JOURNAL = journal(PLAN)

TARGETS: Mapping[str, Target] = {
    "schedule": Target(
        "plan.json",
        seeds_of_schedules(),
        commands(
            ["verify", "FILE", "--json"],
            ["simulate", "FILE", "--json"],
            ["show", "FILE", "--width", "80"],
            ["convert", "FILE", "--to", "asm"],
        ),
    ),
    "pictures": Target(
        "plan.json",
        (SMALL, text(schedule_text(PLAN))),
        commands(
            ["explain", "FILE"],
            ["plot", "FILE", "-o", "DIR/out.html"],
            ["trace", "FILE", "-o", "DIR/out.json"],
            ["graph", "FILE", "--format", "graphml"],
            ["convert", "FILE", "--to", "torch-csv"],
        ),
    ),
    "segment": Target("more.json", (_SEGMENT,), commands(["verify", "DIR/head.json", "FILE", "--json"]), _HEAD),
    "assembly": Target(
        "plan.asm",
        (text(to_assembly(PLAN)), text(to_assembly(by_hand()))),
        commands(["convert", "FILE", "--to", "json"]),
    ),
    "torch-csv": Target(
        "plan.csv",
        (text(to_torch_csv(PLAN)), text(to_torch_csv(PLAN, compute_only=True))),
        commands(["convert", "FILE", "--to", "json"]),
    ),
    "cost": Target(
        "cost.json",
        (COST, (EXAMPLES / "costs" / "deepseek-v3.1-910c-tp8-comm.json").read_bytes()),
        commands(["compile", "--pp", "2", "--tokens", "40000", "--cost", "FILE", "-o", "DIR/out.json"]),
    ),
    "requests": Target(
        "requests",
        (
            b'[{"id": "a", "prompt_tokens": 9000, "cached_tokens": 100, "arrival": 0.5}, {"prompt_tokens": 700}]',
            b'{"requests": [{"prompt_tokens": 5000}]}',
        ),
        commands([*REQUESTS, "FILE"]),
        {"cost.json": COST},
    ),
    "requests, lines": Target(
        "requests.jsonl",
        (b'{"id": "a", "prompt_tokens": 9000, "cached_tokens": 100, "arrival": 0.5}\n\n{"prompt_tokens": 700}\n',),
        commands([*REQUESTS, "FILE"]),
        {"cost.json": COST},
    ),
    "requests, Mooncake": Target(
        "requests.jsonl",
        (
            b'{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
            b'{"timestamp": 250.5, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 9]}\n',
        ),
        commands([*REQUESTS, "FILE", "--prefix-hits"], [*REQUESTS, "FILE"]),
        {"cost.json": COST},
    ),
    "requests, Azure": Target(
        "requests.csv",
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
            b"2023-11-16 18:15:50+02:00,4808,10\n",
        ),
        commands([*REQUESTS, "FILE"]),
        {"cost.json": COST},
    ),
    "model config": Target(
        "config.json",
        tuple(json.dumps(each).encode() for each in (CONFIG, DENSE)),
        commands(["model", "FILE"], ["model", "FILE", "--device", "h100", "-o", "DIR/cost.json"]),
    ),
    "journal": Target(
        "rank-0.jsonl", (_JOURNAL,), commands(["profile", "DIR", "--json"], ["calibrate", "DIR"]), _BESIDE
    ),
    "journal's schedule": Target(
        "schedule.json",
        (_BESIDE["schedule.json"],),
        commands(["profile", "DIR"]),
        {**_BESIDE, "rank-0.jsonl": _JOURNAL},
    ),
    "shadow": Target("rank-0.jsonl", (shadow(),), commands(["shadow", "DIR"])),
    "step trace": Target("step_trace_time.csv", (STEP_TRACE,), commands(["profile", "FILE"])),
    "kernels": Target(
        "kernel_details.csv",
        (KERNELS,),
        commands(["profile", "FILE"], ["calibrate", "FILE", "--schedule", "DIR/plan.json", "--rank", "0"]),
        {"plan.json": SMALL},
    ),
    "communication": Target("communication.json", (COMMUNICATION,), commands(["profile", "FILE"])),
    "trace": Target(
        "trace_view.json",
        (events(), events("kernel", "cuda_runtime"), events("cpu_op", "user_annotation"), events("ascend")),
        commands(["profile", "FILE"]),
    ),
    "packed trace": Target(
        "x.pt.trace.json.gz", (gzip.compress(events("kernel"), mtime=0),), commands(["profile", "FILE"])
    ),
    "measurements": Target("times.csv", (FORWARDS, TRANSFERS, CONTEXT), commands(["calibrate", "FILE"])),
    **(STUDIES if find_spec("bokeh") else {}),  # charts need it
}


def folder_of(target: Target, base: Path) -> Path:
    """A folder for the files of a target."""
    folder = base / target.name.replace(".", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
