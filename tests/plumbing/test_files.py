"""Files that are complete or absent, and JSON that says what is wrong with it."""

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


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_says_who_may_read_it(tmp_path, umask):
    """As for any file that a program creates with `open`."""
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "x")
        (tmp_path / "other").write_text("x")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "other")}
    assert modes == {0o666 & ~umask}


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_the_longest_name_that_the_file_system_takes_can_be_written(tmp_path):
    write_atomically(tmp_path / ("x" * 255), "new")
    assert (tmp_path / ("x" * 255)).read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", 3)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupt_between_two_steps_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    """A folder, a path through a file, a pipe and a device (a rename would replace them), a name that is too long."""
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    inside = (tmp_path / "file" / "run.json", tmp_path / "file" / "folder" / "run.json")
    for path in (tmp_path, *inside, tmp_path / "pipe", "/dev/null", tmp_path / ("x" * 256)):
        for refuse in (refuse_unwritable, lambda path: write_atomically(path, "x")):
            with pytest.raises(
                ValueError, match=r"cannot be written: give the path of a file, in a folder that you may"
            ):
                refuse(path)
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


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
    with pytest.raises(ValueError, match="cannot be read: it is a folder, a device or a pipe"):
        read_json(tmp_path, "kind", newest=1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary is not a text file: it is corrupted or holds something else"):
        read_json(tmp_path / "binary", "kind", newest=1)
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="deep is not JSON: it is truncated or corrupted"):
        read_json(tmp_path / "deep", "kind", newest=1)
    (tmp_path / "long").write_text("1" * 5000)
    with pytest.raises(ValueError, match="long is not JSON: it is truncated or corrupted"):
        read_json(tmp_path / "long", "kind", newest=1)


def test_a_device_or_a_pipe_is_not_read(tmp_path):
    """/dev/zero has no end, and a pipe has no beginning until somebody writes to it."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(ValueError, match="cannot be read: it is a folder, a device or a pipe"):
            read_json(path, "kind", newest=1)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(10**11)
    with pytest.raises(ValueError, match="large is larger than 25 MB: this library did not write it"):
        read_json(tmp_path / "large", "kind", newest=1)
