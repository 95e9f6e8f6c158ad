from __future__ import annotations

import json
import os

import pytest

from peppermill.files import read_json, write_atomically


def test_text_and_bytes_are_written_whole(tmp_path):
    write_atomically(tmp_path / "new" / "folder" / "a.txt", "σ = 0.1")
    assert (tmp_path / "new" / "folder" / "a.txt").read_text(encoding="utf-8") == "σ = 0.1"
    write_atomically(tmp_path / "b.bin", b"\x00\xff")
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "pep.json"
    write_atomically(path, "old")

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["pep.json"]


def test_a_file_may_be_read_by_others(tmp_path):
    write_atomically(tmp_path / "a", "text")
    assert oct((tmp_path / "a").stat().st_mode & 0o777) == "0o644"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"format": "kind", "version": 1, "sig', r"a.json is not JSON \(line 1\): it is truncated or corrupted"),
        ("", r"a.json is not JSON \(line 1\)"),
        ('{\n"format": "kind",\n"version": }', r"a.json is not JSON \(line 3\)"),
        ('{"format": "other", "version": 1}', "a.json is not a kind: it was written by another tool"),
        ("[1, 2]", "a.json is not a kind"),
        ('{"version": 1}', "a.json is not a kind"),
        ('{"format": "kind", "version": 3}', "a.json has version 3, and this library reads up to 2: install a newer"),
        ('{"format": "kind"}', "a.json has version None"),
        ('{"format": "kind", "version": "2"}', "a.json has version 2, and"),
    ],
)
def test_json_that_is_not_ours_is_refused_and_told_why(tmp_path, content, text):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=text):
        read_json(tmp_path / "a.json", "kind", 2)


def test_a_file_that_is_no_text_or_not_there_is_told_so(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\x80\x81\xff")
    with pytest.raises(ValueError, match=r"a\.json is not a text file"):
        read_json(tmp_path / "a.json", "kind", 2)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*b\.json"):
        read_json(tmp_path / "b.json", "kind", 2)


@pytest.mark.parametrize("version", [1, 2])
def test_ours_is_read(tmp_path, version):
    content = {"format": "kind", "version": version, "sigma": 0.1}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert read_json(tmp_path / "a.json", "kind", 2) == content
