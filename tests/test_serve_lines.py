"""What a server reads: requests and cancellations, one a line, and what it says to anything else."""

from __future__ import annotations

import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vppc.errors import InputError
from vppc.ir.schedule import Request
from vppc.serving.lines import LONGEST, Cancel, Line, parse_line, read_lines


def parsed(text: str) -> Request | Cancel:
    return parse_line(Line(7, text.encode()))


def test_requests_and_cancellations() -> None:
    assert parsed('{"id": "a", "prompt_tokens": 5}') == Request("a", 5)
    assert parsed('{"prompt_tokens": 5, "cached_tokens": 2, "arrival": 1, "ttft_target": 3}\r\n') == Request(
        "line-7", 5, 2, 1.0, {"ttft_target": 3}
    )
    assert isinstance(parsed('{"prompt_tokens": 5, "x": ' + 63 * "[" + 63 * "]" + "}"), Request)
    assert parsed('{"cancel": "a"}') == Cancel("a", 0.0)
    assert parsed('{"cancel": "a", "arrival": 2.5}') == Cancel("a", 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 7: the JSON text ends too early"),
        ("[]", "line 7: a list is no request"),
        ("{}", 'line 7: the key "prompt_tokens" is missing'),
        (
            '{"id": "a", "tokens": 5}',
            'line 7: the key "prompt_tokens" is missing\n  hint: there is "tokens"; the keys are ',
        ),
        ('{"prompt_tokens": "5"}', "line 7: prompt_tokens: "),
        ('{"prompt_tokens": 5, "arrival": -1}', "line 7: arrival: "),
        ('{"prompt_tokens": 5, "ttft_target": "soon"}', "line 7: ttft_target: "),
        ('{"prompt_tokens": 5, "x": ' + 64 * "[" + 64 * "]" + "}", "line 7: values are nested too deeply"),
        ('{"cancel": 5}', "line 7: cancel: "),
        ('{"id": "b", "cancel": "a"}', "line 7: asks for a request (id) and gives one up"),
        ("9" * (LONGEST + 1), f"line 7: is longer than {LONGEST:,} bytes"),
    ],
    ids=["half", "list", "empty", "other", "text", "past", "target", "deep", "number", "both", "long"],
)
def test_what_is_no_request(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(text)
    assert str(caught.value).startswith(message)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InputError, match=r"line 7: byte 0xff is not UTF-8"):
        parse_line(Line(7, b'{"id": "\xff"}'))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    for line in read_lines(io.BytesIO(data)):
        with suppress(InputError):
            assert isinstance(parse_line(line), Request | Cancel)


def test_lines_are_counted_and_long_ones_are_cut() -> None:
    text = b"one\n\n" + b"x" * (3 * LONGEST) + b"\ntwo"
    lines = list(read_lines(io.BytesIO(text)))
    assert [(line.number, line.text[:3], len(line.text)) for line in lines] == [
        (1, b"one", 4),
        (3, b"xxx", LONGEST + 1),
        (4, b"two", 3),
    ]
