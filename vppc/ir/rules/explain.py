"""What is wrong with an instruction that :func:`vppc.ir.rules.program.accept` did not accept.

Written for words, not for speed. After a finding the instruction takes effect as far as it can, so that one
mistake makes one finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vppc.ir.assembly import instruction_lines
from vppc.ir.instruction import FORWARD, OPS, RECV, SAMPLE, SEND, WAIT, WIDTH, Program, Row
from vppc.ir.rules.program import FREE, Tape
from vppc.ir.rules.registry import Report

AROUND = 2
"""Instructions shown before and after the one that a finding is about."""


def place(rank: int, index: int) -> str:
    """Where an instruction stands in the file."""
    return f"programs[{rank}].instructions[{index}] (rank {rank})"


def excerpt(tape: Tape, index: int) -> str:
    """The instruction with a few around it, marked with an arrow."""
    first = max(0, index - AROUND)
    program = Program(tape.rank, tape.buffers, tape.code)
    lines = instruction_lines(tape.schedule, program, first, index + AROUND + 1)
    return "\n".join(f"  {'->' if at == index else '  '}{line}" for at, line in enumerate(lines, first))


def name(row: Row) -> str:
    """An operation or transfer in a sentence: ``SEND c1 s0``."""
    op, chunk, stage, x, _, _ = row
    if op == WAIT:
        return f"WAIT {x}"
    return f"SAMPLE c{chunk}" if op == SAMPLE else f"{OPS[op]} c{chunk} s{stage}"


def row_of(tape: Tape, index: int) -> Row:
    """One instruction as integers."""
    op, chunk, stage, x, y, z = tape.code[index * WIDTH : (index + 1) * WIDTH]
    return op, chunk, stage, x, y, z


def explain(tape: Tape, index: int, report: Report) -> None:
    """Report what is wrong with instruction ``index``, which was not accepted, and go on behind it."""
    describe(tape, index, report)
    if not report:
        raise AssertionError(f"{place(tape.rank, index)} was not accepted, though it breaks no rule")


def describe(tape: Tape, index: int, report: Report) -> None:
    """Report what is wrong with instruction ``index``, if anything, and let it take effect as far as it can.

    A WAIT must be wrong: one that is right has no effect here.
    """
    row = row_of(tape, index)
    _DESCRIBE[row[0]](_Case(tape, index, row, report))


@dataclass(frozen=True, slots=True)
class _Case:
    tape: Tape
    index: int
    row: Row
    report: Report

    def add(self, code: str, problem: str, remedy: str) -> None:
        if not self.counted(code):
            where = place(self.tape.rank, self.index)
            self.report.add(code, where, f"{name(self.row)} {problem}", remedy, excerpt(self.tape, self.index))

    def counted(self, code: str) -> bool:
        """Whether enough findings of a rule have words, so that this one was only counted."""
        if self.report.full(code):
            self.report.add(code, "", "", "")
            return True
        return False

    @property
    def value(self) -> int:
        """The value that the instruction's stage reads."""
        return self.row[1] * (len(self.tape.stage_ranks) + 1) + self.row[2]

    def words(self, value: int) -> str:
        """A value in a sentence, by what makes it."""
        chunk, stage = divmod(value, len(self.tape.stage_ranks) + 1)
        return f"the output of c{chunk} s{stage - 1}"

    def exists(self) -> bool:
        chunks, stages = len(self.tape.prompts.chunks), len(self.tape.stage_ranks)
        for word, number, count in (("chunk", self.row[1], chunks), ("stage", self.row[2], stages)):
            if not 0 <= number < count and not (word == "stage" and self.row[0] == SAMPLE):
                self.add("P1", f"names {word} {number}, which does not exist", f"name one of the {count} {word}s")
                return False
        return True

    def in_pool(self, buffer: int) -> bool:
        """Whether the buffer's number is a buffer."""
        if 0 <= buffer < self.tape.buffers:
            return True
        remedy = f"use a number below `buffers` ({self.tape.buffers}), or raise that"
        self.add("B1", f"uses b{buffer}, which does not exist", remedy)
        return False

    def reads(self, buffer: int, value: int) -> bool:
        """Whether the buffer holds ``value``, to be read now."""
        tape = self.tape
        content = tape.holds[buffer] if self.in_pool(buffer) else 0
        if content == value:
            return True
        if content and value not in tape.lost:
            self._explain_read(buffer, content, value)
        tape.lost.add(value)
        return False

    def _explain_read(self, buffer: int, content: int, value: int) -> None:
        arriving = content == ~value and row_of(self.tape, self.tape.since[buffer])[0] == RECV
        if self.counted("B3" if arriving else "B2"):
            return
        if arriving:
            transfer = self.tape.since[buffer]
            posted = f"{name(row_of(self.tape, transfer))} (instruction {transfer})"
            problem = f"reads b{buffer}, but nothing has waited for {posted} that fills it"
            self.add("B3", problem, f"put WAIT {transfer} before it")
            return
        has = f"holds {self.words(content)}"
        if content <= FREE:
            has = "is empty" if content == FREE else f"is in use by {self.user(buffer)}"
        remedy = f"first write {self.words(value)} to b{buffer}, by a FORWARD or a RECV"
        if value in self.tape.holds:
            remedy = f"use b{self.tape.holds.index(value)}, which holds it"
        self.add("B2", f"reads {self.words(value)} from b{buffer}, which {has}", remedy)

    def writes(self, buffer: int, value: int) -> bool:
        """Whether ``value`` can go to the buffer; what was in it is lost."""
        tape = self.tape
        content = tape.holds[buffer] if self.in_pool(buffer) else 0
        if content > 0 or content == FREE:
            if content > 0 and content not in tape.lost:
                self._explain_overwriting(buffer, content)
                tape.lost.add(content)
            tape.since[buffer] = self.index
            return True
        if content and not self.counted("B5"):
            remedy = f"put WAIT {self.transfer(buffer)} before it, or write another buffer"
            self.add("B5", f"writes b{buffer} while {self.user(buffer)} uses it", remedy)
        tape.lost.add(value)
        return False

    def _explain_overwriting(self, buffer: int, content: int) -> None:
        if self.row[0] == FORWARD and buffer == self.row[3]:
            problem = f"writes its own `in` b{buffer}"
            remedy = "write another buffer: `in` is free only after `out` is written"
        else:
            writer = self.tape.since[buffer]
            problem = f"writes b{buffer}, which still holds {self.words(content)} (instruction {writer})"
            remedy = "write another buffer, or read that value first"
        self.add("B4", problem, remedy)

    def transfer(self, buffer: int) -> int:
        """The instruction that posted the transfer which uses the buffer."""
        return next(index for index, used in self.tape.flight.items() if used in (buffer, ~buffer))

    def user(self, buffer: int) -> str:
        """That transfer in a sentence."""
        index = self.transfer(buffer)
        return f"{name(row_of(self.tape, index))} (instruction {index})"


def _find(tape: Tape, row: Row, stop: int) -> str:
    """The first instruction before ``stop`` that does what ``row`` does (op, chunk, stage)."""
    return _words(index for index in range(stop) if row_of(tape, index)[:3] == row[:3])


def _words(found: Iterator[int]) -> str:
    """The first instruction found; where there is none, the stream no longer has it."""
    index = next(found, None)
    return "one before" if index is None else f"instruction {index}"


def _forward(case: _Case) -> None:
    tape, prompts = case.tape, case.tape.prompts
    _, chunk, stage, x, y, _ = case.row
    if not case.exists():
        return
    rank, last = tape.stage_ranks[stage], len(tape.stage_ranks) - 1
    if rank != tape.rank:
        case.add("P2", f"runs on rank {tape.rank}", f"move it to rank {rank}, which holds stage {stage}")
        return
    todo = tape.todo[stage]
    if not todo[chunk]:
        if not case.counted("P3"):
            first = _find(tape, case.row, case.index)
            case.add("P3", f"runs a second time; {first} ran it", "remove one of the two")
        return
    todo[chunk] = 0
    for earlier in prompts.prefix[chunk]:
        if todo[earlier]:
            case.add(
                "K1",
                f"runs before FORWARD c{earlier} s{stage}, which writes the KV prefix that it reads",
                f"run c{earlier} first",
            )
    for maker in prompts.decodes.get(chunk, ()) if stage == 0 else ():
        if tape.unsampled[maker]:
            case.add(
                "T2",
                f"reads the token that SAMPLE c{maker} makes, which is not before it",
                f"put it behind SAMPLE c{maker}",
            )
    value = case.value
    read = False
    if (x < 0) != (stage == 0):
        problem = "has no `in`" if x < 0 else f"has `in` b{x}, but stage 0 reads tokens"
        case.add("P5", problem, "name the buffer that holds its input" if x < 0 else 'write "in": null')
        tape.lost.add(value)
    elif stage:
        read = case.reads(x, value)
    if y >= 0:
        if case.writes(y, value + 1):
            tape.holds[y] = value + 1
    elif stage != last or prompts.samples[chunk]:
        reader = "a token is made from it" if stage == last else f"stage {stage + 1} reads it"
        case.add("P6", "has no `out`", f"name a free buffer for its output: {reader}")
        tape.lost.add(value + 1)
    if read and tape.holds[x] == value:
        tape.holds[x] = FREE


def _send(case: _Case) -> None:
    tape = case.tape
    _, _, stage, x, y, z = case.row
    tape.flight[case.index] = tape.spare
    if not case.exists():
        return
    _check_route(case, tape.send_to.get(stage, -1), "to")
    port = tape.outgoing.get(z)
    if port is None or port[0] != y:
        case.add(
            "P8", f"uses channel {z}, which does not lead from rank {tape.rank} to rank {y}", _channels(case, "to")
        )
    elif tape.send_to.get(stage) == y:
        port[1](case.value + 1)
        port[2](case.index)
    if case.reads(x, case.value + 1):
        tape.holds[x] = ~tape.holds[x]
        tape.flight[case.index] = ~x


def _recv(case: _Case) -> None:
    tape = case.tape
    _, _, stage, x, y, z = case.row
    tape.flight[case.index] = tape.spare
    if not case.exists():
        return
    _check_route(case, tape.recv_from.get(stage, -1), "from")
    port = tape.incoming.get(z)
    if port is None or port[0] != y:
        case.add(
            "P8", f"uses channel {z}, which does not lead from rank {y} to rank {tape.rank}", _channels(case, "from")
        )
    elif tape.recv_from.get(stage) == y:
        port[1](case.value)
        port[2](case.index)
    if case.writes(x, case.value):
        tape.holds[x] = ~case.value
        tape.flight[case.index] = x


def _check_route(case: _Case, peer: int, way: str) -> None:
    """Rule P7: the stage's edge leaves (enters) this rank and leads to (comes from) the named peer."""
    tape = case.tape
    _, _, stage, _, y, _ = case.row
    if peer == y and y >= 0:
        return
    neighbour = stage + 1 if way == "to" else stage - 1
    if tape.stage_ranks[stage] != tape.rank:
        problem = f"is on rank {tape.rank}, but stage {stage} is on rank {tape.stage_ranks[stage]}"
        remedy = f"move it to rank {tape.stage_ranks[stage]}"
    elif not 0 <= neighbour < len(tape.stage_ranks):
        end = "last stage has no stage behind it" if way == "to" else "first stage reads tokens"
        problem, remedy = f"has nothing to pass: the {end}", "remove it"
    elif peer < 0:
        problem = f"passes between stages {stage} and {neighbour}, which are both on rank {tape.rank}"
        remedy = "hand the buffer on directly, without a transfer"
    else:
        problem = f"names peer {y}, but stage {neighbour} is on rank {peer}"
        remedy = f"name peer {peer}"
    case.add("P7", problem, remedy)


def _channels(case: _Case, way: str) -> str:
    ports = case.tape.outgoing if way == "to" else case.tape.incoming
    peer = case.row[4]
    fitting = [str(channel) for channel, port in ports.items() if port[0] == peer]
    return f"use channel {' or '.join(fitting)}" if fitting else f"add a channel {way} rank {peer}"


def _wait(case: _Case) -> None:
    of = case.row[3]
    if 0 <= of < case.index and row_of(case.tape, of)[0] in (SEND, RECV):
        if not case.counted("P10"):
            posted, first = name(row_of(case.tape, of)), _find_wait(case.tape, of)
            case.add("P10", f"waits for {posted} a second time; {first} did", "remove one of the two")
        return
    if not 0 <= of < len(case.tape):
        what = "does not exist"
    elif row_of(case.tape, of)[0] in (SEND, RECV):
        what = "comes after it" if of > case.index else "is itself"
    else:
        what = f"is a {OPS[row_of(case.tape, of)[0]]}"
    case.add(
        "P9", f"waits for instruction {of}, which {what}", "name the index of an earlier SEND or RECV of this list"
    )


def _find_wait(tape: Tape, of: int) -> str:
    return _words(index for index in tape.waits if row_of(tape, index)[3] == of)


def _sample(case: _Case) -> None:
    tape, chunk, buffer = case.tape, case.row[1], case.row[3]
    if not case.exists():
        return
    last = tape.stage_ranks[-1]
    if last != tape.rank:
        case.add("P12", f"runs on rank {tape.rank}", f"move it to rank {last}, which holds the last stage")
    elif not tape.prompts.samples[chunk]:
        case.add("P12", "makes no token: no prompt ends in the chunk and nothing decodes", "remove it")
    elif not tape.unsampled[chunk]:
        case.add("P12", "runs a second time", "remove one of the two")
    else:
        tape.unsampled[chunk] = 0
        if case.reads(buffer, chunk * (len(tape.stage_ranks) + 1) + len(tape.stage_ranks)):
            tape.holds[buffer] = FREE


_DESCRIBE = {FORWARD: _forward, SEND: _send, RECV: _recv, WAIT: _wait, SAMPLE: _sample}
