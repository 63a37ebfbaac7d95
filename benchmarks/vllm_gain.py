"""What folding and tuned chunks gain on vLLM on this machine, beside what the simulator predicts.

    python -m benchmarks.vllm_gain [--tokens N] [--rounds R] [--prompts K]

Two workers with a thread each; one prompt at a time, of many chunks, in which attention dominates. First stock vLLM, in
shadow mode, and our own loop compute prompts in chunks of many sizes, and costs are fitted. By these costs cpp and
vpp-async get their best fixed chunk, and a V is tuned. Then, round after round and in turn: stock vLLM with two
pipeline ranks at cpp's chunk, the folded engine under vpp, vpp-async and with the tuned layers and chunks, and in our
own loop (``--runner vllm``: the same model runners, without vLLM's engine) cpp, vpp-async and the tuned schedule. Each
answers a prompt for practice and K that count. Printed are the medians of the times to the first token, and of the
makespans in our loop, each beside the simulator's.

It needs .venv-vllm (scripts/vllm-venv), and some 25 seconds for each engine. The model has random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
LEAST_CHUNKS = 8
"""The fixed chunks that are tried, and the tuned ones, make so many of a prompt."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``plan`` of the plans is what it follows; an engine has an additional config, our own loop has none."""

    name: str
    plan: str
    additional: Mapping[str, Any] | None


def main() -> None:
    arguments = parsed()
    if arguments.engine is not None:
        return print(json.dumps(engine(json.loads(arguments.engine))))
    if arguments.loop is not None:
        return loop(json.loads(arguments.loop))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = written_model(folder / "model")
        cost = calibrated(folder, model, arguments.tokens)
        plans = planned(cost, arguments.tokens)
        files = {name: plan_file(plan, folder / f"{name}.json") for name, plan in plans.items()}
        measured: dict[str, list[float]] = {each.name: [] for each in contestants(plans, files, folder)}
        for number in range(arguments.rounds):
            for each in contestants(plans, files, folder):
                if each.additional is not None:
                    prompts, budget = [arguments.tokens] * (arguments.prompts + 1), largest(plans[each.plan])
                    job = {"model": model, "prompts": prompts, "budget": budget, "additional": each.additional}
                    seconds = started("--engine", job)
                else:
                    plan = files[each.plan]
                    journal = str(folder / f"{each.plan}-{number}")
                    seconds = started(
                        "--loop", {"model": model, "plan": plan, "runs": arguments.prompts, "to": journal}
                    )
                measured[each.name] += seconds
                print(f"round {number}, {each.name}: {', '.join(f'{s:.3f}' for s in seconds)} s", flush=True)
        print(shown(cost, plans, contestants(plans, files, folder), measured, arguments.tokens))


def contestants(plans: Mapping[str, Any], files: Mapping[str, str], folder: Path) -> list[Contestant]:
    """Stock vLLM, the folded engine and our loop, in the order in which they take turns.

    Stock is in shadow mode: without, vLLM 0.28.0 runs no pipeline on CPUs in eager mode (docs/vllm.md).
    """
    tuned = plans["tuned"]
    ranges = [[list(tuned.stages[rank].layers), list(tuned.stages[3 - rank].layers)] for rank in (0, 1)]

    def fold(**section: Any) -> dict[str, Any]:
        return {"virtual_pipeline_parallel_size": 2, "vppc": section}

    return [
        Contestant("stock vLLM", "cpp", shadow(folder / "stock")),
        Contestant("folded, vpp", "vpp", fold(strategy="vpp")),
        Contestant("folded, vpp-async", "vpp-async", fold(strategy="vpp-async")),
        Contestant("folded, tuned", "tuned", {**fold(chunks=files["tuned"]), "vpp_layer_ranges": ranges}),
        Contestant("our loop, cpp", "cpp", None),
        Contestant("our loop, vpp-async", "vpp-async", None),
        Contestant("our loop, tuned", "tuned", None),
    ]


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
    """By these costs cpp and vpp-async at their best fixed chunk, vpp at that of vpp-async, and a tuned V."""
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
        "vpp": fixed("vpp", best["vpp-async"]),
        "vpp-async": fixed("vpp-async", best["vpp-async"]),
        "tuned": tune(task)[0].schedule,
    }


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
    stock: tuple[float, float] | None = None
    loop: tuple[float, float] | None = None
    for each in ran:
        plan, seconds = plans[each.plan], measured[each.name]
        times = statistics.median(seconds), predict(plan, cost).makespan
        if each.additional is None:
            base = loop = loop or times
        else:
            base = stock = stock or times
        sizes = [sum(part.tokens for part in chunk.parts) for chunk in plan.chunks]
        chunks = f"{len(sizes)} of {sizes[0]}" if len(set(sizes[:-1])) == 1 else " ".join(map(str, sizes))
        spread = f"{min(seconds):.3f} .. {max(seconds):.3f}"
        gains = (f"{base[0] / times[0] - 1:+.1%}", f"{base[1] / times[1] - 1:+.1%}")
        rows.append([each.name, f"{times[0]:.3f} s", spread, gains[0], f"{times[1]:.3f} s", gains[1], chunks])
    attention = sum(layer.count * layer.per_pair for layer in cost.layers) * pairs(tokens, 0)
    rest = sum(layer.count * layer.per_token for layer in cost.layers) * tokens
    ranges = ", ".join(f"{end - start}" for start, end in (stage.layers for stage in plans["tuned"].stages))
    headers = ["", "measured", "from .. to", "gain", "predicted", "gain", "chunks"]
    part = attention / (attention + rest)
    return (
        f"\n{table(headers, rows)}\na FORWARD takes {1000 * cost.launch:.1f} ms beside its layers; attention takes "
        f"{part:.0%} of the prompt's time; layers of the tuned stages: {ranges}"
    )


def started(what: str, job: dict[str, Any]) -> list[float]:
    """What a process of vLLM's environment prints for the job: seconds."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    cpus = sorted(os.sched_getaffinity(0))
    bound = f"{cpus[0]}|{cpus[1 % len(cpus)]}"
    command = [str(PYTHON), "-m", "benchmarks.vllm_gain", what, json.dumps(job)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **quiet, "VLLM_CPU_OMP_THREADS_BIND": bound, "VLLM_CPU_KVCACHE_SPACE": "2"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def engine(job: dict[str, Any]) -> list[float]:
    """Start an engine; the seconds of all prompts but the first, one after another."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=max(job["prompts"]) + 16,
        max_num_batched_tokens=job["budget"],
        enable_prefix_caching=False,
        pipeline_parallel_size=2,
        distributed_executor_backend="mp",
        additional_config=job["additional"],
    )
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    draw = random.Random(0)
    seconds = []
    for tokens in job["prompts"]:
        prompt = [draw.randrange(MODEL["vocab_size"]) for _ in range(tokens)]
        start = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def loop(job: dict[str, Any]) -> None:
    """Run a schedule on vLLM's model runners in our own loop; print the makespans of all runs but the first."""
    from benchmarks.launch import launch
    from vppc.profiles.journal import read_journal
    from vppc.profiles.measured import timing_of

    journals = launch(2, run, job["plan"], job["model"], job["runs"] + 1, job["to"])[0]
    timings = [timing_of(read_journal(journal)) for journal in journals[1:]]
    print(json.dumps([max(map(max, timing.ends)) - min(map(min, timing.starts)) for timing in timings]))


def run(plan: str, model: str, runs: int, to: str) -> list[str]:
    """A process of :func:`loop`: its journals' folders."""
    from runtime.arguments import parse
    from runtime.session import Session

    usual = [plan, "--runner", "vllm", "--model", model, "--timeout", "300"]
    journals = [f"{to}-{number}" for number in range(runs)]
    with Session(parse(usual)) as session:
        for journal in journals:
            session.run(parse([*usual, "--journal", journal]))
    return journals


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384, help="of a prompt (default: 16384)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--prompts", type=int, default=4, help="that count, of each a round (default: 4)")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
