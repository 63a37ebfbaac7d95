"""Disaggregated prefill: a folded engine hands its prompts over to others, and takes those of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from test_vllm_runner import LAYERS, MODELS, needs_vllm, write_checkpoint
from transfer_runs import BLOCK, Answer, Call, Step
from vllm_runs import transfers, version

RANGES = [[[0, 2], [12, LAYERS]], [[2, 7], [7, 12]]]
PP = len(RANGES)
FOLD = {
    "pipeline_parallel_size": PP,
    "distributed_executor_backend": "mp",
    "additional_config": {
        "virtual_pipeline_parallel_size": 2,
        "vpp_layer_ranges": RANGES,
        "vppc": {"strategy": "vpp-packed"},
    },
}
TOKENS = 5


@needs_vllm
def test_prompts_are_handed_over(tmp_path: Path) -> None:
    """A folded producer's prompts, of several chunks and of less than a block, are continued by a consumer without a
    pipeline and by a folded one as they are without a transfer, loaded with their batch and before. Requests that are
    aborted when their first or a later batch is between its two passes, or that are preempted for want of blocks,
    leave nothing with the scheduler, nor with any connector; and the connector of each rank sees each batch once."""
    model = str(write_checkpoint(tmp_path / "llama", MODELS["llama"]))
    random = Random(0)
    prompts = [[random.randrange(300) for _ in range(length)] for length in (300, 65, 130, 33, 64, 20)]
    doomed = [[random.randrange(300) for _ in range(length)] for length in (400, 250, 190)]
    aborted = {0: 6, 1: 7, 2: 9}
    produced, stock, folded = transfers(
        tmp_path / "run",
        model,
        [
            ("kv_producer", FOLD, [Step([*doomed, *prompts], 1, aborted=aborted)]),
            ("kv_consumer", {}, [Step(prompts, TOKENS, {"fresh": True}), Step(prompts, TOKENS)]),
            (
                "kv_consumer",
                FOLD,
                [
                    Step([*doomed, *prompts], TOKENS, aborted=aborted),
                    Step(prompts, TOKENS, {"later": True}),
                ],
            ),
        ],
    )
    (first,), (fresh, loaded), (beside, later) = (answers for answers, _ in (produced, stock, folded))
    assert fresh.keys() == set(range(len(prompts)))
    assert unmoved(first, len(doomed)) == {at: Answer(answer.tokens[:1], 0) for at, answer in fresh.items()}
    expected = {at: Answer(answer.tokens, (len(prompts[at]) - 1) // BLOCK * BLOCK) for at, answer in fresh.items()}
    assert loaded == expected
    assert later == expected
    assert unmoved(beside, len(doomed)) == expected
    for _, left in (produced, stock, folded):
        assert (left.held, left.requests, left.blocks) == ([], [], 0)
    for _, left in (produced, folded):
        for rank, calls in enumerate(left.calls):
            saw_each_batch_once(rank, calls)


def unmoved(answers: Mapping[int, Answer], by: int) -> dict[int, Answer]:
    """The answers of prompts that stand behind ``by`` others, of which none was answered."""
    return {at - by: answer for at, answer in answers.items()}


def saw_each_batch_once(rank: int, calls: Sequence[Call]) -> None:
    """Each batch was begun and ended once, and each layer of both stages ran once in between, other batches or not."""
    layers = [f"model.layers.{layer}.self_attn.attn" for first_end in RANGES[rank] for layer in range(*first_end)]
    first = len(range(*RANGES[rank][0]))
    (registered, _, names), *calls = calls
    assert (registered, names) == ("register", sorted(layers))
    lives = defaultdict(list)
    for name, batch, what in calls:
        lives[batch].append((name, what))
    assert list(lives) == list(range(len(lives)))
    told = []
    for life in lives.values():
        *ran, (finished, requests), cleared = life
        run = [("layer", layer) for layer in layers]
        whole = [("preempt", None), ("load", None), *run, ("wait", None)]
        if version() == "0.28.0":
            assert ran in (whole, whole[:2])  # the last without tokens
        else:  # what no request of the batch waits for is loaded behind the layers of its first pass
            behind = [("preempt", None), *run[:first], ("load", None), *run[first:], ("wait", None)]
            assert ran in (whole, behind, [*whole[:2], whole[-1]])
        assert (finished, cleared) == ("finished", ("clear", None))
        told += requests
    assert told and len(set(told)) == len(told)
    begun = [(name, batch) for name, batch, _ in calls if name in ("load", "clear")]
    # in front of the fold two batches were at once in their first passes, or nothing was shown; at it each goes back
    assert begun[1][0] == ("load" if rank < PP - 1 else "clear")
