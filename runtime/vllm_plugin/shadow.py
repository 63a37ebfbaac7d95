"""Shadow mode: vLLM serves as it does, and writes down what each rank computed when.

A file a pipeline rank, ``rank-R.jsonl``: a header, then a line a batch as soon as it is through, with its parts
(request, first token's position, tokens, tokens of the prompt) and the seconds from when the input was there until
the model was through. Lengths only: no token is written. :mod:`vppc.profiles.shadow` reads it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from runtime.runners.vllm.upstream import allocate_inputs
from runtime.vllm_plugin.parts import Prompts
from runtime.vllm_plugin.settings import Shadow, read_settings

FORMAT, VERSION = "vppc.shadow", 1


class ShadowWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's worker for CPUs, which times its model runner."""

    def load_model(self, **options: Any) -> None:
        super().load_model(**options)
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            allocate_inputs(runner)  # or no pipeline runs on CPUs in eager mode
        settings = read_settings(self.vllm_config.additional_config)
        if isinstance(settings, Shadow) and get_tp_group().is_first_rank:
            runner.execute_model = Timed(runner, ShadowJournal(settings.journal, runner))


class Timed:
    """A model runner's ``execute_model``, between two looks at the clock."""

    def __init__(self, runner: Any, journal: ShadowJournal) -> None:
        self._execute, self._journal = runner.execute_model, journal

    def __call__(self, output: SchedulerOutput, inputs: Any = None) -> Any:
        if inputs is not None:
            inputs.wait_for_comm()  # waiting for the rank before is not computing
        start = time.time()
        made = self._execute(output, inputs)
        self._journal.add(output, start, time.time())
        return made


class ShadowJournal:
    """The journal of one rank."""

    def __init__(self, folder: Path, runner: Any) -> None:
        group, model = get_pp_group(), runner.model_config
        layers = model.get_layers_start_end_indices(runner.parallel_config)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "model": Path(model.model).name,
            "model_layers": model.get_total_num_hidden_layers(),
            "layers": list(layers),
            "rank": group.rank_in_group,
            "pp": group.world_size,
            "chunk_size": runner.max_num_tokens,
        }
        self._prompts = Prompts()
        # line by line: vLLM ends its workers without asking
        self._file = (folder / f"rank-{group.rank_in_group}.jsonl").open("w", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(header) + "\n")

    def add(self, output: SchedulerOutput, start: float, end: float) -> None:
        """A batch was computed from ``start`` to ``end``, in seconds since the epoch."""
        parts = self._prompts.parts(output)
        if parts:
            self._file.write(json.dumps({"start": start, "end": end, "parts": parts}) + "\n")
