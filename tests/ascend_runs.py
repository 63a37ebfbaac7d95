"""What runs in vLLM's environment on the stand-ins for torch_npu and vLLM-Ascend, for tests in the main one.

``python tests/ascend_runs.py FOLDER`` does what ``FOLDER/job`` says, a :class:`Job`. vLLM is imported once, in the
process that all others are forked from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from vllm_runs import ENVIRONMENT, FORK, ROOT, Made, forked, generate

if TYPE_CHECKING:
    from token_runs import Case

STANDINS = ROOT / "tests" / "standins"
LOOP = ("--runner", "vllm", "--timeout", "60", "--device", "npu")


class Loop(NamedTuple):
    """A schedule to run in our own loop, on ``pp`` ranks of ``tp`` processes."""

    case: Case
    pp: int
    tp: int


class Served(NamedTuple):
    """A folded server's workers to run on ``pp`` ranks of ``tp`` processes, with these options of vLLM's engine."""

    pp: int
    tp: int
    options: Mapping[str, Any]


class Job(NamedTuple):
    """Checkpoint folder of all that is to run; the server gets the ``prompts``, the scheduler prompts of the lengths
    ``scheduled``, in turn with each of the ``sections``; ``refused`` are options of vLLM's that ours refuse."""

    model: str
    loops: Sequence[Loop]
    served: Served
    prompts: Sequence[Sequence[int]]
    scheduled: Sequence[int]
    sections: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]


class Found(NamedTuple):
    """Of each loop the tokens by request; of the server what it made of each prompt, and what vLLM-Ascend noted of its
    forwards in each process; of each section the batches; of each refusal the message, and last what our own loop says
    on CPUs."""

    loops: list[dict[int, list[int]]]
    served: list[Made]
    notes: list[list[dict[str, Any]]]
    batches: list[list[dict[int, int]]]
    refused: list[str]


def do(folder: Path, job: Job) -> Found:
    """Run a job in vLLM's environment."""
    (folder / "notes").mkdir(parents=True)
    loops = [(tuple(each.case), each.pp, each.tp) for each in job.loops]
    torch.save(tuple(job._replace(loops=loops, served=tuple(job.served))), folder / "job")
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", STANDINS)))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "STANDIN_NPUS": "4",
        "STANDIN_NOTES": str(folder / "notes"),
        # as in other tests of vLLM's: one process less, nothing compiled
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    done = subprocess.run(
        [ENVIRONMENT / "bin" / "python", __file__, str(folder)],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = torch.load(folder / "found")
    notes = [list(map(json.loads, each.read_text().splitlines())) for each in (folder / "notes").iterdir()]
    return Found(found[0], [Made(*made) for made in found[1]], notes, *found[2:])


def main(folder: Path) -> None:
    from vllm.platforms import current_platform

    from runtime.runners.vllm import require_vllm

    assert current_platform.device_name == "npu"
    require_vllm()
    from vllm import LLM  # noqa: F401
    from vllm_ascend.worker import worker  # noqa: F401

    job = Job(*torch.load(folder / "job"))
    served = Served(*job.served)
    loops = [run_loop(folder, job.model, *each) for each in job.loops]
    made = forked(folder, generate, job.model, job.prompts, engine_options(served), folder / "made")
    batches = [run_batches(job.model, job.scheduled, section) for section in job.sections]
    refused = [*(refusal(job.model, each) for each in job.refused), on_cpus(folder, job.model, job.loops[0])]
    torch.save((loops, made, batches, refused), folder / "found")


@contextmanager
def npu() -> Iterator[None]:
    """The pretended NPU of this process, whose tensors are the CPU's."""
    from runtime.devices import npu as module

    open_npu = module.open_npu

    def on_cpu(local_rank: int) -> Any:
        return replace(open_npu(local_rank), torch_device=torch.device("cpu"))

    with mock.patch.object(module, "open_npu", on_cpu):
        yield


def run_loop(folder: Path, model: str, case: Sequence[Any], pp: int, tp: int) -> dict[int, list[int]]:
    from worlds import World, succeeded

    given = (case, folder / "loop", [*LOOP, "--tp", str(tp), "--model", model])
    succeeded(World(folder, pp * tp, loop, lambda process: given, context=FORK).ended())
    ((tokens, _),) = torch.load(folder / "loop")
    found: dict[int, list[int]] = tokens
    return found


def loop(case: Sequence[Any], results: Path, options: Sequence[str]) -> None:
    """A process of our own loop; every operation is a kernel, and the pretended device judges their order."""
    from token_runs import Case, run_cases
    from vllm_runs import on_vllm

    del os.environ["STANDIN_NOTES"]  # they are of the server
    with npu():
        import torch_npu
        from kernels import Kernels

        torch_npu.npu.machine.lazy = True
        with Kernels(torch_npu.npu.machine):
            run_cases([Case(*case)], results, options, on_vllm)


def on_cpus(folder: Path, model: str, loop: Sequence[Any]) -> str:
    """What the first process says of a run that asks for CPUs."""
    from worlds import World

    from runtime.__main__ import main as runtime_main

    (schedule, *_), pp, _ = loop
    given = ([schedule, "--runner", "vllm", "--device", "cpu", "--timeout", "60", "--model", model],)
    return World(folder, pp, runtime_main, lambda process: given, context=FORK).ended().err[0]


def engine_options(served: Served) -> dict[str, Any]:
    return {
        "distributed_executor_backend": "mp",
        "pipeline_parallel_size": served.pp,
        "tensor_parallel_size": served.tp,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 16,
        **served.options,
    }


def refusal(model: str, options: Mapping[str, Any]) -> str:
    """What ours says to these options, before anything is loaded."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.abstract import Executor

    from vppc.errors import InputError

    given = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "async_scheduling": False,
        **engine_options(Served(2, 1, options)),
    }
    try:
        Executor.get_class(EngineArgs(model=model, **given).create_engine_config())
    except InputError as error:
        return str(error)
    return ""


def run_batches(model: str, prompts: Sequence[int], section: Mapping[str, Any]) -> list[dict[int, int]]:
    """The batches that the scheduler for the older vLLM makes when only its own question is asked."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm_runs import schedule

    from runtime.vllm_plugin.scheduler import FoldScheduler

    with mock.patch.object(FoldScheduler, "_reserve_prefill_lookahead", Scheduler._reserve_prefill_lookahead):
        return schedule(model, prompts, 64, section)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
