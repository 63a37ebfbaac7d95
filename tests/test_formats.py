"""A file of vppc's own, given where another is read: it is said what it is, and who takes it."""

from pathlib import Path

import pytest

from vppc.cli import main

FILES = {
    "schedule": "a schedule",
    "segment": "a segment",
    "cost": "a cost file",
    "journal": "a process's part of a journal",
    "shadow": "a process's notes of a shadow run",
}
READERS = {
    "a schedule": (["simulate", "FILE"], ["verify", "FILE"], ["explain", "FILE"], ["plot", "FILE", "-o", "x.svg"]),
    "a cost file": (["compile", "--pp", "2", "--tokens", "8K", "--cost", "FILE"],),
    "a model's config": (["model", "FILE"], ["compile", "--pp", "2", "--tokens", "8K", "--model", "FILE"]),
    "a list of requests": (["compile", "--pp", "2", "--model", "qwen3-235b-a22b", "--requests", "FILE"],),
    "a journal's folder or a profile": (["profile", "FILE"],),
    "a table": (["calibrate", "FILE"],),
}


def text_of(kind: str) -> str:
    """The beginning of such a file: a document over several lines, or the first line of many."""
    return f'{{\n"format": "vppc.{kind}", "version": 1, "rank": 0}}\n'


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("wanted", READERS)
def test_it_is_said_what_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, wanted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(text_of(kind))
    for command in READERS[wanted]:
        with pytest.raises(SystemExit) as raised:
            main(command)
        message = capsys.readouterr().err
        assert raised.value.code == 2
        if FILES[kind] == wanted:
            assert "not a" not in message
        else:
            assert message.startswith(f"vppc: FILE: is {FILES[kind]}, not {wanted}\n  hint: ")


@pytest.mark.parametrize("command", [["simulate"], ["show"], ["verify"], ["graph"]])
def test_the_folder_of_a_journal_is_told_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/schedule.json").write_text(text_of("schedule"))
    with pytest.raises(SystemExit) as raised:
        main([*command, "run"])
    assert raised.value.code == 2
    assert capsys.readouterr().err == (
        "vppc: run: is the folder of a journal, not a file\n"
        "  hint: vppc profile, explain, plot, report and trace take it; the schedule that ran is run/schedule.json\n"
    )


OTHERS = {
    "a model's config.json": '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}',
    "a list of requests": '[{"prompt_tokens": 5}]',
    "a Chrome trace": '{"traceEvents": []}',
    "what vppc compare or tune printed as JSON": '{"pp": 2, "rows": [], "provenance": {}}',
}


@pytest.mark.parametrize("document", [*OTHERS.values(), '{"requests": [{"prompt_tokens": 5}]}', '{"prompt_tokens": 5}'])
@pytest.mark.parametrize("reader", ["a schedule", "a cost file"])
def test_files_without_a_format_are_told_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], document: str, reader: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(document)
    with pytest.raises(SystemExit) as raised:
        main(READERS[reader][0])
    assert raised.value.code == 2
    name = next((name for name, text in OTHERS.items() if text == document), "a list of requests")
    assert capsys.readouterr().err.startswith(f"vppc: FILE: looks like {name}, not {reader}\n  hint: ")


def test_a_document_like_no_other_lacks_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text('{"stages": [], "requests": 3}')
    with pytest.raises(SystemExit):
        main(["simulate", "FILE"])
    assert 'FILE: the key "format" is missing' in capsys.readouterr().err


def test_requests_one_a_line_are_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text('{"prompt_tokens": 5}\n{"prompt_tokens": 6}\n')
    with pytest.raises(SystemExit) as raised:
        main(["simulate", "FILE"])
    assert raised.value.code == 2
    assert capsys.readouterr().err == (
        "vppc: FILE: line 2, column 1: not JSON: another value begins on this line\n"
        "  hint: one document is read here, not one a line, as requests may be, which --requests takes\n"
    )
