"""Prompts that are prefilled in one engine of vLLM's and decoded in another, for tests/test_vllm_transfer.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Call = tuple[str, int, Any]
"""What vLLM asked of a worker's connector: the name, the number of the batch, and what else."""
BLOCK = 32
"""Tokens of a block of KV cache; a batch has two."""


class Answer(NamedTuple):
    """What an engine made of a prompt: its tokens, and how many of the prompt's it found computed."""

    tokens: list[int]
    cached: int


class Left(NamedTuple):
    """When all requests are through: the calls of each rank's connector, what is left in the connectors, of requests,
    and how many blocks are not free."""

    calls: list[list[Call]]
    held: list[Any]
    requests: list[str]
    blocks: int


class Step(NamedTuple):
    """Send these prompts with ``params``; those that are in ``aborted``, by index, are after so many steps of the
    engine."""

    prompts: Sequence[Sequence[int]]
    tokens: int
    params: Mapping[str, Any] = {}
    aborted: Mapping[int, int] = {}


def run_steps(
    model: str, store: str, role: str, options: Mapping[str, Any], steps: Sequence[Step], results: Path
) -> None:
    """Run an engine: of each step the answers, by the prompt's index, and what is left at the end.

    Prompts of 512 tokens fill its KV cache.
    """
    import torch
    from kv_folder import of_worker
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="FolderConnector",
        kv_connector_module_path="kv_folder",
        kv_role=role,  # type: ignore[arg-type]
        kv_connector_extra_config={"folder": store},
        kv_load_failure_policy="recompute",
    )
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        num_gpu_blocks_override=512 // BLOCK + 1,
        max_num_batched_tokens=2 * BLOCK,
        block_size=BLOCK,
        enable_prefix_caching=False,
        use_tqdm_on_load=False,
        kv_transfer_config=transfer,
        **options,
    )
    engine = llm.llm_engine
    core = engine.engine_core.engine_core  # type: ignore[attr-defined]
    blocks = core.scheduler.kv_cache_manager.block_pool
    free = blocks.get_num_free_blocks()
    made = []
    for number, step in enumerate(steps):
        sampling = SamplingParams(
            temperature=0,
            max_tokens=step.tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": dict(step.params)},
        )
        for index, prompt in enumerate(step.prompts):
            engine.add_request(f"{number}-{index}", {"prompt_token_ids": list(prompt)}, sampling)
        answers: dict[int, Answer] = {}
        turn = 0
        while engine.has_unfinished_requests():
            engine.abort_request([f"{number}-{index}" for index, at in step.aborted.items() if at == turn])
            turn += 1
            for output in engine.step():
                if output.finished:
                    (made_of,) = output.outputs
                    index = int(output.request_id.partition("-")[2])
                    answers[index] = Answer(list(made_of.token_ids), output.num_cached_tokens or 0)
        while core.scheduler.has_requests() or core.batch_queue:
            engine.step()
        made.append({index: tuple(answer) for index, answer in answers.items()})
    told = core.collective_rpc(of_worker)
    held = core.scheduler.connector.scheduler_held() + [each for _, held in told for each in held]
    calls = [of_rank for of_rank, _ in told]
    left = Left(calls, held, list(core.scheduler.requests), free - blocks.get_num_free_blocks())
    torch.save((made, tuple(left)), results)
