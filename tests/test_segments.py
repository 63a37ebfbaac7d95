"""A schedule followed by its segments is a schedule: read in one go or piece by piece, open or closed."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edits import by_hand, changed
from tests.random_schedules import random_schedule
from vppc.errors import CheckFailed, Finding
from vppc.ir.certificate import Certificate
from vppc.ir.instruction import WIDTH, Forward, Instruction, Program, Recv, Sample, Send, Wait
from vppc.ir.rules import RULES, Verifier, check, check_stream
from vppc.ir.schedule import Channel, Chunk, Model, Part, Request, Schedule, Stage
from vppc.ir.segment import Continuation, Segment
from vppc.ir.stream import extend


def cut(schedule: Schedule, cuts: list[list[int]]) -> tuple[Schedule, list[Segment]]:
    """The schedule up to the lengths in ``cuts[0]``, and segments up to those in the others and to its end.

    Requests and chunks come with the first instruction that needs them.
    """
    lengths = [*cuts, [len(program) for program in schedule.programs]]
    chunks = [0]
    for stop in lengths[:-1]:
        used = [
            instruction.chunk
            for program, length in zip(schedule.programs, stop, strict=True)
            for instruction in program[:length]
            if not isinstance(instruction, Wait)
        ]
        chunks.append(max([chunks[-1], *(chunk + 1 for chunk in used)]))
    chunks.append(len(schedule.chunks))
    requests = [0]
    for stop in chunks[1:-1]:
        used = [part.request + 1 for chunk in schedule.chunks[:stop] for part in chunk.parts]
        requests.append(max([requests[-1], *used]))
    requests.append(len(schedule.requests))
    first = replace(
        schedule,
        requests=schedule.requests[: requests[1]],
        chunks=schedule.chunks[: chunks[1]],
        programs=tuple(
            replace(program, code=program.code[: stop * WIDTH])
            for program, stop in zip(schedule.programs, lengths[0], strict=True)
        ),
    )
    segments = [
        Segment(
            number,
            "",
            schedule.requests[requests[number] : requests[number + 1]],
            schedule.chunks[chunks[number] : chunks[number + 1]],
            tuple(
                Continuation(rank, start, program.code[start * WIDTH : stop * WIDTH])
                for rank, (program, start, stop) in enumerate(
                    zip(schedule.programs, lengths[number - 1], lengths[number], strict=True)
                )
                if stop > start
            ),
        )
        for number in range(1, len(lengths))
    ]
    return first, segments


@st.composite
def streams(draw: st.DrawFn) -> tuple[Schedule, Schedule, list[Segment]]:
    """A schedule, and the same in pieces."""
    schedule = random_schedule(Random(draw(st.integers(0, 10**6))), max_pp=3)
    count = draw(st.integers(1, 3))
    marks = [sorted(draw(st.lists(st.integers(0, len(p)), min_size=count, max_size=count))) for p in schedule.programs]
    return schedule, *cut(schedule, [list(stops) for stops in zip(*marks, strict=True)])


@given(streams())
@settings(max_examples=60)
def test_a_stream_is_proven_open_after_every_segment_and_closed_at_its_end(
    stream: tuple[Schedule, Schedule, list[Segment]],
) -> None:
    whole, first, segments = stream
    verifier = Verifier(first)
    assert verifier.findings(closed=False) == ()
    for segment in segments:
        verifier.extend(segment)
        assert verifier.findings(closed=False) == ()
    assert verifier.findings(closed=True) == ()
    joined = first
    for segment in segments:
        joined = extend(joined, segment)
    assert joined == whole
    assert verifier.certificate().lifetimes == whole_lifetimes(whole)


def whole_lifetimes(schedule: Schedule) -> tuple[array[int], ...]:
    verifier = Verifier(schedule)
    verifier.findings(closed=True)
    return verifier.certificate().lifetimes


@given(streams(), st.data())
@settings(max_examples=60)
def test_a_fault_is_found_in_pieces_just_when_it_is_in_the_whole(
    stream: tuple[Schedule, Schedule, list[Segment]], data: st.DataObject
) -> None:
    whole, first, segments = stream
    rank = data.draw(st.sampled_from([p.rank for p in whole.programs if len(p)]))
    index = data.draw(st.integers(0, len(whole.programs[rank]) - 1))
    field = {Forward: "stage", Send: "buffer", Recv: "buffer", Wait: "of", Sample: "buffer"}[
        type(whole.programs[rank][index])
    ]
    bad = changed(whole, rank, index, **{field: data.draw(st.integers(0, 6))})
    lengths = [[len(program) for program in first.programs]]
    for segment in segments[:-1]:
        more = {program.rank: len(program) for program in segment.programs}
        lengths.append([length + more.get(rank, 0) for rank, length in enumerate(lengths[-1])])
    start, rest = cut(bad, lengths)
    if (start.chunks, start.requests) != (first.chunks, first.requests):
        return
    in_pieces, at_once = check_stream(start, rest, closed=True), check(bad)
    assert bool(in_pieces) == bool(at_once)
    if at_once:  # of which a fault that comes later hides what follows from it at a deeper level
        found = {finding.code for finding in at_once} | {"P1", "R1"}
        deepest = max(RULES[finding.code].level for finding in at_once)
        assert all(each.code in found or RULES[each.code].level > deepest for each in in_pieces)


def by_segment() -> tuple[Schedule, Segment]:
    first, (segment,) = cut(by_hand(), [[8, 6]])
    return first, segment


def test_an_open_stream_may_leave_things_that_a_closed_one_may_not() -> None:
    first, segment = by_segment()
    assert check_stream(first, [], closed=False) == ()
    assert {finding.code for finding in check_stream(first, [], closed=True)} == {"P4", "P11", "P13"}
    assert check_stream(first, [segment], closed=True) == ()


def test_a_rank_of_an_open_stream_may_wait_for_what_is_not_posted_yet() -> None:
    first, (segment,) = cut(by_hand(), [[13, 0]])
    assert check_stream(first, [], closed=False) == ()
    assert check_stream(first, [segment], closed=True) == ()


def test_places_in_a_segment_count_from_the_start_of_the_stream() -> None:
    first, segment = by_segment()
    wrong = Program.of(0, 3, [Recv(1, 3, 1, 1, 0)]).code
    rank0, rank1 = segment.programs
    bad = replace(segment, programs=(replace(rank0, code=wrong + rank0.code[WIDTH:]), rank1))
    (finding,) = check_stream(first, [bad], closed=True)
    assert (finding.code, finding.place) == ("B2", "programs[0].instructions[11] (rank 0)")


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


def test_a_segment_belongs_to_the_file_before_it() -> None:
    first, segment = by_segment()
    mine, other = (hashlib.sha256(data).hexdigest() for data in (b"schedule", b"another"))
    verifier = Verifier(first, mine)
    verifier.extend(replace(segment, previous=mine))
    assert verifier.findings(closed=True) == ()
    verifier = Verifier(first, mine)
    verifier.extend(replace(segment, previous=other))
    finding = only(verifier.findings(closed=True))
    assert str(finding) == (
        f"G2 segment 1: previous: is {other}, but the file before it has the digest {mine}\n"
        "  hint: give the very file that the segment was made for"
    )


def test_the_second_segment_belongs_to_the_first() -> None:
    first, segments = cut(by_hand(), [[8, 6], [10, 8]])
    verifier = Verifier(first, "a" * 64)
    verifier.extend(replace(segments[0], previous="a" * 64), "b" * 64)
    verifier.extend(replace(segments[1], previous="a" * 64), "c" * 64)
    assert only(verifier.findings(closed=True)).code == "G2"


@pytest.mark.parametrize(
    ("order", "code"), [([1, 0], "G1"), ([0, 0], "G1"), ([1], "G1")], ids=["swapped", "twice", "one left out"]
)
def test_segments_come_in_order(order: list[int], code: str) -> None:
    first, segments = cut(by_hand(), [[8, 6], [10, 8]])
    assert code in {finding.code for finding in check_stream(first, [segments[i] for i in order], closed=True)}


def test_after_a_fault_no_segment_is_read() -> None:
    first, segments = cut(by_hand(), [[8, 6], [10, 8]])
    late = replace(segments[0], programs=(replace(segments[0].programs[0], start=7), *segments[0].programs[1:]))
    finding = only(check_stream(first, [late, segments[1]], closed=True))
    assert (finding.code, finding.place) == ("G3", "segment 1: programs[0].from")


def test_chunks_of_a_segment_go_on_where_the_prompt_was_left() -> None:
    first, segment = cut(by_hand(), [[1, 0]])[0], cut(by_hand(), [[1, 0]])[1][0]
    assert len(first.chunks) == 1
    chunk = replace(segment.chunks[0], parts=(Part(0, 2, 2),))
    finding = only(check_stream(first, [replace(segment, chunks=(chunk,))], closed=True))
    assert (finding.code, finding.place) == ("R3", "chunks[1].parts[0]")


def test_a_segment_cannot_use_more_buffers_than_the_schedule_has() -> None:
    first, segment = by_segment()
    rank0, rank1 = segment.programs
    bad = replace(rank0, code=Program.of(0, 9, [Recv(1, 3, 1, 1, 7)]).code + rank0.code[WIDTH:])
    assert "B1" in {
        finding.code for finding in check_stream(first, [replace(segment, programs=(bad, rank1))], closed=True)
    }


def test_extending_needs_the_right_length() -> None:
    first, segment = by_segment()
    with pytest.raises(CheckFailed) as caught:
        extend(extend(first, segment), segment)
    assert {finding.code for finding in caught.value.findings} == {"G3"}


def test_extending_joins_notes_and_drops_what_was_said_of_the_shorter_one() -> None:
    first, segment = by_segment()
    rank0, rank1 = segment.programs
    noted = replace(segment, programs=(replace(rank0, notes={1: {"why": "late"}}), rank1))
    base = replace(
        first, extra={"prediction": {}, "provenance": {"by": "hand"}}, certificate=Certificate(array("i"), ())
    )
    joined = extend(base, noted)
    assert joined.programs[0].notes == {9: {"why": "late"}}
    assert joined.extra == {"provenance": {"by": "hand"}}
    assert joined.certificate is None


def test_no_part_of_a_cancelled_request_follows() -> None:
    first, (segment,) = cut(by_hand(), [[1, 1]])
    assert [len(first.chunks), len(segment.chunks)] == [1, 1]
    finding = only(check_stream(replace(first, extra={"cancelled": [0]}), [segment], closed=False))
    assert (finding.code, finding.place) == ("R8", "chunks[1].parts[0]")
    assert finding.problem == "belongs to r0, which is cancelled"


def test_a_segment_may_end_a_request_early() -> None:
    whole = by_hand()
    longer = replace(whole, requests=(replace(whole.requests[0], prompt_tokens=9),))
    assert {finding.code for finding in check_stream(longer, [], closed=True)} == {"R5"}
    end = Segment(1, "", extra={"cancelled": [0]})
    assert {finding.code for finding in check_stream(longer, [end], closed=False)} == {"P12"}
    assert extend(longer, end).extra["cancelled"] == [0]


def forgetful(first: Schedule, segments: list[Segment]) -> tuple[Finding, ...]:
    """What is found when a stream is forgotten as far as can be behind the schedule and every segment."""
    verifier = Verifier(first)
    for number, segment in enumerate(segments):
        if not verifier.findings(closed=False):
            coming = [part.request for each in segments[number:] for chunk in each.chunks for part in chunk.parts]
            verifier.forget(min(coming, default=len(verifier.prompts.requests) + 10**6))
        verifier.extend(segment)
    return verifier.findings(closed=True)


@given(streams(), st.data())
@settings(max_examples=200)
def test_what_is_forgotten_is_not_missed(stream: tuple[Schedule, Schedule, list[Segment]], data: st.DataObject) -> None:
    _, first, segments = stream
    assert forgetful(first, segments) == ()
    number = data.draw(st.integers(0, len(segments) - 1))
    programs = [more for more in segments[number].programs if len(more)]
    if not programs:
        return
    more = data.draw(st.sampled_from(programs))
    code = more.code[:]
    at = data.draw(st.integers(0, len(more) - 1)) * WIDTH + data.draw(st.integers(1, 3))
    code[at] = data.draw(st.integers(0, 20))
    changed = tuple(replace(each, code=code) if each is more else each for each in segments[number].programs)
    bad = [*segments[:number], replace(segments[number], programs=changed), *segments[number + 1 :]]
    assert bool(forgetful(first, bad)) == bool(check_stream(first, bad, closed=True))


def test_a_stream_that_is_forgotten_keeps_what_is_open_and_no_more() -> None:
    first, segments = cut(by_hand(), [[8, 6], [13, 12]])
    verifier = Verifier(first)
    assert verifier.findings(closed=False) == ()
    verifier.forget(0)
    assert [len(tape) for tape in verifier.tapes] == [5, 3]
    verifier.extend(segments[0])
    assert verifier.findings(closed=False) == ()
    verifier.forget(1)
    assert [len(tape) for tape in verifier.tapes] == [1, 1]
    assert len(verifier.steps) == 0
    assert (verifier.prompts.requests, verifier.prompts.chunks) == ([], [])


def test_who_is_cancelled_behind_what_is_forgotten() -> None:
    first, segments = cut(by_hand(), [[8, 6], [13, 12]])
    verifier = Verifier(first)
    verifier.extend(segments[0])
    assert verifier.findings(closed=False) == ()
    verifier.forget(1)
    verifier.extend(Segment(2, "", requests=(Request("r1", 4), Request("r2", 4)), extra={"cancelled": [2]}))
    (finding,) = verifier.findings(closed=True)
    assert (finding.code, finding.problem) == ("R5", "no chunk holds its tokens 0 to 4")


def test_the_tokens_of_who_is_cancelled_behind_what_is_forgotten_are_free() -> None:
    """Of r0 all is forgotten; rank 1 has yet to compute the four tokens of r1, which is given up, and six of r2."""

    def sent(*chunks: int, first: int) -> list[Instruction]:
        return [
            each
            for at, chunk in enumerate(chunks)
            for each in (Forward(chunk, 0, None, 0), Send(chunk, 0, 1, 0, 0), Wait(first + 3 * at + 1))
        ]

    begun: list[Instruction] = [Recv(0, 1, 0, 0, 0), Wait(0), Forward(0, 1, 0, 1), Sample(0, 1)]
    behind: list[Instruction] = [
        *(Recv(1, 1, 0, 0, 0), Wait(4), Forward(1, 1, 0, None)),
        *(Recv(2, 1, 0, 0, 0), Wait(7), Forward(2, 1, 0, 1), Sample(2, 1)),
    ]
    limited = replace(Program.of(1, 2, begun), extra={"memory": {"limit": 6, "kv_per_token": 1}})
    schedule = Schedule(
        "by hand",
        Model("m", 2),
        *(2, 1),
        stages=(Stage(0, 0, (0, 1)), Stage(1, 1, (1, 2))),
        channels=(Channel(0, 0, 1),),
        requests=(Request("r0", 4), Request("r1", 8)),
        chunks=(Chunk((Part(0, 0, 4),)), Chunk((Part(1, 0, 4),))),
        programs=(Program.of(0, 1, sent(0, 1, first=0)), limited),
        extra={"cancelled": [1]},
    )
    programs = (
        Continuation(0, 6, Program.of(0, 1, sent(2, first=6)).code),
        Continuation(1, 4, Program.of(1, 2, behind).code),
    )
    segment = Segment(1, "", (Request("r2", 6),), (Chunk((Part(2, 0, 6),)),), programs)
    for over in (0, 1):
        verifier = Verifier(schedule)
        assert verifier.findings(closed=False) == ()
        if over:
            verifier.forget(over)
        verifier.extend(segment)
        assert verifier.findings(closed=True) == ()


@pytest.mark.parametrize("seed", [1335, 2183, 3236])
def test_a_request_that_decodes_late_is_not_forgotten(seed: int) -> None:
    """Cases in which something was forgotten before."""
    whole, random = random_schedule(Random(seed), max_pp=3), Random(seed)
    count = random.randint(1, 3)
    marks = [sorted(random.randint(0, len(program)) for _ in range(count)) for program in whole.programs]
    assert forgetful(*cut(whole, [list(stops) for stops in zip(*marks, strict=True)])) == ()
