"""Files are read with one clear message where they can't be, and written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from attngen import files
from attngen.errors import UsageError


def test_reads_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.attn").write_bytes(b"\xef\xbb\xbfattention a # \xc3\xa9\n")
    source = files.read_source(tmp_path / "a.attn")
    assert source.text == "attention a # é\n"
    assert source.name == str(tmp_path / "a.attn")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.mkdir(), "is a directory"),
        (
            lambda p: p.write_bytes(b"attention a\n# \xc3\xa9 \xff\n"),
            "a.attn:2:5: the file is not UTF-8 text: .* the byte 0xff",
        ),
        (lambda p: p.write_bytes(b"\xef\xbb\xbfattn\xe9"), "a.attn:1:5: the file is not UTF-8 text"),
    ],
)
def test_unreadable_file(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "a.attn"
    make(path)
    with pytest.raises(UsageError, match=message):
        files.read_source(path)


def test_endless_file() -> None:
    with pytest.raises(UsageError, match="/dev/zero is not a spec: it has more than 4,000,000 bytes"):
        files.read_source("/dev/zero")


def test_path_with_nul() -> None:
    with pytest.raises(UsageError, match="can't read"):
        files.read_source("a\0b")


def test_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    files.write(tmp_path / "new", "x")
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_existing_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o750)
    link.symlink_to(real)
    files.write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o750


def test_device_is_written_to_directly() -> None:
    files.write(os.devnull, "x")
    assert not Path(os.devnull).is_file()


def test_pipe_is_written_to_directly() -> None:
    read, written = os.pipe()
    files.write(f"/dev/fd/{written}", "text")
    os.close(written)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "text"


def test_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(UsageError, match=r"can't write .*missing/b: no such file"):
        files.write_all({str(tmp_path / "a"): "new", str(tmp_path / "missing" / "b"): "new"})
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        files.write(tmp_path, "x")


def test_same_file_sees_through_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    os.link(tmp_path / "a", tmp_path / "b")
    assert files.same_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert not files.same_file(str(tmp_path / "a"), str(tmp_path / "missing"))


def test_results_have_a_row_a_line() -> None:
    value = {
        "machine": "a card",
        "versions": {"torch": "2"},
        "cells": [{"ms": [1.5, {"a": None}]}, {"ms": []}],
        "none": [],
    }
    text = files.json_rows(value)
    assert json.loads(text) == value
    assert text.split("\n") == [
        "{", ' "machine": "a card",', ' "versions": {', '  "torch": "2"', " },", ' "cells": [',
        '  {"ms": [1.5, {"a": null}]},', '  {"ms": []}', " ],", ' "none": []', "}", "",
    ]  # fmt: skip
    with pytest.raises(ValueError):
        files.json_rows({"ms": float("nan")})
