"""Compare the verifier with an explorer of all interleavings, on as many small programs as there is time for.

    python -m benchmarks.exploration --programs 20000

The programs are those of ``tests/test_explorer.py``: valid ones, and ones with something changed in them. Ends with
status 1 and the program at the first on which the two disagree.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count, islice
from random import Random

from tests.test_explorer import compare, programs, unlike


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000, help="how many different ones (default 2000)")
    parser.add_argument("--seed", default="0", help="another seed makes other programs")
    options = parser.parse_args()
    random = Random(options.seed)
    found: Counter[str] = Counter()
    states, start = 0, time.perf_counter()
    for schedule in islice(unlike(each for _ in count() for each in programs(random)), options.programs):
        try:
            code, verdict = compare(schedule)
        except AssertionError as error:
            print(f"they disagree: {error}", file=sys.stderr)
            return 1
        found[code] += 1
        states += verdict.states
    print(f"{sum(found.values()):,} programs, {states:,} states, {time.perf_counter() - start:.0f} s: no disagreement")
    print(f"accepted {found.pop('', 0):,}; refused {sum(found.values()):,}, first for")
    print("  " + ", ".join(f"{code} {number:,}" for code, number in sorted(found.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
