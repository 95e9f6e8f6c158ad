"""Files that are whole or absent, and JSON that says what is wrong with it."""

import json
import os
import stat

import pytest

from peppermill.plumbing.files import read_json, refuse_unwritable, write_atomically


@pytest.mark.parametrize(("content", "expected"), [("σ = 1\n", "σ = 1\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_text_and_bytes_are_written_as_they_are(tmp_path, content, expected):
    write_atomically(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == expected


def test_folders_are_made_on_the_way(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "file", "x")
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_an_old_file_is_replaced(tmp_path):
    (tmp_path / "file").write_text("a much longer old content")
    write_atomically(str(tmp_path / "file"), "new")
    assert (tmp_path / "file").read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_others_may_read_what_was_written(tmp_path):
    write_atomically(tmp_path / "file", "x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", 3)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("step", ["chmod", "replace"])
def test_an_interrupt_between_two_steps_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_where_nothing_stood_nothing_is_left(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "run.json", tmp_path / "file" / "folder" / "run.json"):
        with pytest.raises(ValueError, match=r"cannot be written: give the path of a file, in a folder that you may"):
            refuse_unwritable(path)


def test_a_path_that_can_be_written_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (None, "run.json", tmp_path / "new" / "folder" / "run.json"):
        refuse_unwritable(path)
    assert os.listdir(tmp_path) == []


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_of_the_right_kind_is_read(tmp_path):
    content = {"format": "kind", "version": 2, "sigma": 0.1}
    assert read_json(write(tmp_path / "a.json", content), "kind", newest=2) == content
    assert read_json(write(tmp_path / "a.json", content), "kind", newest=3) == content


def test_a_truncated_file_is_named_with_the_line(tmp_path):
    path = write(tmp_path / "a.json", '{\n"format": "kind",\n"version"')
    with pytest.raises(ValueError, match=r"a\.json is not JSON \(line 3\): it is truncated or corrupted\. Write it"):
        read_json(path, "kind", newest=1)


@pytest.mark.parametrize("content", [{"format": "other", "version": 1}, {"version": 1}, [1, 2], 3, "null"])
def test_a_foreign_file_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"a\.json is not a kind: it was written by another tool, or holds something"):
        read_json(write(tmp_path / "a.json", content), "kind", newest=1)


@pytest.mark.parametrize("version", [3, "2", None, 1.5])
def test_a_newer_version_asks_for_a_newer_library(tmp_path, version):
    path = write(tmp_path / "a.json", {"format": "kind", "version": version})
    with pytest.raises(ValueError, match=rf"has version {version}, and this library reads up to 2: install a newer"):
        read_json(path, "kind", newest=2)


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.json\."):
        read_json(tmp_path / "nowhere.json", "kind", newest=1)
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        read_json(tmp_path, "kind", newest=1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary is not a text file: it is corrupted or holds something else"):
        read_json(tmp_path / "binary", "kind", newest=1)
