"""What folding and tuned chunks gain on vLLM on this machine, beside what the simulator predicts.

    python -m benchmarks.vllm_gain [--tokens N] [--rounds R] [--costs FILE]

Two workers with a thread each; one prompt at a time, of many chunks, in which attention dominates. First stock vLLM, in
shadow mode, and our own loop compute prompts in chunks of many sizes, and costs are fitted; or they are read, where
FILE is there from an earlier run. By these costs cpp and vpp-async get their best fixed chunk, and a V is tuned.
Then take turns: stock vLLM with two pipeline ranks and the folded engine under vpp-async, at the best fixed chunk of
each, and the folded engine with the tuned layers and chunks; then the first two with eight chunks a prompt; then, in
our own loop (``--runner vllm``: the same model runners, without vLLM's engine), cpp, vpp-async and the tuned schedule.
All of a turn are started, answer a prompt for practice, and then one each a round, since the speed of a machine that
others share changes within minutes. Printed are the medians of the times to the first token, and of the makespans in
our loop, beside the simulator's, and the median of the gains, each over what the first of the turn took in the same
round.

It needs .venv-vllm (scripts/vllm-venv), 6 GB for 12 processes, and some 25 seconds for each engine. The model has
random weights.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
LAYERS = 8
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
SECONDS = "seconds "
"""What a line with an answer begins with."""
LEAST_CHUNKS = 8
"""The fixed chunks that are tried, and the tuned ones, make so many of a prompt."""


PAUSE = 1.2
"""Seconds between two prompts: after a message vLLM's processes look for the next without rest, one second long."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``plan`` of the plans is what it follows, and it is compared with ``base``; an engine has an additional config,
    our own loop has none."""

    name: str
    plan: str
    base: str
    additional: Mapping[str, Any] | None


def main() -> None:
    arguments = parsed()
    if arguments.engine is not None:
        return engine(json.loads(arguments.engine))
    if arguments.loop is not None:
        return loop(json.loads(arguments.loop))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = written_model(folder / "model")
        costs = arguments.costs or folder / "cost.json"
        if not costs.exists():
            write_costs(calibrated(folder, model, arguments.tokens), costs)
        cost = read_costs(costs)
        plans = planned(cost, arguments.tokens)
        files = {name: plan_file(plan, folder / f"{name}.json") for name, plan in plans.items()}
        ran = contestants(plans, files, folder, str(costs))
        measured: dict[str, list[float]] = {each.name: [] for each in ran}
        for _, group in groupby(ran, lambda each: each.base):
            with ExitStack() as stack:
                running = {}
                for each in group:
                    running[each.name] = stack.enter_context(Running(each, plans, files, model, folder))
                    running[each.name].answer(arguments.tokens)
                for number in range(arguments.rounds):
                    for name, one in running.items():
                        time.sleep(PAUSE)
                        measured[name].append(one.answer(arguments.tokens))
                    took = ", ".join(f"{name} {measured[name][-1]:.3f} s" for name in running)
                    print(f"round {number}: {took}", flush=True)
        print(shown(cost, plans, ran, measured, arguments.tokens))


def contestants(plans: Mapping[str, Any], files: Mapping[str, str], folder: Path, costs: str) -> list[Contestant]:
    """Stock vLLM, the folded engine and our loop, in the order in which they take turns.

    Stock is in shadow mode: without, vLLM 0.28.0 runs no pipeline on CPUs in eager mode (docs/vllm.md).
    """
    tuned = plans["tuned"]
    ranges = [[list(tuned.stages[rank].layers), list(tuned.stages[3 - rank].layers)] for rank in (0, 1)]

    def fold(**section: Any) -> dict[str, Any]:
        return {"virtual_pipeline_parallel_size": 2, "vppc": {"costs": costs, **section}}

    stock, few, loop = "stock vLLM", f"stock vLLM, {LEAST_CHUNKS} chunks", "our loop, cpp"
    return [
        Contestant(stock, "cpp", stock, shadow(folder / "stock")),
        Contestant("folded, vpp-async", "vpp-async", stock, fold()),
        Contestant("folded, tuned", "tuned", stock, {**fold(chunks=files["tuned"]), "vpp_layer_ranges": ranges}),
        Contestant(few, "cpp, few", few, shadow(folder / "few")),
        Contestant(f"folded, vpp-async, {LEAST_CHUNKS} chunks", "vpp-async, few", few, fold()),
        Contestant(loop, "cpp", loop, None),
        Contestant("our loop, vpp-async", "vpp-async", loop, None),
        Contestant("our loop, tuned", "tuned", loop, None),
    ]


class Running:
    """One that has started, and answers a prompt when it is asked; a context manager."""

    def __init__(
        self, each: Contestant, plans: Mapping[str, Any], files: Mapping[str, str], model: str, folder: Path
    ) -> None:
        job: dict[str, Any]
        if each.additional is None:
            what = "--loop"
            job = {"model": model, "plan": files[each.plan], "to": str(folder / f"runs-{each.plan}")}
        else:
            plan = plans[each.plan]
            prompts = [plan.requests[0].prompt_tokens]
            job = {"model": model, "prompts": prompts, "budget": largest(plan), "additional": each.additional}
            what = "--engine"
        self._log = (folder / f"{each.name}.log").open("w+")
        self._process = subprocess.Popen(
            **_process(what, job), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def answer(self, tokens: int) -> float:
        """The seconds of a prompt."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{tokens}\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(SECONDS):
                return float(line.removeprefix(SECONDS))
        self._log.seek(0)
        sys.exit(self._log.read())


def shadow(journal: Path) -> dict[str, Any]:
    """Stock vLLM, which writes down what its batches took."""
    return {"vppc": {"mode": "shadow", "journal": str(journal)}}


def written_model(folder: Path) -> str:
    from examples.tiny_checkpoint import write_checkpoint

    return str(write_checkpoint(folder, MODEL))


def calibrated(folder: Path, model: str, tokens: int) -> Any:
    """Costs of vLLM's stages on this machine, from batches of many sizes behind prefixes of many lengths.

    Stock vLLM's stages have half the layers each; of our loop's there are twice as many, which tells what a FORWARD
    takes beside its layers.
    """
    from vppc.compiler import compile_schedule
    from vppc.costs.calibration import calibrate
    from vppc.costs.model import CostModel, LayerCost
    from vppc.costs.samples import Layers, Measurements
    from vppc.ir.schedule import Model, Request
    from vppc.passes.strategies import Options
    from vppc.profiles.journal import read_journal
    from vppc.profiles.measured import measurements
    from vppc.profiles.shadow import read_shadow

    layers = Layers.alike(LAYERS)
    guess = CostModel((LayerCost(LAYERS, per_token=1.0),))
    draw = random.Random(1)
    found = Measurements(layers)
    longest = tokens // LEAST_CHUNKS
    for budget in (longest // 4, longest // 2, longest):
        journal = folder / f"shadow-{budget}"
        lengths = [tokens // 2, tokens, *(draw.randrange(budget // 4, tokens) for _ in range(2))]
        started("--engine", {"model": model, "prompts": lengths, "budget": budget, "additional": shadow(journal)})
        found += read_shadow(str(journal)).measurements()
        options = Options(strategy="vpp-async", pp=2, chunk_size=budget)
        plan = compile_schedule((Request("r0", tokens),), Model("m", LAYERS), guess, options)
        runs = str(folder / f"loop-{budget}")
        file = plan_file(plan, folder / f"loop-{budget}.json")
        started("--loop", {"model": model, "plan": file, "runs": 1, "to": runs})
        found += measurements(read_journal(f"{runs}-1"), layers)
    return calibrate(found).cost


def planned(cost: Any, tokens: int) -> dict[str, Any]:
    """By these costs cpp and vpp-async at their best fixed chunk and at the largest, and a tuned V."""
    from vppc.analysis.report import predict
    from vppc.compiler import compile_schedule
    from vppc.ir.schedule import Model, Request
    from vppc.passes.strategies import Options
    from vppc.tuning.tune import Task, tune
    from vppc.tuning.workload import Limits

    prompts, layers = (Request("r0", tokens),), Model("m", LAYERS)
    sizes = [-(-tokens // chunks) for chunks in (LEAST_CHUNKS, 10, 12, 16, 24, 32)]

    def fixed(strategy: str, size: int) -> Any:
        options = Options(strategy=strategy, pp=2, chunk_size=size)
        return compile_schedule(prompts, layers, cost, options)

    best = {
        strategy: min(sizes, key=lambda size, name=strategy: predict(fixed(name, size), cost).makespan)  # type: ignore[misc]
        for strategy in ("cpp", "vpp-async")
    }
    limits = Limits(max_chunk=sizes[0], min_chunk=sizes[-1] // 2, align=16)
    task = Task(requests=prompts, cost=cost, model=layers, pp=2, placement="v", vp=2, limits=limits)
    return {
        "cpp": fixed("cpp", best["cpp"]),
        "vpp-async": fixed("vpp-async", best["vpp-async"]),
        "cpp, few": fixed("cpp", sizes[0]),
        "vpp-async, few": fixed("vpp-async", sizes[0]),
        "tuned": tune(task)[0].schedule,
    }


def write_costs(cost: Any, file: Path) -> None:
    from vppc.costs.document import cost_json
    from vppc.files import write_text

    write_text(str(file), json.dumps(cost_json(cost), indent=1))


def read_costs(file: Path) -> Any:
    from vppc.costs.document import read_cost

    return read_cost(str(file))


def plan_file(plan: Any, file: Path) -> str:
    from vppc.files import write_text
    from vppc.ir.document import schedule_text

    write_text(str(file), schedule_text(plan))
    return str(file)


def largest(plan: Any) -> int:
    """The tokens of the largest chunk."""
    return max(int(part.tokens) for chunk in plan.chunks for part in chunk.parts)


def shown(
    cost: Any, plans: Mapping[str, Any], ran: Sequence[Contestant], measured: Mapping[str, list[float]], tokens: int
) -> str:
    """The table."""
    from vppc.analysis.report import predict
    from vppc.costs.model import pairs
    from vppc.render.tables import table

    rows = []
    predicted = {each.name: predict(plans[each.plan], cost).makespan for each in ran}
    for each in ran:
        plan, seconds = plans[each.plan], measured[each.name]
        gains = sorted(base / own - 1.0 for base, own in zip(measured[each.base], seconds, strict=True))
        sizes = [sum(part.tokens for part in chunk.parts) for chunk in plan.chunks]
        chunks = f"{len(sizes)} of {sizes[0]}" if len(set(sizes[:-1])) == 1 else " ".join(map(str, sizes))
        middle = (
            f"{statistics.median(gains):+.1%}",
            f"{gains[len(gains) // 4]:+.1%} .. {gains[-1 - len(gains) // 4]:+.1%}",
        )
        expected = f"{predicted[each.name]:.3f} s", f"{predicted[each.base] / predicted[each.name] - 1:+.1%}"
        rows.append([each.name, f"{statistics.median(seconds):.3f} s", *middle, *expected, chunks])
    attention = sum(layer.count * layer.per_pair for layer in cost.layers) * pairs(tokens, 0)
    rest = sum(layer.count * layer.per_token for layer in cost.layers) * tokens
    ranges = ", ".join(f"{end - start}" for start, end in (stage.layers for stage in plans["tuned"].stages))
    headers = ["", "measured", "gain", "half of them", "predicted", "gain", "chunks"]
    part = attention / (attention + rest)
    return (
        f"\n{table(headers, rows)}\na FORWARD takes {1000 * cost.launch:.1f} ms beside its layers; attention takes "
        f"{part:.0%} of the prompt's time; layers of the tuned stages: {ranges}"
    )


def started(what: str, job: dict[str, Any]) -> list[float]:
    """The seconds of all prompts of the job but the first, one after another; in our loop of so many runs."""
    asked = job["prompts"] if "prompts" in job else [0] * (job["runs"] + 1)
    done = subprocess.run(**_process(what, job), input="".join(f"{tokens}\n" for tokens in asked), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith(SECONDS)]
    return [float(line.removeprefix(SECONDS)) for line in lines][1:]


def _process(what: str, job: dict[str, Any]) -> dict[str, Any]:
    """A process of vLLM's environment, in the words of ``subprocess``."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    cpus = sorted(os.sched_getaffinity(0))
    bound = f"{cpus[0]}|{cpus[1 % len(cpus)]}"
    return {
        "args": [str(PYTHON), "-m", "benchmarks.vllm_gain", what, json.dumps(job)],
        "cwd": ROOT,
        "env": {**os.environ, **quiet, "VLLM_CPU_OMP_THREADS_BIND": bound, "VLLM_CPU_KVCACHE_SPACE": "1"},
        "text": True,
    }


def engine(job: dict[str, Any]) -> None:
    """Start an engine; for each line with a number of tokens print the seconds that such a prompt takes."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=max(job["prompts"]) + 16,
        max_num_batched_tokens=job["budget"],
        enable_prefix_caching=False,
        num_gpu_blocks_override=max(job["prompts"]) // 64,  # of 128 tokens: twice what it takes
        pipeline_parallel_size=2,
        distributed_executor_backend="mp",
        additional_config=job["additional"],
    )
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    draw = random.Random(0)
    for line in sys.stdin:
        prompt = [draw.randrange(MODEL["vocab_size"]) for _ in range(int(line))]
        start = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        print(f"{SECONDS}{time.perf_counter() - start}", flush=True)


def loop(job: dict[str, Any]) -> None:
    """For each line run a schedule on vLLM's model runners in our own loop, and print the makespan."""
    from benchmarks.launch import launch
    from vppc.profiles.journal import read_journal
    from vppc.profiles.measured import timing_of

    context = multiprocessing.get_context("spawn")
    asked, ran = [context.SimpleQueue() for _ in range(2)], context.SimpleQueue()
    ranks = threading.Thread(target=launch, args=(2, run, job["plan"], job["model"], job["to"], asked, ran))
    ranks.start()
    for number, _ in enumerate(sys.stdin):
        for queue in asked:
            queue.put(number)
        while ran.empty():
            if not ranks.is_alive():
                sys.exit(1)  # and they have said why
            time.sleep(0.01)
        timing = timing_of(read_journal(ran.get()))
        print(f"{SECONDS}{max(map(max, timing.ends)) - min(map(min, timing.starts))}", flush=True)
    for queue in asked:
        queue.put(None)
    ranks.join()


def run(plan: str, model: str, to: str, asked: Any, ran: Any) -> None:
    """A process of :func:`loop`; the last to be through says where the journal is."""
    from runtime.arguments import parse
    from runtime.session import Session

    usual = [plan, "--runner", "vllm", "--model", model, "--timeout", "300"]
    rank = int(os.environ["RANK"])
    with Session(parse(usual)) as session:
        for number in iter(asked[rank].get, None):
            session.run(parse([*usual, "--journal", f"{to}-{number}"]))
            if rank == 0:
                ran.put(f"{to}-{number}")


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384, help="of a prompt (default: 16384)")
    parser.add_argument("--rounds", type=int, default=8, help="(default: 8)")
    parser.add_argument("--costs", type=Path, help="read from there, or written to it")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
