"""Pictures in folders: which are found, in which order, under which labels."""

import os
import tracemalloc

import pytest
import torch
from PIL import Image

import peppermill as pm
from peppermill.plumbing.warnings import PepWarning
from peppermill.sources import image_folder
from peppermill.sources.image_folder import data
from tests.sources.pictures import folder_of, picture, read


@pytest.fixture
def folder(tmp_path):
    return folder_of(tmp_path / "val", {"dog": 2, "cat": 3, "eel": 1})


def found(path, query="size=4", **more):
    return data(f"{path}?{query}" if query else str(path), **more)


def test_classes_are_sorted_and_pictures_are_in_the_order_of_classes(folder):
    items = found(folder)
    assert items.class_names == ("cat", "dog", "eel")
    assert items.names == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "eel/0.png"]
    assert items.labels.tolist() == [0, 0, 0, 1, 1, 2]


def test_numbers_are_sorted_as_numbers(tmp_path):
    items = found(folder_of(tmp_path / "val", {str(k): 1 for k in (10, 9, 0, 1, 100)}))
    assert items.class_names == ("0", "1", "9", "10", "100")
    assert items.names == ["0/0.png", "1/0.png", "9/0.png", "10/0.png", "100/0.png"]
    assert items.labels.tolist() == [0, 1, 2, 3, 4]


def test_one_word_among_numbers_makes_them_words(tmp_path):
    assert found(folder_of(tmp_path / "val", {"10": 1, "9": 1, "b": 1})).class_names == ("10", "9", "b")


def test_the_pictures_are_those_of_the_files(folder):
    inputs, labels = read(found(folder, "", prepare=lambda image: torch.tensor(image.getpixel((3, 2)))))
    expected = [picture(100 + k).getpixel((3, 2)) for k in range(3)]
    expected += [picture(k).getpixel((3, 2)) for k in range(2)] + [picture(200).getpixel((3, 2))]
    assert inputs.tolist() == [list(colour) for colour in expected]
    assert labels.tolist() == [0, 0, 0, 1, 1, 2]


def test_pictures_may_lie_deeper(folder):
    (folder / "cat" / "more").mkdir()
    picture().save(folder / "cat" / "more" / "tabby.JPG", "JPEG")
    items = found(folder)
    assert items.names[3] == "cat/more/tabby.JPG"
    assert items.labels.tolist() == [0, 0, 0, 0, 1, 1, 2]


def test_what_begins_with_a_dot_is_not_looked_at(folder):
    (folder / ".git").mkdir()
    (folder / "cat" / ".DS_Store").write_text("")
    (folder / "cat" / "._0.png").write_text("")
    assert len(found(folder)) == 6


def test_files_that_are_no_pictures_are_counted(folder):
    (folder / "cat" / "notes.txt").write_text("")
    (folder / "README").write_text("")
    with pytest.warns(PepWarning, match=r"2 files are not pictures by their names and are not read \(README, \.\.\.\)"):
        assert len(found(folder)) == 6


def test_a_class_without_a_picture_keeps_its_number(folder):
    (folder / "bee").mkdir()
    with pytest.warns(PepWarning, match=r"1 of 4 classes have no picture \(bee, \.\.\.\)"):
        items = found(folder)
    assert items.class_names == ("bee", "cat", "dog", "eel")
    assert items.labels.tolist() == [1, 1, 1, 2, 2, 3]


def test_the_models_names_give_the_order_where_the_folder_has_no_other(folder):
    items = found(folder, class_names=("eel", "cat", "dog"))
    assert items.class_names == ("eel", "cat", "dog")
    assert items.labels.tolist() == [0, 1, 1, 1, 2, 2]
    assert found(folder, class_names=("ape", "bee", "cow")).class_names == ("cat", "dog", "eel")


def test_classes_of_which_only_some_are_the_models_are_refused(folder):
    """Sorted, cat would be 0 and eel 2, which the network has the other way round."""
    with pytest.raises(
        ValueError, match=r"the sub-folder dog is not among the 3 classes \(did you mean dogs\?\): rename"
    ):
        found(folder, class_names=("eel", "cat", "dogs"))


def test_a_file_of_classes_gives_the_order_and_the_classes_that_are_not_there(folder):
    (folder / "classes.txt").write_text("eel\n\nbee\ndog\ncat\n")
    with pytest.warns(PepWarning, match=r"1 of 4 classes have no picture \(bee, \.\.\.\)"):
        items = found(folder, "size=4&classes=classes.txt")
    assert items.class_names == ("eel", "bee", "dog", "cat")
    assert items.labels.tolist() == [0, 2, 2, 3, 3, 3]


@pytest.fixture
def flat(tmp_path):
    for k, name in enumerate(("c.png", "a.png", "b.png")):
        picture(k).save(tmp_path / name)
    return tmp_path


def labelled(flat, text, **more):
    (flat / "labels.csv").write_text(text)
    return found(flat, "size=4&labels=labels.csv", **more)


@pytest.mark.parametrize(
    "text",
    [
        "b.png,7\na.png,5\nc.png,9\n",
        "file,label\r\na.png, 5\r\nb.png, 7\r\nc.png, 9\r\n",
        "c.png 9\nb.png 7\n\na.png 5",
        'filename\tclass\na.png\t5\n"b.png"\t7\nc.png\t9'.replace('"', ""),
        '"c.png","9"\n"b.png","7"\n"a.png","5"\n',
        "\ufeffImage,Label\na.png,5\nb.png,7\nc.png,9",
    ],
)
def test_a_label_file_in_the_forms_people_have(flat, text):
    items = labelled(flat, text)
    assert list(items.names) == ["a.png", "b.png", "c.png"]
    assert items.labels.tolist() == [5, 7, 9]
    assert items.labels.dtype == torch.int64
    assert items.class_names is None


def test_labels_in_words_are_classes(flat):
    items = labelled(flat, "a.png,tabby cat\nb.png,eel\nc.png,tabby cat\n")
    assert items.labels.tolist() == [1, 0, 1]
    assert items.class_names == ("eel", "tabby cat")
    with pytest.warns(PepWarning, match=r"1 of 3 classes have no picture \(dog"):
        items = labelled(flat, "a.png,cat\nb.png,eel\nc.png,cat\n", class_names=("cat", "dog", "eel"))
    assert items.labels.tolist() == [0, 2, 0]


def test_words_that_are_no_class_are_refused(flat):
    (flat / "classes.txt").write_text("dog\ncat\n")
    (flat / "labels.csv").write_text("a.png,cta\nb.png,dgo\nc.png,cta\n")
    with pytest.raises(
        ValueError, match=r"labels\.csv: the label cta is not among the 2 classes \(did you mean cat\?\)"
    ):
        found(flat, "size=4&labels=labels.csv&classes=classes.txt")
    (flat / "classes.txt").unlink()
    with pytest.raises(
        ValueError, match=r"the label fly is not among the 2 classes: rename it, or name all classes in"
    ):
        labelled(flat, "a.png,cat\nb.png,fly\nc.png,cat\n", class_names=("dog", "cat"))
    assert labelled(flat, "a.png,ox\nb.png,fly\nc.png,ox\n", class_names=("dog", "cat")).labels.tolist() == [1, 0, 1]


def test_labels_may_be_real_numbers(flat):
    items = labelled(flat, "a.png,0.5\nb.png,-1\nc.png,2e3\n")
    assert items.labels.tolist() == [0.5, -1.0, 2000.0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "a.png,0\nb.png,0\nc.png,0\nd.png,1\ne.png,1\n",
            "has labels for d.png and 1 more, but the folder has no such",
        ),
        ("a.png,0\n", "has no label for b.png and 1 more of 3 pictures: add the lines"),
        ("a.png,0\nb.png,1\nc.png\n", "line 3: 'c.png' is not a name and a label, as in `a.jpg,3`"),
        ("a.png,0\nb.png,\nc.png,1\n", "line 2: 'b.png,' is not a name and a label"),
        ("a.png,0,1\n", "line 1: 'a.png,0,1' is not a name and a label"),
        ("a.png,0\nb.png,1\na.png,2\n", "line 3: a.png has a label already"),
        ("a.png,0\nb.png,cat\nc.png,1\n", r"has numbers \(0\) and words \(cat\) for labels: use one of them"),
    ],
)
def test_a_label_file_that_does_not_match(flat, text, match):
    with pytest.raises(ValueError, match=match):
        labelled(flat, text)


def test_a_label_file_that_is_none(flat):
    (flat / "labels.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ValueError, match=r"labels.csv is not a text file"):
        found(flat, "size=4&labels=labels.csv")
    with pytest.raises(ValueError, match=r"there is no file nowhere\.csv: expected a file of labels"):
        found(flat, "size=4&labels=nowhere.csv")


def test_a_label_file_may_lie_elsewhere(flat, tmp_path_factory):
    path = tmp_path_factory.mktemp("elsewhere") / "labels.csv"
    path.write_text("a.png,0\nb.png,1\nc.png,2\n")
    assert found(flat, f"size=4&labels={path}").labels.tolist() == [0, 1, 2]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"imagefolder:.*nowhere: there is no folder .*nowhere"):
        found(tmp_path / "nowhere")


def test_a_folder_without_classes(flat):
    with pytest.raises(
        ValueError, match=r"has no sub-folder: expected one sub-folder for each class, or a file of label"
    ):
        found(flat)


def test_pictures_beside_the_classes(folder):
    picture().save(folder / "loose.png")
    with pytest.raises(
        ValueError, match=r"has 1 pictures that are in none \(loose\.png, \.\.\.\): expected one sub-folder"
    ):
        found(folder)


def test_classes_without_pictures(tmp_path):
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match=r"has no picture in it: expected files that end in \.jpg, \.jpeg"):
        found(tmp_path)


def test_files_of_classes_that_do_not_fit(folder):
    (folder / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match="the sub-folder eel is not among the 2 classes"):
        found(folder, "size=4&classes=classes.txt")
    (folder / "classes.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(ValueError, match="names the class cat twice: each class needs its own line"):
        found(folder, "size=4&classes=classes.txt")
    (folder / "classes.txt").write_text("\n \n")
    with pytest.raises(ValueError, match=r"classes\.txt names no class: write the network's classes in their order"):
        found(folder, "size=4&classes=classes.txt")
    (folder / "classes.txt").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ValueError, match=r"classes\.txt is not a text file: expected the name of a class on each"):
        found(folder, "size=4&classes=classes.txt")
    with pytest.raises(ValueError, match=r"there is no file nowhere\.txt: expected a file of classes"):
        found(folder, "size=4&classes=nowhere.txt")


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("size=4&bad=ignore", "`bad=ignore` must be `bad=error` or `bad=skip`"),
        ("size=4&workers=0", "`workers=0` must be a whole number, at least 1"),
        (
            "siz=4",
            "the option 'siz=4' is unknown or empty: after `\\?` may stand labels=..., classes=..., bad=..., workers",
        ),
    ],
)
def test_options_that_cannot_be(folder, query, match):
    with pytest.raises(ValueError, match=match):
        found(folder, query)


@pytest.mark.parametrize("target", ["..", "../../val", ".", "../eel"])
def test_a_link_that_leads_back_adds_no_picture_and_moves_none(folder, target):
    """Every folder is visited once, under its own name."""
    (folder / "cat" / "loop").symlink_to(target)
    assert found(folder).names == [
        *(f"cat/{k}.png" for k in range(3)), *(f"dog/{k}.png" for k in range(2)), "eel/0.png"
    ]  # fmt: skip


def test_a_link_to_a_folder_elsewhere_is_followed(folder, tmp_path):
    folder_of(tmp_path / "elsewhere", {"fox": 2})
    (folder / "fox").symlink_to(tmp_path / "elsewhere" / "fox")
    assert found(folder).names[-2:] == ["fox/0.png", "fox/1.png"]


def test_a_pipe_is_no_picture(folder):
    """Reading it would wait for ever."""
    os.mkfifo(folder / "cat" / "pipe.png")
    assert len(found(folder)) == 6


def test_a_line_of_pixels_costs_no_memory(folder):
    """A PNG of some hundred bytes would become 11.8 GB if its shorter side were resized to 256 pixels."""
    Image.new("RGB", (1, 60_000)).save(folder / "cat" / "line.png")
    with pytest.raises(ValueError, match=r"1 of 7 items cannot be read: cat/line\.png \(1 x 60000 pixels are a line"):
        read(found(folder, "size=224&resize=256"))
    with pytest.warns(PepWarning, match=r"cat/line\.png .*They are left out"):
        inputs, _ = read(found(folder, "size=224&resize=256&bad=skip"))
    assert len(inputs) == 6
    Image.new("RGB", (10, 900)).save(folder / "cat" / "line.png")
    assert len(read(found(folder))[0]) == 7


def test_many_names_are_rows_of_bytes_in_the_order_of_their_texts(tmp_path, monkeypatch):
    """Blocks of two names; letters that are not ASCII, and a name that continues another."""
    monkeypatch.setattr(image_folder, "BLOCK_NAMES", 2)
    names = ["b.png", "a.png", "é.png", "a-b.png", "deep/z.png", "deep-er/y.png", "日本.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = data(f"{tmp_path}?labels=none&size=4", needs_labels=False)
    assert list(found.names) == sorted(names)
    assert not isinstance(found.names, list)


def test_very_many_names_take_their_bytes_twice_and_no_object_each(tmp_path, monkeypatch):
    """At the peak: 21 bytes for each name in blocks, and again in one array. A list of texts would take 78."""
    monkeypatch.setattr(image_folder, "BLOCK_NAMES", 200)
    for k in range(4000):
        (tmp_path / f"picture-{k:09d}.png").touch()
    assert len(data(f"{tmp_path}?size=4", needs_labels=False)) == 4000  # everything is imported now
    tracemalloc.start()
    try:
        data(f"{tmp_path}?size=4", needs_labels=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 42 <= peak / 4000 < 60


def test_a_pass_over_pictures_names_the_damaged_one_and_leaves_it_out_only_if_asked(tmp_path):
    """Ten pictures in batches of four, with the sixth damaged: the batches before it are there."""
    for k in range(10):
        picture(k).save(tmp_path / f"{k}.png")
    (tmp_path / "5.png").write_bytes(b"no picture")
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).eval()
    found = pm.stream(network, data(f"{tmp_path}?size=4", needs_labels=False), batch_size=4)
    assert next(found)["names"].tolist() == ["0.png", "1.png", "2.png", "3.png"]
    with pytest.raises(ValueError, match=r"1 of 4 items cannot be read: 5\.png \(cannot identify .*add `bad=skip`"):
        list(found)
    with pytest.warns(UserWarning, match=r"1 of 4 items cannot be read: 5\.png .* They are left out"):
        batches = list(pm.stream(network, data(f"{tmp_path}?size=4&bad=skip", needs_labels=False), batch_size=4))
    assert [batch["row"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 6, 7], [8, 9]]
