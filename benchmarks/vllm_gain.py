"""What folding gains in vLLM's own engine on this machine, beside what the simulator predicts.

    python -m benchmarks.vllm_gain [--tokens N] [--chunk N] [--rounds R] [--prompts K]

Two workers with a thread each; one prompt at a time, of many chunks, in which attention dominates. Engines start in
turn, round after round: stock vLLM with two pipeline ranks (in shadow mode, which writes down what its batches took),
and folded, with 2 and with 3 batches in flight. Each answers one prompt for practice and K that count; what is printed
are the medians of the times to the first token. Predicted: the same chunks under cpp, vpp and vpp-async in the
simulator, with costs that are fitted to the first round's stock batches; transfers are not in them.

It needs .venv-vllm (scripts/vllm-venv) and some 25 seconds for each engine. The model has random weights.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
}
ENGINES = {"stock": "cpp", "folded, 2 in flight": "vpp", "folded, 3 in flight": "vpp-async"}
"""What is measured, and the strategy that it is held against."""


def main() -> None:
    arguments = parsed()
    if arguments.engine is not None:
        return serve(json.loads(arguments.engine))
    measured: dict[str, list[float]] = {name: [] for name in ENGINES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for each in range(arguments.rounds):
            for name in ENGINES:
                journal = Path(folder) / f"shadow-{each}"
                job = {
                    "model": folder,
                    "tokens": arguments.tokens,
                    "chunk": arguments.chunk,
                    "prompts": arguments.prompts,
                    "additional": additional(name, journal),
                }
                seconds = started(job)
                print(f"round {each}, {name}: {', '.join(f'{s:.3f}' for s in seconds)} s", flush=True)
                measured[name] += seconds
        plans = predicted(Path(folder) / "shadow-0", arguments.tokens, arguments.chunk)
    medians = {name: statistics.median(seconds) for name, seconds in measured.items()}
    print(f"\n{'':<22}{'measured':>10}{'gain':>8}   {'predicted':>10}{'gain':>8}")
    for name, strategy in ENGINES.items():
        ours, plan = medians[name], plans[strategy]
        gains = medians["stock"] / ours - 1, plans["cpp"] / plan - 1
        print(f"{name:<22}{ours:>8.3f} s{gains[0]:>8.1%}   {plan:>8.3f} s{gains[1]:>8.1%}   {strategy}")


def additional(name: str, journal: Path) -> dict[str, Any]:
    """vLLM's additional config."""
    if name == "stock":
        return {"vppc": {"mode": "shadow", "journal": str(journal)}}
    return {"virtual_pipeline_parallel_size": 2, "vppc": {"max_in_flight": int(name.split()[1])}}


def started(job: dict[str, Any]) -> list[float]:
    """Times to first tokens of an engine that is started for the job, in seconds."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    cpus = sorted(os.sched_getaffinity(0))
    bound = f"{cpus[0]}|{cpus[1 % len(cpus)]}"
    command = [str(PYTHON), "-m", "benchmarks.vllm_gain", "--engine", json.dumps(job)]
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


def serve(job: dict[str, Any]) -> None:
    """Start an engine, and print what prompts take, one after another."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=job["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=job["tokens"] + 16,
        max_num_batched_tokens=job["chunk"],
        enable_prefix_caching=False,
        pipeline_parallel_size=2,
        distributed_executor_backend="mp",
        additional_config=job["additional"],
    )
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    draw = random.Random(0)
    seconds = []
    for _ in range(job["prompts"] + 1):
        prompt = [draw.randrange(512) for _ in range(job["tokens"])]
        start = time.perf_counter()
        engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


def predicted(journal: Path, tokens: int, chunk: int) -> dict[str, float]:
    """The simulated time to the first token of one prompt, by strategy, with the costs that the journal shows."""
    from vppc.analysis.report import predict
    from vppc.compiler import compile_schedule
    from vppc.costs.calibration import calibrate
    from vppc.ir.schedule import Model, Request
    from vppc.passes.strategies import Options
    from vppc.profiles.shadow import read_shadow

    cost = calibrate(read_shadow(str(journal)).measurements()).cost
    found = {}
    for strategy in ENGINES.values():
        options = Options(strategy=strategy, pp=2, chunk_size=chunk)
        schedule = compile_schedule((Request("r0", tokens),), Model("m", MODEL["num_hidden_layers"]), cost, options)
        found[strategy] = predict(schedule, cost).makespan
    return found


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192, help="of a prompt (default: 8192)")
    parser.add_argument("--chunk", type=int, default=1024, help="tokens a batch (default: 1024)")
    parser.add_argument("--rounds", type=int, default=2, help="(default: 2)")
    parser.add_argument("--prompts", type=int, default=4, help="that count, of each engine (default: 4)")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
