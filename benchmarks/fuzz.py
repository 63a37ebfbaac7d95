"""Damage files for as long as there is time, led by the code that they reach where atheris is installed.

    python -m benchmarks.fuzz --seconds 600                 every reader in turn, by chance alone
    python -m benchmarks.fuzz schedule trace                these readers
    pip install atheris && python -m benchmarks.fuzz trace --corpus corpus      led by coverage, until it is stopped

The files, the commands that read them, and what counts as a failure are those of ``tests/test_fuzz.py``. Each failure
is shown with its traceback, and the file that caused it is kept in ``--keep``. Ends with status 1 if there was one.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

GUIDED = importlib.util.find_spec("atheris") is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="readers (default: all); with --corpus one")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of them (default 60)")
    parser.add_argument("--seed", default="0", help="another seed damages other places")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="folder of what failed (default out/fuzz)")
    parser.add_argument("--corpus", type=Path, help="folder of what reached new code: lets atheris lead")
    options = parser.parse_args()
    if options.corpus and not GUIDED:
        parser.error("--corpus needs atheris: pip install atheris")
    targets = loaded(instrumented=options.corpus is not None)
    if unknown := set(options.targets) - targets.keys():
        parser.error(f"no reader is called {', '.join(unknown)}: {', '.join(targets)}")
    chosen = options.targets or list(targets)
    if not options.corpus:
        return by_chance({name: targets[name] for name in chosen}, options.seconds, Random(options.seed), options.keep)
    if len(chosen) != 1:
        parser.error("atheris leads through one reader at a time: name it")
    return guided(targets[chosen[0]], options.corpus, options.seconds)


def loaded(*, instrumented: bool) -> Mapping[str, Any]:
    """All readers: those of the runtime only where torch is installed."""
    if instrumented:
        import atheris

        hooks = atheris.instrument_imports(include=["vppc", "runtime"], enable_loader_override=False)
    else:
        hooks = nullcontext()
    with hooks:
        from tests.fuzz_targets import TARGETS

        if importlib.util.find_spec("torch") is None:
            return TARGETS
        from tests.fuzz_runtime_targets import RUNTIME_TARGETS

        return {**TARGETS, **RUNTIME_TARGETS}


def by_chance(targets: Mapping[str, Any], seconds: float, random: Random, keep: Path) -> int:
    from tests.fuzzing import attempt, sampled

    failures: dict[str, int] = {}
    for name, target in targets.items():
        tried = accepted = 0
        end = time.monotonic() + seconds / len(targets)
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() < end:
                data = sampled(target.seeds, random)
                tried += 1
                try:
                    accepted += attempt(target, data, Path(folder))
                except Exception as error:  # noqa: BLE001 (whatever gets out is what is looked for)
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    kind = f"{name}: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
                    failures[kind] = failures.get(kind, 0) + 1
                    if failures[kind] == 1:
                        print(f"\n{kind}\n{traceback.format_exc()[-3000:]}", file=sys.stderr)
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{sha256(data).hexdigest()[:12]}-{target.name}").write_bytes(data)
        print(f"{name}: {tried:,} files, {accepted:,} of them accepted")
    print(f"{len(failures)} kinds of failure" + "".join(f"\n  {kind}, {count}" for kind, count in failures.items()))
    return 1 if failures else 0


def guided(target: Any, corpus: Path, seconds: float) -> int:
    import atheris

    from tests.fuzzing import attempt, sampled

    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / sha256(seed).hexdigest()).write_bytes(seed)
    folder = Path(tempfile.mkdtemp(prefix="vppc-fuzz-"))

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        return atheris.Mutate(data, most) if random.random() < 0.5 else sampled([data], random)[:most]

    def test(data: bytes) -> None:
        attempt(target, data, folder)

    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={int(seconds)}", "-max_len=300000", "-rss_limit_mb=4096"],
        test,
        custom_mutator=mutated,
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
