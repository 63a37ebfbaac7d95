"""``python -m examples.ascend.suites``: the VPP paper's serving suites as AISBench reads them.

Of each suite two files: ``NAME.jsonl``, a custom dataset of AISBench's with a prompt a line, and ``NAME.py``, a
configuration of a run: the dataset, the server, how many requests are under way, one output token. The lengths are
those of :func:`vppc.serving.workloads.suite`, so what is measured is what ``vppc serve-sim --suite NAME`` prices.

Prompts are of random words, so that no two share a prefix, and have exactly as many tokens as the model's tokenizer
makes of them. They go to ``v1/completions``, which adds no chat template. Written for AISBench of August 2026
(``ais_bench.benchmark``: ``CustomDataset``, ``VLLMCustomAPI``), which has not been run here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import click

from vppc.errors import InputError
from vppc.serving.workloads import SUITES, suite

TRIES = 64
"""Words that are put on or taken off a prompt that is not as long as its words say."""
WORDS = 4096

CONFIG = '''"""Suite {name} of the VPP paper: {count} prompts, at most {users} under way, one output token each."""

from ais_bench.benchmark.calculators import DefaultPerfMetricCalculator
from ais_bench.benchmark.datasets import CustomDataset
from ais_bench.benchmark.models import VLLMCustomAPI
from ais_bench.benchmark.openicl.icl_evaluator import AccEvaluator
from ais_bench.benchmark.openicl.icl_inferencer import GenInferencer
from ais_bench.benchmark.openicl.icl_prompt_template import PromptTemplate
from ais_bench.benchmark.openicl.icl_retriever import ZeroRetriever
from ais_bench.benchmark.summarizers import DefaultPerfSummarizer

datasets = [
    dict(
        abbr="{name}",
        type=CustomDataset,
        path={path!r},
        reader_cfg=dict(input_columns=["question"], output_column="answer"),
        infer_cfg=dict(
            prompt_template=dict(type=PromptTemplate, template="{{question}}"),
            retriever=dict(type=ZeroRetriever),
            inferencer=dict(type=GenInferencer),
        ),
        eval_cfg=dict(evaluator=dict(type=AccEvaluator)),
    )
]
models = [
    dict(
        attr="service",
        type=VLLMCustomAPI,
        abbr="{name}",
        path={model!r},
        model={served!r},
        stream=True,
        request_rate=0,
        retry=1,
        host_ip={host!r},
        host_port={port},
        max_out_len=1,
        batch_size={users},
        trust_remote_code=False,
        generation_kwargs=dict(temperature=0.0, ignore_eos=True),
    )
]
summarizer = dict(
    attr="performance",
    type=DefaultPerfSummarizer,
    calculator=dict(
        type=DefaultPerfMetricCalculator,
        stats_list=["Average", "Min", "Max", "Median", "P75", "P90", "P99"],
    ),
)
work_dir = {work_dir!r}
'''


class Writer:
    """Writes texts of so many tokens. ``count`` says how many tokens a text has, ``words`` are of one token each."""

    def __init__(self, count: Callable[[str], int], words: Sequence[str]) -> None:
        self._count, self._words = count, list(words)
        if not words:
            raise InputError("no word of the tokenizer is one token", remedy="a tokenizer that has English words")
        once, twice = (count(" ".join([words[0]] * times)) for times in (1, 2))
        self._around = 2 * once - twice  # what is put around any text

    def text(self, tokens: int, random: Random) -> str:
        """Raises InputError where there is none."""
        made = random.choices(self._words, k=max(1, tokens - self._around))
        for _ in range(TRIES):
            over = self._count(" ".join(made)) - tokens
            if over == 0:
                return " ".join(made)
            made = made[:-over] if over > 0 else made + random.choices(self._words, k=-over)
            if not made:
                break
        raise InputError(f"no text has {tokens} tokens", remedy="another tokenizer, or write the prompts by hand")


def single_words(decoded: Iterator[str], count: Callable[[str], int]) -> list[str]:
    """Words that make a text one token longer, of those that the tokenizer's tokens say."""
    found: dict[str, None] = {}
    for text in decoded:
        word = text.strip()
        usual = text.startswith(" ") and word.isascii() and word.isalpha() and word.islower()
        if usual and count(f"{word} {word} {word}") - count(f"{word} {word}") == 1:
            found[word] = None
        if len(found) == WORDS:
            break
    return list(found)


def write_suite(name: str, folder: Path, writer: Writer, seed: int, **server: Any) -> list[int]:
    """Writes a suite's two files; the prompts' lengths in tokens, in the order in which they are sent."""
    workload = suite(name, seed)
    lengths = [request.prompt_tokens for request in workload.requests]
    random = Random(f"{name} {seed}")
    dataset = (folder / f"{name}.jsonl").absolute()
    with dataset.open("w", encoding="utf-8") as file:
        for tokens in lengths:
            line = {"question": writer.text(tokens, random), "answer": "", "max_tokens": 1}
            file.write(json.dumps(line) + "\n")
    config = CONFIG.format(
        name=name,
        count=len(lengths),
        users=workload.concurrency,
        path=str(dataset),
        work_dir=str((folder / "results" / name).absolute()),
        **server,
    )
    (folder / f"{name}.py").write_text(config, encoding="utf-8")
    return lengths


def writer_of(model: Path) -> Writer:
    """A writer for a model's tokenizer. Raises InputError without one."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError("needs transformers, which comes with vLLM", remedy="run it where vLLM is installed") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"has no tokenizer: {error}", file=str(model), remedy="the folder of a checkpoint") from None

    def count(text: str) -> int:
        return len(tokenizer(text).input_ids)

    tokens = list(range(tokenizer.vocab_size))
    Random(0).shuffle(tokens)
    return Writer(count, single_words((str(tokenizer.decode([token])) for token in tokens), count))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(SUITES), metavar="[SUITE]...")
@click.option(
    "--model", type=click.Path(path_type=Path), required=True, help="The checkpoint folder, for its tokenizer."
)
@click.option("--served-name", default="", help="The model's name in the server. [default: what the server says]")
@click.option("--host", default="localhost", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the words, and of the mixed suite's order.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("out/suites"), show_default=True)
def main(names: tuple[str, ...], model: Path, served_name: str, host: str, port: int, seed: int, output: Path) -> None:
    """Write the paper's suites, or those named, for AISBench: `ais_bench OUTPUT/SUITE.py -m perf` runs one.

    The suites: short-4k, short-8k, short-16k, long-64k to long-512k, long-1m, mixed.
    """
    try:
        writer = writer_of(model)
        output.mkdir(parents=True, exist_ok=True)
        for name in names or SUITES:
            server = {"model": str(model.absolute()), "served": served_name, "host": host, "port": port}
            lengths = write_suite(name, output, writer, seed, **server)
            click.echo(f"{output / name}.py: {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens")
    except InputError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
