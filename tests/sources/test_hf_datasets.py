"""Data sets of the hub's library, made on the spot and read from folders."""

import io
import sys

import numpy as np
import pytest
import torch

import peppermill as pm
from peppermill.sources import data_from
from tests.sources.pictures import picture, read

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow  # the library takes seconds to import

COLOURS = ("red", "blue")


def pixel(image):
    return torch.tensor(image.getpixel((3, 2)))


def length(text):
    return {"input_ids": torch.tensor([len(text), 7])}


def pictures(count=4):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=list(COLOURS))})
    columns = {"img": [picture(k) for k in range(count)], "label": [k % 2 for k in range(count)]}
    return datasets.Dataset.from_dict(columns, features=features)


def texts():
    return datasets.Dataset.from_dict({"text": ["a", "bbb", "cc"], "label": [2, 0, 1], "id": [9, 8, 7]})


@pytest.fixture
def saved(tmp_path):
    """Write a data set, and what the command line calls it."""

    def save(data):
        data.save_to_disk(tmp_path / "data")
        return f"hf:{tmp_path}/data"

    datasets.disable_progress_bars()
    yield save
    datasets.enable_progress_bars()


def test_pictures_with_their_classes(saved):
    items = data_from(saved(pictures()), pixel)
    inputs, labels = read(items)
    assert inputs.tolist() == [list(picture(k).getpixel((3, 2))) for k in range(4)]
    assert labels.tolist() == [0, 1, 0, 1]
    assert items.class_names == COLOURS


def test_the_models_numbers_count_where_it_has_the_classes_by_name(saved):
    path = saved(pictures())
    items = data_from(path, pixel, ("blue", "green", "red"))
    assert items.labels.tolist() == [2, 0, 2, 0]
    assert items.class_names == ("blue", "green", "red")
    assert data_from(path, pixel, ("LABEL_0", "LABEL_1")).labels.tolist() == [0, 1, 0, 1]
    assert data_from(path, pixel, ("red", "navy")).labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="the class red has another number in the network, and blue is none of its"):
        data_from(path, pixel, ("navy", "red"))


def test_pictures_can_be_prepared_by_what_is_said(saved):
    inputs, _ = read(data_from(f"{saved(pictures())}?size=5&mean=0.5&std=0.5"))
    assert inputs.shape == (4, 1, 5, 5)


def test_texts(saved):
    items = data_from(saved(texts()), length)
    inputs, labels = read(items)
    assert inputs["input_ids"].tolist() == [[1, 7], [3, 7], [2, 7]]
    assert labels.tolist() == [2, 0, 1]
    assert items.class_names is None


def test_a_split_by_name(saved):
    path = saved(datasets.DatasetDict({"train": pictures(4), "test": pictures(2)}))
    assert len(data_from(f"{path}:test", pixel)) == 2
    with pytest.raises(ValueError, match=r"say which split, as in `hf:NAME:train`; there are train, test\."):
        data_from(path, pixel)
    with pytest.raises(ValueError, match="say which split"):
        data_from(f"{path}:validation", pixel)


def test_the_only_split_needs_no_name(saved):
    assert len(data_from(saved(datasets.DatasetDict({"test": pictures(2)})), pixel)) == 2


def test_data_without_splits_have_none(saved):
    with pytest.raises(ValueError, match="these data have no splits: leave `:test` out"):
        data_from(f"{saved(pictures())}:test", pixel)


def test_a_folder_of_files(tmp_path, monkeypatch):
    """As people have them: the library reads csv, json, parquet."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.csv").write_text("sentence,label\ngood,1\nbad film,0\n")
    datasets.disable_progress_bars()
    inputs, labels = read(data_from(f"hf:{tmp_path}/data:test", length))
    assert inputs["input_ids"].tolist() == [[4, 7], [8, 7]]
    assert labels.tolist() == [1, 0]


def test_a_damaged_picture_is_named(saved):
    whole = io.BytesIO()
    picture().save(whole, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    contents = [whole.getvalue(), whole.getvalue()[:60], b"no picture"]
    data = datasets.Dataset.from_dict({"image": [{"bytes": c, "path": None} for c in contents], "label": [0, 1, 2]})
    path = saved(data.cast(features))
    with pytest.raises(ValueError, match=r"2 of 3 items cannot be read: item 1 \(.*\), item 2 \(cannot identify image"):
        read(data_from(path, pixel))
    with pytest.warns(UserWarning, match="2 of 3 items cannot be read"):
        assert read(data_from(f"{path}?bad=skip", pixel))[1].tolist() == [0]


def test_columns_can_be_said(saved):
    data = datasets.Dataset.from_dict({"question": ["a"], "answer": ["bb"], "grade": [5], "other": [6]})
    path = saved(data)
    items = data_from(f"{path}?text=answer&label=grade", length)
    assert read(items)[0]["input_ids"].tolist() == [[2, 7]]
    assert items.labels.tolist() == [5]
    for query, match in (
        (
            "text=answer",
            r"not clear which column holds the label: say `\?label=COLUMN`, one of question, answer, grade",
        ),
        ("label=grade", r"not clear which column holds the text: say `\?text=COLUMN`, one of question, answer, other"),
        ("label=nothing", "there is no column 'nothing': say `"),
        ("label=grade&text=nothing", "there is no column 'nothing'"),
        ("label=question&text=answer", r"the column 'question' holds 'a', but labels are numbers: `\?label=COLUMN`"),
    ):
        with pytest.raises(ValueError, match=match):
            data_from(f"{path}?{query}", length)


def test_the_column_of_classes_is_found_by_its_kind_before_its_name(saved):
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "target": datasets.Value("int64"),
            "mood": datasets.ClassLabel(names=["a", "b"]),
        }
    )
    path = saved(datasets.Dataset.from_dict({"text": ["a"], "target": [7], "mood": [1]}, features=features))
    assert data_from(path, length).labels.tolist() == [1]
    assert data_from(f"{path}?label=target", length).labels.tolist() == [7]


def test_hidden_labels_are_refused(saved):
    path = saved(datasets.Dataset.from_dict({"text": ["a", "b"], "label": [-1, -1]}))
    with pytest.raises(ValueError, match="2 of 2 labels are -1, which means hidden: use another split"):
        data_from(path, length)


def test_texts_need_a_model_that_prepares_them(saved):
    with pytest.raises(
        ValueError, match=r"holds texts, and this model brings no tokenizer .*: use a text classifier of `hf:`"
    ):
        data_from(saved(texts()))


def test_what_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match=r"hf:.*nowhere could not be loaded \(.*\): give a local folder, or a data set of the hub"
    ) as error:
        data_from(f"hf:{tmp_path}/nowhere", length)
    assert "\n" not in str(error.value)


def test_without_the_library_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'`hf:` data need the library datasets: `pip install "peppermill\[hf\]"`'):
        data_from("hf:anything")


@pytest.mark.parametrize("labelled", [True, False])
def test_parquet_files_are_streamed_for_predictions(tmp_path, labelled):
    """Nine pictures in two files, in batches of four, by a loop over the same pictures; the folder is read twice."""
    table, features = pictures(9), ["img", "label"] if labelled else ["img"]
    for k, rows in enumerate((range(5), range(5, 9))):
        table.select(rows).select_columns(features).to_parquet(tmp_path / f"{k}.parquet")
    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2).eval()
    data = data_from(f"hf:{tmp_path}:train?streaming=yes", lambda image: pixel(image).float(), needs_labels=False)
    for _ in range(2):
        found = list(pm.stream(network, data, batch_size=4, columns="probabilities"))
        expected = network(torch.stack([pixel(picture(k)).float() for k in range(9)])).softmax(dim=1).detach()
        np.testing.assert_allclose(np.concatenate([batch["probabilities"] for batch in found]), expected, atol=1e-6)
        assert [len(batch["row"]) for batch in found] == [4, 4, 1]
        if labelled:
            assert np.concatenate([batch["labels"] for batch in found]).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    result = [pm.write_predictions(network, data, tmp_path / "out", batch_size=4, part_items=4) for _ in range(2)]
    assert [(one.written, one.parts, one.items) for one in result] == [(3, 3, 9), (0, 3, 9)]


def test_streaming_is_for_predictions(saved):
    with pytest.raises(ValueError, match="`streaming=yes` is for `predict`, which reads the data once"):
        data_from(f"{saved(pictures())}?streaming=yes", pixel)
