"""``vppc serve-sim``: what it prints, as text, JSON and pictures, and what it refuses."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.plans import DEEPSEEK, EXAMPLES
from vppc.cli.compare import command as compare
from vppc.cli.serve_sim import command
from vppc.costs.document import read_cost
from vppc.errors import InputError
from vppc.passes.strategies import Options
from vppc.serving.contest import Entry, Served, Trial, contest, judge, trials
from vppc.serving.simulate import Setting
from vppc.serving.workloads import suite

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"
ROUND = """{"format": "vppc.cost", "version": 1, "unit": "s", "name": "round",
 "layers": [{"count": 4, "fixed": 0.5, "per_token": 0.25}]}"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def shown(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "round.json").write_text(ROUND)
    prompts = [{"prompt_tokens": 4}, {"prompt_tokens": 2}, {"prompt_tokens": 2}, {"prompt_tokens": 4}]
    (tmp_path / "four.json").write_text(json.dumps(prompts))
    return tmp_path


def four(folder: Path, *arguments: str) -> tuple[str, ...]:
    """Four prompts at once, in chunks of 4 tokens, of which each takes 3 s on each of two ranks."""
    files = ("--requests", str(folder / "four.json"), "--cost", str(folder / "round.json"))
    return (*files, "--chunk-size", "4", *arguments)


def test_the_tables(folder: Path) -> None:
    result = run(*four(folder, "--strategy", "cpp", "--strategy", "vpp-packed", "--ttft-target", "9"))
    assert result.output == (
        "four.json: 4 requests, at once, 12 tokens to compute; round, 2 ranks\n"
        "\n"
        "chunks in flight: cpp 2, as engines (vppc compile and compare: 6 ahead)\n"
        "\n"
        "at its best  chunk size  chunks  tokens/s  TTFT mean  P50   P90   P99  queueing  in system  KV tokens  "
        "goodput\n"
        "-----------  ----------  ------  --------  ---------  ---  ----  ----  --------  ---------  ---------  "
        "-------\n"
        "cpp                   4       3         1        9 s  9 s  12 s  12 s       3 s        3.0          4   "
        "0.25/s\n"
        "vpp-packed            4       3         1        9 s  9 s  12 s  12 s   1.500 s        3.0         12   "
        "0.25/s\n"
        "\n"
        "share of the time  rank  compute  collective  transfer  imbalance  held  starved  empty  bubble\n"
        "-----------------  ----  -------  ----------  --------  ---------  ----  -------  -----  ------\n"
        "cpp                   0    75.0%        0.0%      0.0%       0.0%  0.0%    25.0%   0.0%   25.0%\n"
        "cpp                   1    75.0%        0.0%      0.0%      25.0%  0.0%     0.0%   0.0%   25.0%\n"
        "vpp-packed            0    75.0%        0.0%      0.0%       0.0%  0.0%    25.0%   0.0%   25.0%\n"
        "vpp-packed            1    75.0%        0.0%      0.0%      12.5%  0.0%    12.5%   0.0%   25.0%\n"
        "transfer: next input under way; imbalance: not computed; held: may not enter; "
        "starved: none waits; empty: no request\n"
        "\n"
        "vpp-packed gains 0.0% over cpp\n"
    )


def test_the_keys_of_json(folder: Path) -> None:
    document = shown(*four(folder, "--strategy", "cpp", "--chunk-size", "2"))
    assert document.keys() == {"pp", "cost", "entries"}
    (entry,) = document["entries"]
    assert entry["best_chunk_size"] == 4
    assert [each["chunk_size"] for each in entry["outcomes"]] == [4, 2]
    keys = {"requests", "tokens", "chunks", "makespan", "throughput", "ttft", "queueing", "depth", "ranks"}
    assert keys <= entry["outcomes"][0].keys()
    assert entry["outcomes"][0]["makespan"] == 12.0
    assert [rank["bubble_ratio"] for rank in entry["outcomes"][0]["ranks"]] == [0.25, 0.25]


def test_chunk_sizes_side_by_side(folder: Path) -> None:
    output = run(*four(folder, "--strategy", "cpp", "--chunk-size", "2")).output
    assert "tokens/s by chunk size   4       2\n" in output
    assert "cpp                     1*  0.857\n" in output


def test_gains_by_queue_depth(folder: Path) -> None:
    closed = ("--concurrency", "1", "--concurrency", "4", "--strategy", "cpp", "--strategy", "vpp-packed")
    output = run(*four(folder, *closed)).output
    assert (
        "four.json: vpp-packed gains throughput by queue depth\n\nrequests come  in system  tokens/s  over cpp\n"
        in output
    )
    table = output.rpartition("queue depth\n\n")[2].splitlines()[2:]
    assert [line.split()[:4] for line in table] == [["1", "at", "a", "time"], ["4", "at", "a", "time"]]
    assert table[0].split()[4:] == ["1.0", "0.6", "0.0%"]  # 6 + 4 + 4 + 6 s; of one chunk the V is no quicker


def test_of_one_contestant_there_are_no_gains_by_queue_depth(folder: Path) -> None:
    alone = ("--concurrency", "1", "--concurrency", "4", "--strategy", "cpp")
    assert "queue depth" not in run(*four(folder, *alone)).output


def test_a_refused_contestant_has_no_place_among_queue_depths(folder: Path) -> None:
    levels = ("--concurrency", "1", "--concurrency", "2", "--strategy", "cpp", "--strategy", "dcpp-sglang")
    output = run(*four(folder, *levels)).output
    assert (
        "over cpp\n-------------  ---------  --------  --------\n1 at a time\n2 at a time\n\nrefused: dcpp-" in output
    )
    assert run(*four(folder, *levels, "-o", str(folder / "out.svg"))).exit_code == 0
    titles = [
        each.text or "" for each in ElementTree.parse(folder / "out.svg").iter("{http://www.w3.org/2000/svg}title")
    ]
    assert len([title for title in titles if title.endswith(" requests in the system")]) == 2
    assert not any("dcpp-sglang" in title for title in titles)


def test_in_an_open_loop_the_first_token_counts(folder: Path) -> None:
    open_loop = ("--rate", "0.1", "--strategy", "cpp", "--strategy", "vpp-packed", "--chunk-size", "2")
    output = run(*four(folder, *open_loop)).output
    assert "mean TTFT by chunk size" in output
    assert "vpp-packed's mean TTFT is " in output
    assert output.endswith(" than that of cpp\n")
    assert "gains" not in output


def test_gains_in_throughput_and_in_ttft_are_in_tables_of_their_own(folder: Path) -> None:
    paces = ("--concurrency", "1", "--concurrency", "4", "--rate", "0.05", "--rate", "0.4")
    chosen = ("--strategy", "cpp", "--strategy", "vpp-packed", "--chunk-size", "2")
    output = run(*four(folder, *paces, *chosen)).output
    entries = shown(*four(folder, *paces, *chosen))["entries"]
    times = [max(o["throughput"] for o in e["outcomes"]) for e in entries[:4]]
    times += [min(o["ttft"]["mean"] for o in e["outcomes"]) for e in entries[4:]]
    tables = output.split(" by queue depth\n\n")[1:]
    heads = [table.splitlines()[0].partition("in system")[2].split() for table in tables]
    assert heads == [["tokens/s", "over", "cpp"], ["mean", "TTFT", "than", "cpp"]]
    closed, opened = ([line.split() for line in table.split("\n\n")[0].splitlines()[2:]] for table in tables)
    assert [line[-1] for line in closed] == [
        "0.0%" if (gain := 100 * (times[i + 1] / times[i] - 1)) == 0 else f"{gain:+.1f}%" for i in (0, 2)
    ]
    assert [line[-1] for line in opened] == ["shorter" if times[i + 1] <= times[i] else "longer" for i in (4, 6)]
    assert times[7] != times[6]


def test_an_open_loop_that_is_not_kept_up_with_is_said(folder: Path) -> None:
    queue = ("--strategy", "cpp", "--ttft-target", "9")
    slow, fast = (run(*four(folder, *queue, "--rate", each)).output for each in ("0.05", "1"))
    assert "note: requests come" not in slow
    # 12 tokens in chunks of 4 take rank 1 until 12 s, and no first token is there before the fourth comes
    (note,) = (line for line in fast.splitlines() if line.startswith("note: "))
    assert note.startswith("note: requests come faster than they are served, ")
    assert "cpp serves 0.2" in note
    assert "are in the system). The queue grows until no more come, so TTFT, queueing and goodput depend" in note
    assert "the choice of a chunk size" not in note
    sizes = run(*four(folder, *queue, "--rate", "1", "--chunk-size", "2")).output
    assert "and so does the choice of a chunk size by it" in sizes
    kept = [shown(*four(folder, *queue, "--rate", each))["entries"][0]["outcomes"][0] for each in ("0.05", "1")]
    assert [outcome["overrun"] for outcome in kept] == [False, True]


class TestMemory:
    MODEL = ("--model", "deepseek-v3.1", "--device", "h200", "--strategy", "cpp")

    def test_weights_that_do_not_fit_are_refused_as_compare_refuses_them(self, folder: Path) -> None:
        (folder / "one.json").write_text('[{"prompt_tokens": 8192}]')
        queue = ("--requests", str(folder / "one.json"), "--chunk-size", "8192")
        with pytest.raises(InputError) as error:
            run(*queue, *self.MODEL)
        with pytest.raises(InputError) as compared:
            CliRunner().invoke(compare, [*queue, *self.MODEL], catch_exceptions=False)
        words = r"the first because: rank 1 needs 6\d\d\.\d\d GiB a device and has 140\.40: 5\d\d\.\d\d GiB too much"
        assert re.search(words, str(error.value))
        assert re.search(words, str(compared.value))
        assert "bf16 weights alone do not fit" in str(error.value)

    def test_a_longest_prompt_that_does_not_fit_is_refused(self, folder: Path) -> None:
        (folder / "one.json").write_text('[{"prompt_tokens": 4000000}]')
        options = ("--tp", "8", "--weight-dtype", "fp8", "--requests", str(folder / "one.json"))
        with pytest.raises(InputError, match="the longest prompt alone does not fit"):
            run(*options, *self.MODEL)

    def crowd(self, folder: Path, *more: str) -> tuple[str, ...]:
        """Prompts of which a folded pipeline keeps as many resident as may be in flight."""
        (folder / "many.json").write_text(json.dumps([{"prompt_tokens": 131_072}] * 40))
        queue = ("--requests", str(folder / "many.json"), "--chunk-size", "128K", "--policy", "dual-queue")
        packed = ("--strategy", "vpp-packed", "--max-in-flight", "40")
        return (*queue, *self.MODEL[:-2], *packed, "--tp", "8", "--weight-dtype", "fp8", *more)

    def test_more_kv_at_once_than_the_devices_hold_is_a_warning(self, folder: Path) -> None:
        outcome = shown(*self.crowd(folder))["entries"][0]["outcomes"][0]
        assert outcome["ranks"][0]["kv_tokens"] == 40 * 131_072
        memory = outcome["memory"]
        assert (memory["rank"], memory["fits"], memory["kv_tokens"]) == (0, False, 40 * 131_072)
        assert memory["limit"] == 143_771 * 2**20
        text = run(*self.crowd(folder)).output
        assert "warning: the devices cannot hold what vpp-packed, dual-queue keeps resident" in text
        assert re.search(
            r"^vpp-packed, dual-queue +0 +174\.38 +268\.\d\d +140\.40  127\.\d\d too much$", text, re.MULTILINE
        )

    def test_the_remedy_of_the_warning_is_one(self, folder: Path) -> None:
        bounded = self.crowd(folder, "--max-resident-tokens", "1000000")
        memory = shown(*bounded)["entries"][0]["outcomes"][0]["memory"]
        assert memory["fits"] is True
        assert memory["kv_tokens"] == 7 * 131_072
        assert "warning" not in run(*bounded).output

    def test_costs_of_a_file_are_of_no_known_devices(self, folder: Path) -> None:
        assert "memory" not in shown(*four(folder, "--strategy", "cpp"))["entries"][0]["outcomes"][0]


def test_policies_are_contestants(folder: Path) -> None:
    chosen = ("--strategy", "cpp", "--policy", "fcfs", "--policy", "srpf")
    entries = shown(*four(folder, *chosen))["entries"]
    assert [(each["contestant"], each["policy"]) for each in entries] == [("cpp", "fcfs"), ("cpp, srpf", "srpf")]


def test_what_dynamic_chunks_learn_from_are_contestants(folder: Path) -> None:
    ways = ("--strategy", "dcpp", "--measured-time", "offline", "--measured-time", "wait", "--warmups", "2")
    entries = shown(*four(folder, *ways))["entries"]
    assert [each["contestant"] for each in entries] == ["dcpp (offline)", "dcpp (wait, 2 warm-ups)"]


def test_the_launch_of_a_forward_can_be_said(folder: Path) -> None:
    makespans = [
        shown(*four(folder, "--strategy", "cpp", "--launch", launch))["entries"][0]["outcomes"][0]["makespan"]
        for launch in ("0", "0.25")
    ]
    assert makespans == [12.0, 13.0]  # four chunks one after another, on one rank or the other


def test_the_stages_can_be_placed(folder: Path) -> None:
    both = ("--strategy", "cpp", "--strategy", "vpp-packed", "--placement", "loop", "--vp", "2")
    entries = shown(*four(folder, *both))["entries"]
    makespans = [each["outcomes"][0]["makespan"] for each in entries]
    assert makespans == [12.0, 10.5]  # a loop's second rank begins after 1.5 s, and has 9 s to run


def test_processes_find_the_same(folder: Path) -> None:
    assert shown(*four(folder, "--jobs", "2")) == shown(*four(folder))


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_pictures(folder: Path, suffix: str) -> None:
    file = folder / f"out{suffix}"
    levels = ("--concurrency", "1", "--concurrency", "2")
    assert run(*four(folder, *levels, "-o", str(file))).exit_code == 0
    text = file.read_text()
    drawn = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    words = " ".join(drawn.itertext())
    for what in ("throughput", "mean time to first token", "where the time goes", "throughput by queue depth"):
        assert what in words
    assert "four.json, 2 at a time" in words
    assert "imbalance" in words


def test_prefix_hits_of_a_trace() -> None:
    trace = ("--requests", str(EXAMPLES / "requests" / "conversation.jsonl"), "--cost", str(DEEPSEEK))
    plain, hits = (shown(*trace, "--strategy", "vpp-packed", *more) for more in ((), ("--prefix-hits",)))
    tokens = [document["entries"][0]["outcomes"][0]["tokens"] for document in (plain, hits)]
    assert tokens[0] > 1.2 * tokens[1]
    assert plain["entries"][0]["rate"] == pytest.approx(11 / 3, rel=0.1)


@pytest.mark.skipif(not TRACE.exists(), reason="needs Mooncake's trace beside the repository")
def test_ten_thousand_requests_of_a_real_trace() -> None:
    options = ("--requests", str(TRACE), "--prefix-hits", "--limit", "10000", "--rate", "0.8", "--cost", str(DEEPSEEK))
    (entry,) = shown(*options, "--strategy", "vpp-packed", "--ttft-target", "10")["entries"]
    outcome = entry["outcomes"][0]
    assert outcome["requests"] == 10_000
    assert outcome["tokens"] == 76_959_094
    assert 0.5 < outcome["goodput"] < 0.8


REFUSED = {
    "nothing comes": ((), "nothing says what requests come"),
    "limit of a suite": (("--suite", "mixed", "--limit", "3"), "--limit: says nothing without --requests"),
    "hits of a suite": (("--suite", "mixed", "--prefix-hits"), "--prefix-hits: says nothing without --requests"),
    "picture and JSON": (("--suite", "mixed", "--json", "-o", "x.svg"), "a picture is no JSON"),
    "no picture": (("--suite", "mixed", "-o", "x.pdf"), ".pdf is no format of a simulation"),
    "too long a prompt": (("--suite", "long-64k", "--max-resident-tokens", "100"), "of which 100 may be resident"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        run("--cost", str(DEEPSEEK), *arguments)
    assert message in str(error.value)


def test_without_costs_nothing_can_be_said() -> None:
    with pytest.raises(InputError, match="real prompts need costs"):
        run("--suite", "mixed")


def test_if_nothing_takes_time_nothing_can_be_compared(folder: Path) -> None:
    (folder / "round.json").write_text(ROUND.replace("0.5", "0").replace("0.25", "0"))
    with pytest.raises(InputError, match="nothing takes time"):
        run(*four(folder))


def test_a_refused_trial_leaves_the_others(folder: Path) -> None:
    result = run(*four(folder, "--strategy", "dcpp-sglang", "--strategy", "cpp", "--chunk-size", "200"))
    assert result.exit_code == 0
    assert "refused: dcpp-sglang: " in result.output
    assert "\ncpp  " in result.output


def test_a_workload_that_nobody_serves_is_said_to_be_refused(folder: Path) -> None:
    (folder / "long.json").write_text('[{"prompt_tokens": 40}]')
    options = ("--requests", str(folder / "long.json"), "--max-resident-tokens", "20", "--strategy", "vpp-packed")
    assert run(*four(folder, *options)).output.endswith(
        "\n\nlong.json: 1 request, at once, 40 tokens to compute; round, 2 ranks\n\n"
        "refused: vpp-packed: request r0 has 40 tokens, of which 20 may be resident\n"
        "  hint: raise the limit on resident tokens\n"
    )


def test_interference_is_named(folder: Path) -> None:
    (folder / "round.json").write_text(ROUND.replace('"name"', '"interference": 0.1, "name"'))
    assert "interference of transfers with compute is left out" in run(*four(folder)).stderr


class TestContest:
    def test_trials_are_all_combinations(self, folder: Path) -> None:
        setting = _trials(folder, 4)[0].setting
        workloads = [suite("short-4k"), suite("short-8k")]
        made = list(trials(workloads, [setting, replace(setting, policy="srpf")], [4, 8]))
        assert [(t.workload.name, t.contestant, t.setting.options.chunk_size) for t in made] == [
            (name, contestant, size)
            for name in ("short-4k", "short-8k")
            for contestant in ("cpp", "cpp, srpf")
            for size in (4, 8)
        ]

    def test_the_best_of_equals_is_the_first(self, folder: Path) -> None:
        entry = Entry(tuple(Served(trial) for trial in _trials(folder, 4, 8)))
        assert entry.best.chunk_size == 4

    def test_refused_ones_gain_nothing(self, folder: Path) -> None:
        (trial,) = _trials(folder, 4096)
        refused, done = Entry((Served(trial, refusal="no"),)), Entry((judge(trial),))
        assert refused.gain_over(done) is None
        assert done.gain_over(done) == 0.0

    def test_done_is_called_after_each(self, folder: Path) -> None:
        calls: list[None] = []
        (entry,) = contest(_trials(folder, 4096, 8192, 16384), done=lambda: calls.append(None))
        assert len(calls) == len(entry.tried) == 3


def _trials(folder: Path, *sizes: int) -> list[Trial]:
    setting = Setting(read_cost(str(folder / "round.json")), Options(strategy="cpp", pp=2))
    return list(trials([suite("short-4k")], [setting], sizes))
