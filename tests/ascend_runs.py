"""What runs in vLLM's environment on the stand-ins for torch_npu and vLLM-Ascend, for tests in the main one.

``python tests/ascend_runs.py FOLDER`` does what ``FOLDER/job`` says, a :class:`Job`. vLLM is imported once, in the
process that all others are forked from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from vllm_runs import ENVIRONMENT, FORK, ROOT, TOKENS, Made, forked, generate

if TYPE_CHECKING:
    from token_runs import Case

STANDINS = ROOT / "tests" / "standins"
MOST_SECONDS = 200
LOOP = ("--runner", "vllm", "--timeout", "200", "--device", "npu")


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
    ``scheduled``, in turn with each of the ``sections``; ``refused`` are options of vLLM's that ours refuse. Of two
    servers that are replicas of each other each gets its part of the prompts, by index, one round after another. A
    ``producer`` prefills the prompts for a server without a pipeline, over Mooncake."""

    model: str
    loops: Sequence[Loop]
    served: Served
    prompts: Sequence[Sequence[int]]
    scheduled: Sequence[int]
    sections: Sequence[Mapping[str, Any]]
    refused: Sequence[Mapping[str, Any]]
    replicas: Served
    rounds: Sequence[Sequence[Sequence[int]]]
    producer: Served


class Found(NamedTuple):
    """Of each loop the tokens by request; of the server what it made of each prompt, and what vLLM-Ascend noted of its
    forwards in each process; of each section the batches; of each refusal the message, and last what our own loop says
    on CPUs; of each replica and round the tokens of each prompt, and of each prompt what was made of it where it
    was fetched; at last what replicas noted."""

    loops: list[dict[int, list[int]]]
    served: list[Made]
    notes: list[list[dict[str, Any]]]
    batches: list[list[dict[int, int]]]
    refused: list[str]
    answers: list[list[list[list[int]]]]
    fetched: list[list[int]]
    shared: list[list[dict[str, Any]]]


def do(folder: Path, job: Job) -> Found:
    """Run a job in vLLM's environment."""
    for name in ("notes", "shared"):
        (folder / name).mkdir(parents=True)
    loops = [(tuple(each.case), each.pp, each.tp) for each in job.loops]
    torch.save(
        tuple(
            job._replace(
                loops=loops, served=tuple(job.served), replicas=tuple(job.replicas), producer=tuple(job.producer)
            )
        ),
        folder / "job",
    )
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
    notes, shared = (
        [list(map(json.loads, each.read_text().splitlines())) for each in (folder / name).iterdir()]
        for name in ("notes", "shared")
    )
    return Found(found[0], [Made(*made) for made in found[1]], notes, *found[2:], shared)


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
    answers = run_replicas(folder, job.model, Served(*job.replicas), job.prompts, job.rounds)
    fetched = run_transfer(folder, job.model, Served(*job.producer), job.prompts)
    torch.save((loops, made, batches, refused, answers, fetched), folder / "found")


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


def run_transfer(folder: Path, model: str, served: Served, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """What a server without a pipeline makes of prompts that a folded one has prefilled."""
    del os.environ["STANDIN_NOTES"]  # they are of others
    options = engine_options(served)
    transfer = {**options.pop("transfer"), "kv_port": 20000 + os.getpid() % 10000}
    given = (folder, model, prompts)
    processes = [
        FORK.Process(target=produce, args=(*given, {**options, "kv_transfer_config": transfer})),
        FORK.Process(target=consume, args=(*given, {"kv_transfer_config": {**transfer, "kv_role": "kv_consumer"}})),
    ]
    together(processes)
    fetched: list[list[int]] = torch.load(folder / "fetched")
    return fetched


def together(processes: Sequence[Any]) -> None:
    """Run the processes; none is left."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(MOST_SECONDS)
    hang = [process for process in processes if process.is_alive()]
    for process in hang:
        process.kill()
    if hang or any(process.exitcode for process in processes):
        sys.exit(f"{len(hang)} of {len(processes)} hang, exit codes {[process.exitcode for process in processes]}")


def engine_of(model: str, options: Mapping[str, Any]) -> Any:
    from vllm import LLM

    usual = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "max_model_len": 4096}
    return LLM(model=model, **{**usual, "enable_prefix_caching": False, "async_scheduling": False, **options})


def answers_of(engine: Any, prompts: Sequence[Sequence[int]], tokens: int, params: Sequence[Any]) -> list[Any]:
    from vllm import SamplingParams

    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    sampling = [
        SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False,
            extra_args={"kv_transfer_params": each} if each else None,
        )
        for each in params
    ]  # fmt: skip
    answers: list[Any] = engine.generate(given, sampling, use_tqdm=False)
    return answers


def produce(folder: Path, model: str, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]) -> None:
    """Prefill, say where it is, and wait until all of it has been fetched from every stage."""
    llm = engine_of(model, options)
    params = [{"do_remote_decode": True}] * len(prompts)
    told = [answer.kv_transfer_params for answer in answers_of(llm, prompts, 1, params)]
    torch.save(told, folder / "told.part")
    (folder / "told.part").rename(folder / "told")
    core = llm.llm_engine.engine_core.engine_core
    while core.scheduler.has_requests() or core.batch_queue:
        llm.llm_engine.step()
        time.sleep(0.01)


def consume(folder: Path, model: str, prompts: Sequence[Sequence[int]], options: Mapping[str, Any]) -> None:
    """Fetch, and decode."""
    llm = engine_of(model, options)
    while not (folder / "told").exists():
        time.sleep(0.05)
    answers = answers_of(llm, prompts, TOKENS, torch.load(folder / "told"))
    torch.save([list(answer.outputs[0].token_ids) for answer in answers], folder / "fetched")


def run_replicas(
    folder: Path,
    model: str,
    served: Served,
    prompts: Sequence[Sequence[int]],
    rounds: Sequence[Sequence[Sequence[int]]],
) -> list[list[list[list[int]]]]:
    from vllm.utils.network_utils import get_open_port

    port = get_open_port()
    options = engine_options(served)
    processes = [
        FORK.Process(
            target=replica, args=(folder, port, number, model, options, [[prompts[i] for i in e] for e in mine])
        )
        for number, mine in enumerate(rounds)
    ]
    together(processes)
    return [torch.load(folder / f"replica-{number}") for number in range(len(rounds))]


def replica(
    folder: Path,
    port: int,
    number: int,
    model: str,
    options: Mapping[str, Any],
    rounds: Sequence[Sequence[Sequence[int]]],
) -> None:
    """A server that is the ``number``-th of two replicas, with an engine in a process of its own."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_DP_RANK=str(number),
        VLLM_DP_RANK_LOCAL=str(number),
        VLLM_DP_SIZE="2",
        VLLM_DP_MASTER_IP="127.0.0.1",
        VLLM_DP_MASTER_PORT=str(port),
        STANDIN_NOTES=str(folder / "shared"),
    )
    engine = engine_of(model, options)
    answers = [answers_of(engine, each, TOKENS, [None] * len(each)) for each in rounds]
    tokens = [[list(answer.outputs[0].token_ids) for answer in each] for each in answers]
    torch.save(tokens, folder / f"replica-{number}")


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
