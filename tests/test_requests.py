"""Request files: four forms, their order and their prefix hits, and one message for what is wrong."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vppc.errors import InputError, VppcError
from vppc.inputs.requests import parse_requests, read_requests
from vppc.ir.schedule import Request
from vppc.serving.lines import parse_line, read_lines

OURS = """\
[{"id": "b", "prompt_tokens": 4096},
 {"prompt_tokens": 1, "arrival": 3},
 {"id": "a", "prompt_tokens": 10, "cached_tokens": 9, "arrival": 2.5, "user": {"tier": 1}}]
"""
LINES = """\
{"id": "b", "prompt_tokens": 4096}

{"prompt_tokens": 1, "arrival": 3}
{"id": "a", "prompt_tokens": 10, "cached_tokens": 9, "arrival": 2.5, "user": {"tier": 1}}
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 3]}
{"timestamp": 2500.5, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 4]}
{"timestamp": 3536999, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3537000, "input_length": 1024, "output_length": 5, "hash_ids": [0, 3]}
"""
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
    "2023-11-16 18:15:46.6805901,879,55"
)
TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation_trace.jsonl"


def facts(text: str, **options: Any) -> list[tuple[str, int, int, float]]:
    return [(r.id, r.prompt_tokens, r.cached_tokens, r.arrival) for r in parse_requests(text, **options)]


def test_our_list() -> None:
    requests = parse_requests(OURS)
    assert requests == (
        Request("b", 4096),
        Request("r1", 1, 0, 3.0),
        Request("a", 10, 9, 2.5, {"user": {"tier": 1}}),
    )
    assert parse_requests(f'{{"requests": {OURS}, "more": 1}}') == requests
    assert parse_requests(json.dumps({"requests": json.loads(OURS)}, indent=1)) == requests


def test_our_requests_one_a_line_are_those_of_the_list() -> None:
    assert parse_requests(LINES) == parse_requests(OURS)
    assert parse_requests(LINES.replace("\n", "\r\n"), limit=2) == parse_requests(OURS)[:2]
    assert facts('{"prompt_tokens": 131072}') == [("r0", 131072, 0, 0.0)]
    assert [prompt.id for prompt in parse_requests(LINES)] == [
        asked.id if "line" not in asked.id else "r1"  # the one without an id is named by its line there
        for asked in (parse_line(line) for line in read_lines(BytesIO(LINES.encode())))
        if isinstance(asked, Request)
    ]


def test_a_made_up_id_evades_one_that_is_given() -> None:
    given_ids = [{"prompt_tokens": 1}, {"prompt_tokens": 1, "id": "r0"}, {"prompt_tokens": 1, "id": "r0_"}]
    assert [request.id for request in parse_requests(json.dumps(given_ids))] == ["r0__", "r0", "r0_"]


def test_mooncakes_form_keeps_the_order_of_the_file() -> None:
    assert facts(MOONCAKE) == [
        ("r0", 1100, 0, 0.0),
        ("r1", 1024, 0, 3.0),
        ("r2", 1300, 0, 2.5005),
        ("r3", 1100, 0, 3536.999),
        ("r4", 1024, 0, 3537.0),
    ]


def test_prefix_hits_are_the_leading_blocks_that_were_seen_but_never_the_whole_prompt() -> None:
    assert [cached for _, _, cached, _ in facts(MOONCAKE, prefix_hits=True)] == [0, 512, 1024, 1099, 1023]


def test_a_block_behind_a_new_one_is_no_prefix_hit() -> None:
    lines = [
        {"timestamp": 0, "input_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 0, "input_length": 5, "hash_ids": [3, 2, 1]},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert [cached for _, _, cached, _ in facts(text, prefix_hits=True, block_tokens=2)] == [0, 0]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=8), st.integers(1, 4))
@settings(max_examples=80)
def test_prefix_hits_as_an_oracle_finds_them(prompts: list[list[int]], block: int) -> None:
    text = "\n".join(json.dumps({"timestamp": 0, "input_length": len(ids) * block, "hash_ids": ids}) for ids in prompts)
    for index, (_, tokens, cached, _) in enumerate(facts(text, prefix_hits=True, block_tokens=block)):
        before = {each for ids in prompts[:index] for each in ids}
        hits = max(n for n in range(len(prompts[index]) + 1) if before.issuperset(prompts[index][:n]))
        assert cached == min(hits * block, tokens - 1)


def test_azures_form_counts_from_the_earliest() -> None:
    assert facts(AZURE) == [("r0", 374, 0, 0.0), ("r1", 396, 0, 4.314579), ("r2", 879, 0, 1e-7)]
    assert facts(AZURE.replace("\r\n", "\n") + "\n") == facts(AZURE)


@pytest.mark.parametrize(
    ("first", "second", "arrival"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.017335+00:00", 0.007405),
        ("2024-05-10T00:00:00Z", "2024-05-10T02:00:00+02:00", 0.0),
        ("2023-12-31 23:59:59", "2024-01-01 00:00:00.5", 1.5),
        ("2023-11-16 18:15:46.000000001", "2023-11-16 18:15:46.000000003", 2e-9),
    ],
)
def test_times(first: str, second: str, arrival: float) -> None:
    text = f"GeneratedTokens,ContextTokens,TIMESTAMP\n1,10,{first}\n1,20,{second}\n"
    assert facts(text) == [("r0", 10, 0, 0.0), ("r1", 20, 0, arrival)]


@pytest.mark.parametrize("text", [OURS, LINES, MOONCAKE, AZURE])
def test_limit_takes_the_first(text: str) -> None:
    assert parse_requests(text, limit=2) == parse_requests(text)[:2]
    assert parse_requests(text, limit=99) == parse_requests(text)


def test_a_trace_is_read_no_further_than_the_limit() -> None:
    assert len(parse_requests(MOONCAKE + "broken", limit=5)) == 5


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"\xef\xbb\xbf" + AZURE.encode())
    assert read_requests(str(file)) == parse_requests(AZURE)


@pytest.mark.skipif(not TRACE.exists(), reason="the Mooncake trace is not beside the repository")
def test_the_whole_mooncake_trace() -> None:
    requests = read_requests(str(TRACE), prefix_hits=True)  # checks that every hash_ids has ceil(length / 512) ids
    assert len(requests) == 12031
    assert sum(request.prompt_tokens for request in requests) == 144793823
    assert sum(request.cached_tokens for request in requests) == 54098293
    assert requests[-1] == Request("r12030", 20774, 512, 3536.999)


INTEGER = "an integer, without quotes or a decimal point"
FORMS = (
    "a JSON list of {prompt_tokens, ..}, or one a line, as vppc serve takes them; Mooncake's lines with "
    "timestamp and input_length; Azure's CSV with the columns TIMESTAMP and ContextTokens"
)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (OURS, "4096", "0", "[0].prompt_tokens: 0 is too small\n  hint: at least 1"),
        (OURS, "4096", "-5", "[0].prompt_tokens: -5 is too small\n  hint: at least 1"),
        (OURS, "4096", "1e3", f"[0].prompt_tokens: 1000.0 is not an integer\n  hint: {INTEGER}"),
        (OURS, "4096", "2147483648", "[0].prompt_tokens: 2147483648 is too large\n  hint: at most 2147483647"),
        (OURS, '"prompt_tokens": 1,', "", '[1]: the key "prompt_tokens" is missing'),
        (OURS, '"arrival": 3', '"arrival": -3', "[1].arrival: -3 is too small\n  hint: at least 0"),
        (OURS, '"arrival": 3', '"arrival": NaN', "line 2, column 34: NaN is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        (OURS, '"cached_tokens": 9', '"cached_tokens": 10', "[2].cached_tokens: 10 leaves no token of the prompt to "
         "compute\n  hint: at most 9, one less than prompt_tokens"),
        (OURS, '"id": "a"', '"id": "b"', '[2].id: the id "b" is taken by [0]\n'
         "  hint: an id of its own for each request, or none"),
        (OURS, '"id": "a"', '"id": 7', "[2].id: 7 is not a string\n  hint: a string in quotes"),
        (OURS, '"id": "a"', '"id": "a", "id": "b"', '[2]: the key "id" appears twice\n'
         "  hint: every key of an object once"),
        (OURS, "}}]\n", "}}", "line 3, column 91: the JSON text ends too early\n"
         "  hint: the file may be truncated; make it again"),
        (OURS, OURS, "[]", "has no requests\n  hint: at least one"),
        (OURS, OURS, "{}", f'the key "requests" is missing\n  hint: {FORMS}'),
        (OURS, OURS, '{"id": "a", "tokens": 5}\n', f'the key "requests" is missing\n  hint: {FORMS}'),
        (LINES, "4096", "0", "line 1: prompt_tokens: 0 is too small\n  hint: at least 1"),
        (LINES, '"prompt_tokens": 10', '"tokens": 10', 'line 4: the key "prompt_tokens" is missing\n'
         '  hint: there is "tokens", "user"; the keys are id, prompt_tokens, cached_tokens, arrival, ttft_target'),
        (LINES, '"prompt_tokens": 4096', '"tokens": 10', 'line 1: the key "prompt_tokens" is missing\n'
         '  hint: there is "tokens"; the keys are id, prompt_tokens, cached_tokens, arrival, ttft_target'),
        (LINES, '"cached_tokens"', '"cached-tokens"', 'line 4: the key "cached-tokens" is unknown\n'
         '  hint: did you mean "cached_tokens"?'),
        (LINES, '"cached_tokens": 9', '"cached_tokens": 10', "line 4: cached_tokens: 10 leaves no token of the prompt "
         "to compute\n  hint: at most 9, one less than prompt_tokens"),
        (LINES, '"id": "a"', '"id": "b"', 'line 4: id: the id "b" is taken by line 1\n'
         "  hint: an id of its own for each request, or none"),
        (LINES, '"arrival": 3}', '"arrival": 3', "line 3, column 34: the JSON text ends too early\n"
         "  hint: the file may be truncated; make it again"),
        (LINES, '{"prompt_tokens": 1, "arrival": 3}', '{"cancel": "b"}', "line 3: only a server can cancel\n"
         "  hint: leave the line out"),
        (LINES, '{"prompt_tokens": 1, "arrival": 3}', "7", "line 3: 7 is not an object\n  hint: an object in { }"),
        (LINES, '{"id": "b", "prompt_tokens": 4096}', '{"format": "vppc.cost"}', "is a cost file, not a list of "
         "requests\n  hint: --cost takes a cost file"),
        (OURS, OURS, '{"requests": null}', "requests: null is not a list\n  hint: a list in [ ]"),
        (OURS, OURS, '{"requests": 3}', "requests: 3 is not a list\n  hint: a list in [ ]"),
        (OURS, OURS, '{"requests": [{"prompt_tokens": 2, "cached_tokens": 2}]}', "requests[0].cached_tokens: 2 leaves "
         "no token of the prompt to compute\n  hint: at most 1, one less than prompt_tokens"),
        (OURS, OURS, "[3]", "[0]: 3 is not an object\n  hint: an object in { }"),
        (OURS, OURS, "", "is empty\n  hint: at least one request"),
        (OURS, OURS, " \r\n\n", "is empty\n  hint: at least one request"),
        (OURS, OURS, "r0 4096\n", f'"r0 4096" starts no form of request file\n  hint: {FORMS}'),
        (OURS, OURS, "[" * 10**5, "values are nested too deeply\n  hint: at most some hundred levels"),
        (MOONCAKE, "1024", "0", "line 2: input_length: 0 is too small\n  hint: at least 1"),
        (MOONCAKE, "1024", "true", f"line 2: input_length: true is not an integer\n  hint: {INTEGER}"),
        (MOONCAKE, "3000", "-1", "line 2: timestamp: -1 is too small\n  hint: at least 0"),
        (MOONCAKE, "3000", "Infinity", "line 2, column 15: Infinity is not a finite number\n"
         "  hint: numbers that fit 64 bits"),
        (MOONCAKE, "3000", '"3000"', 'line 2: timestamp: "3000" is not a number\n  hint: a number, without quotes'),
        (MOONCAKE, '"input_length": 1300, ', "", 'line 3: the key "input_length" is missing'),
        (MOONCAKE, "[0, 1, 4]}", "[0, 1,", "line 3, column 83: the JSON text ends too early\n"
         "  hint: the file may be truncated; make it again"),
        (MOONCAKE, ", 2]}", ", ", "line 1, column 78: the JSON text ends too early\n"
         "  hint: the file may be truncated; make it again"),
        (OURS, '"prompt_tokens": 1,', '"prompt_token": 1,', '[1]: the key "prompt_token" is unknown\n'
         '  hint: did you mean "prompt_tokens"?'),
        (OURS, '"cached_tokens"', '"cached-tokens"', '[2]: the key "cached-tokens" is unknown\n'
         '  hint: did you mean "cached_tokens"?'),
        (OURS, '"prompt_tokens": 1,', '"prompt": 1,', '[1]: the key "prompt_tokens" is missing\n'
         '  hint: there is "prompt"; the keys are id, prompt_tokens, cached_tokens, arrival, ttft_target'),
        (OURS, OURS, '{"requests": [{"id": "a", "tokens": 5}]}', 'requests[0]: the key "prompt_tokens" is missing\n'
         '  hint: there is "tokens"; the keys are id, prompt_tokens, cached_tokens, arrival, ttft_target'),
        (OURS, '"prompt_tokens": 1,', '"tokens_prompt": 1, "prompttoken": 1,', '[1]: the key "prompttoken" is unknown\n'
         '  hint: did you mean "prompt_tokens"?'),
        (MOONCAKE, '"input_length": 1300, ', '"length": 1300, ', 'line 3: the key "input_length" is missing'),
        (MOONCAKE, '"hash_ids": [0, 1, 4]', '"hash_id": []', 'line 3: the key "hash_id" is unknown\n'
         '  hint: did you mean "hash_ids"?'),
        (MOONCAKE, "[0, 1, 4]}", "[0, 1, 4]}\n", "line 4: is blank\n  hint: one request a line"),
        (MOONCAKE, '{"timestamp": 3000', '3, {"timestamp": 3000', "line 2, column 2: not JSON: extra data"),
        (AZURE, ",396", ",0", "line 3: ContextTokens: 0 is too small\n  hint: at least 1"),
        (AZURE, ",396", ",-1", "line 3: ContextTokens: -1 is too small\n  hint: at least 1"),
        (AZURE, ",396", ",3.5", 'line 3: ContextTokens: "3.5" is not an integer\n  hint: at least 1'),
        (AZURE, ",396", ",\uff13", 'line 3: ContextTokens: "\\uff13" is not an integer\n  hint: at least 1'),
        (AZURE, ",396", ",9999999999", "line 3: ContextTokens: 9999999999 is too large\n  hint: at most 2147483647"),
        (AZURE, ",396", "", "line 3: has 2 values for 3 columns\n"
         "  hint: a value each for TIMESTAMP,ContextTokens,GeneratedTokens"),
        (AZURE, ",396", ',"396', "line 3: not CSV: unexpected end of data"),
        (AZURE, "18:15:50.99", "18:65:50.99", 'line 3: TIMESTAMP: "2023-11-16 18:65:50.9951690" is not a time\n'
         "  hint: such as 2023-11-16 18:15:46.6805900"),
        (AZURE, "2023-11-16 18:15:50.9951690", "1700158550", 'line 3: TIMESTAMP: "1700158550" is not a time\n'
         "  hint: such as 2023-11-16 18:15:46.6805900"),
        (AZURE, "44\r\n", "44\r\n\r\n", "line 3: is blank\n  hint: one request a line"),
        (AZURE, "TIMESTAMP", "TIME", f'"TIME,ContextTokens,GeneratedTokens" starts no form of request file\n'
         f"  hint: {FORMS}"),
        (AZURE, AZURE, "TIMESTAMP,ContextTokens\n", "has no requests\n  hint: at least one"),
        (AZURE, AZURE, "\n" + AZURE, "line 1: is blank\n  hint: one request a line"),
    ],
)  # fmt: skip
def test_what_is_wrong(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(InputError) as raised:
        parse_requests(text.replace(old, new, 1), "f")
    assert str(raised.value) == f"f: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OURS, "has no hash_ids to find prefix hits by\n"
         "  hint: leave out prefix hits, or give a JSONL trace with hash_ids"),
        (AZURE, "has no hash_ids to find prefix hits by\n"
         "  hint: leave out prefix hits, or give a JSONL trace with hash_ids"),
        ('{"timestamp": 1, "input_length": 1}', "line 1: hash_ids: is missing\n"
         "  hint: prefix hits are found by it; leave them out"),
        (MOONCAKE.replace(", 3]", "]"), "line 2: hash_ids: 1 blocks do not fit a prompt of 1024 tokens\n"
         "  hint: 2 blocks of 512 tokens"),
    ],
)  # fmt: skip
def test_prefix_hits_need_the_ids_of_all_blocks(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_requests(text, "f", prefix_hits=True)
    assert str(raised.value) == f"f: {message}"


@given(st.data())
@settings(max_examples=300)
def test_any_change_of_bytes_gives_requests_or_a_message(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([OURS, LINES, MOONCAKE, AZURE]))
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.text('{}[]",:-+0123456789.eE ntruNIZT\\\r\n\x00é\ud800', max_size=3))
    changed = text[:at] + new + text[at + data.draw(st.integers(0, 3)) :]
    try:
        requests = parse_requests(changed, prefix_hits=text is MOONCAKE)
    except VppcError:
        return
    assert len({request.id for request in requests}) == len(requests)
    assert all(0 <= request.cached_tokens < request.prompt_tokens for request in requests)
    assert all(0 <= request.arrival < float("inf") for request in requests)
