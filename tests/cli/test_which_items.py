"""Folders of pictures on the command line; and which items are tuned on, which are tested on."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import peppermill as pm
from peppermill.datasets.splitting import Split
from tests.sources.pictures import folder_of

NETWORK, FOLDER = "python:picture_models:network", "imagefolder:val"

MODELS = '''
import numpy as np
import torch
from torch import nn

from peppermill.sources.source import Source

SEEN = []


def prepare(image):
    """The picture, 0..1; remembers its first pixel, by which a test knows it again."""
    SEEN.append(image.getpixel((0, 0)))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def bare(classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(144, classes))


def network():
    return Source(bare(), prepare)


def named():
    return Source(bare(), prepare, ("eel", "dog", "cat"))


def ten():
    return Source(bare(10), prepare)


def two():
    return Source(bare(2), prepare)


class Recorded(nn.Module):
    """A network that remembers the inputs it has seen."""

    seen = set()

    def __init__(self):
        super().__init__()
        self.linear = bare()[1]

    def forward(self, x):
        self.seen.update(map(tuple, x.flatten(1).tolist()))
        return self.linear(x.flatten(1))


def recorded():
    return Source(Recorded(), prepare)


def wide():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(6, 3)


def loader():
    generator = torch.Generator().manual_seed(0)
    pair = torch.randn(50, 6, generator=generator), torch.randint(3, (50,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*pair), batch_size=7)


def stream():
    return (batch for batch in loader())
'''


@pytest.fixture
def val(folder):
    """Thirty pictures in three classes, and models for them."""
    import sys

    (folder / "picture_models.py").write_text(MODELS)
    sys.modules.pop("picture_models", None)
    yield folder_of(folder / "val", {"cat": 12, "dog": 10, "eel": 8}, height=6, width=8)
    sys.modules.pop("picture_models", None)


@pytest.fixture
def split_fit(done, val):
    """`fit --validation 11 --split-seed 5`; what it wrote, and the split in pep.json."""
    written = fit(done)
    return written, Split(**json.loads((val.parent / "pep.json").read_text())["split"])


def fit(done, data=FOLDER, model=NETWORK, validation=11):
    short = ("--size", 2, "--upper", 0.1, "--iterations", 2)
    return done("fit", model, data, "--validation", validation, "--split-seed", 5, *short)


def evaluated(done, *arguments):
    written = done("evaluate", *arguments, "--pep", "pep.json", "--out", "run.json")
    with open("run.json") as file:
        return written, json.load(file)


pytestmark = pytest.mark.filterwarnings("ignore::peppermill.PepWarning")


def colours(*rows):
    """The first pixels of pictures, by their place in the folder."""
    paths = [f"val/{name}/{k}.png" for name, count in (("cat", 12), ("dog", 10), ("eel", 8)) for k in _order(count)]
    return [Image.open(paths[row]).getpixel((0, 0)) for row in rows]


def _order(count):
    return sorted(range(count), key=str)  # names of files are words


def test_fit_tunes_on_the_items_that_the_recorded_seed_draws(split_fit, val):
    import picture_models

    written, split = split_fit
    drawn = np.sort(np.random.RandomState(5).permutation(30)[:11])
    assert (split.data, split.items, split.validation, split.seed) == ("imagefolder:val", 30, 11, 5)
    assert sorted(picture_models.SEEN) == sorted(colours(*drawn))
    assert "on 11 items drawn from 30 " in written
    assert written.splitlines()[-1] == f"peppermill evaluate {NETWORK} imagefolder:val --pep pep.json"
    assert (val.parent / "pep.json").stat().st_size < 4000


def test_evaluate_tests_on_the_others_and_says_so(done, split_fit, val):
    import picture_models

    tuned = list(picture_models.SEEN)
    picture_models.SEEN.clear()
    written, run = evaluated(done, NETWORK, FOLDER)
    assert written.startswith("testing on the 19 of 30 items that were not used for tuning\n")
    assert "19 test items" in written
    assert [(method["name"], method["scores"]["items"]) for method in run["methods"]] == [
        ("network", 19),
        ("temperature scaling", 19),
        ("PEP", 19),
    ]
    assert set(picture_models.SEEN).isdisjoint(tuned)
    assert sorted(picture_models.SEEN + tuned) == sorted(colours(*range(30)))
    assert run["settings"]["split"] == vars(split_fit[1])
    assert run["class_names"] == ["cat", "dog", "eel"]


def test_what_the_network_sees_in_both_commands_has_nothing_in_common(done, val):
    fit(done, model="python:picture_models:recorded")
    import picture_models

    tuned = set(picture_models.Recorded.seen)
    picture_models.Recorded.seen.clear()
    evaluated(done, "python:picture_models:recorded", FOLDER)
    assert len(tuned) >= 11  # engines also try inputs of their own
    assert len(picture_models.Recorded.seen) >= 19
    assert tuned.isdisjoint(picture_models.Recorded.seen)


def test_all_items_can_be_asked_for(done, split_fit):
    written, run = evaluated(done, NETWORK, FOLDER, "--all-items")
    assert "30 test items" in written
    assert run["settings"]["all items"] is True


def test_the_same_data_under_another_name_are_known_again(done, split_fit, val):
    written, _ = evaluated(done, NETWORK, f"imagefolder:{val}")
    assert "testing on the 19 of 30 items" in written


def test_other_data_are_tested_on_in_full_and_that_is_said(done, split_fit, folder):
    folder_of(folder / "test", {"cat": 12, "dog": 10, "eel": 7}, height=6, width=8)
    written, run = evaluated(done, NETWORK, "imagefolder:test")
    assert "testing on all items: the ensemble was tuned on other data, imagefolder:val" in written
    assert run["methods"][0]["scores"]["items"] == 29


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "moved"])
def test_data_that_have_changed_are_refused(peppermill, done, split_fit, val, change):
    if change == "added":
        shutil.copy(val / "cat" / "0.png", val / "cat" / "new.png")
    elif change == "removed":
        (val / "cat" / "0.png").unlink()
    else:
        (val / "cat" / "0.png").rename(val / ("dog" if change == "moved" else "cat") / "new.png")
    found = peppermill("evaluate", NETWORK, f"{FOLDER}?bad=skip", "--pep", "pep.json")
    assert found.exit_code == 2
    message = "has changed since tuning on 11 of its 30 items, which can no longer be identified: fit again"
    assert message in found.stderr
    assert "test items" in done("evaluate", NETWORK, FOLDER, "--pep", "pep.json", "--all-items")


def test_the_sweep_of_a_report_shows_the_items_that_were_tuned_on(done, split_fit):
    _, run = evaluated(done, NETWORK, FOLDER, "--sweep", FOLDER)
    assert run["sweep"]["items"] == 11


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("python:picture_models:wide", "npz:validation.npz"),
        ("python:picture_models:wide", "python:picture_models:loader"),
        ("python:picture_models:wide", "python:my_models:validation"),
    ],
)
def test_every_scheme_of_known_length_can_be_split(done, val, model, data):
    fit(done, data, model)
    split = Split(**json.loads((val.parent / "pep.json").read_text())["split"])
    _, run = evaluated(done, model, data)
    assert split.items in (300, 50)
    assert run["methods"][0]["scores"]["items"] == split.items - 11


def test_a_split_makes_the_fit_of_the_library_on_those_items(done, data, network, folder):
    pair = data("validation")
    done("fit", "python:my_models:resnet", "npz:validation.npz", "--weights", "resnet.safetensors", "--validation", 100,
         "--split-seed", 3, "--size", 2)  # fmt: skip
    tuning, _ = pm.split_off(pair, 100, seed=3)
    expected = pm.fit(network, tuning, size=2)
    found = pm.load("pep.json", network)
    assert found.sigma == expected.sigma
    assert found.search.items == 100


def test_a_file_without_a_split_is_an_ensemble_of_old(done, split_fit, val):
    content = json.loads((val.parent / "pep.json").read_text())
    del content["split"], content["checksum"], content["calibrator"], content["views"]
    content |= {"version": 1, "temperature": 1.0}
    (val.parent / "pep.json").write_text(json.dumps(content))
    assert "30 test items" in evaluated(done, NETWORK, FOLDER)[0]


def test_info_says_what_was_split(done, split_fit):
    assert "tuned on 11 of the 30 items of imagefolder:val, seed 5; the others are for testing\n" in done(
        "info", "pep.json"
    )


def test_the_names_of_the_models_classes_give_the_labels(done, val):
    _, run = evaluated_network(done, "python:picture_models:named")
    assert run["class_names"] == ["eel", "dog", "cat"]
    with np.load("predictions.npz") as file:
        assert file["labels"].tolist() == [0] * 8 + [1] * 10 + [2] * 12


def evaluated_network(done, model):
    done("predict", model, FOLDER)
    written = done("evaluate", model, FOLDER, "--out", "run.json")
    with open("run.json") as file:
        return written, json.load(file)


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("predict", (), "log_probs, predicted, labels, names of 30 items"),
        ("sweep", ("--sigmas", "0,0.1", "--size", 2), "L(sigma)/N"),
        ("curvature", ("--probes", 3, "--size", 6, "--sigmas", "0.01"), "30 items, 432 perturbed numbers"),
    ],
)
def test_every_command_takes_a_folder(done, val, command, options, said):
    assert said in done(command, NETWORK, FOLDER, *options)


def flat(val, name="new"):
    """The pictures of all classes in one folder, in the order in which the labelled folder has them."""
    new = val.parent / name
    new.mkdir()
    for k, path in enumerate(sorted(val.rglob("*.png"))):
        shutil.copy(path, new / f"{k:02d}.png")
    return new


@pytest.mark.parametrize("data", ["imagefolder:new", "imagefolder:val?labels=none"])
def test_pictures_without_labels_are_predicted_and_called_by_their_names(done, val, data):
    new = flat(val)
    done("predict", NETWORK, FOLDER, "--out", "labelled.npz")
    written = done("predict", NETWORK, data)
    with np.load("predictions.npz") as found, np.load("labelled.npz") as expected:
        np.testing.assert_array_equal(found["log_probs"], expected["log_probs"])
        of_folder = {"new": sorted(path.name for path in new.iterdir()), "val": expected["names"].tolist()}
        assert found["names"].tolist() == of_folder[data[12:15]]
        assert "labels" in expected.files
        assert set(found.files) == {"log_probs", "predicted", "names"}
    assert written.endswith("wrote predictions.npz: log_probs, predicted, names of 30 items\n")


def test_the_ensemble_predicts_pictures_without_labels(done, val):
    flat(val)
    done("fit", NETWORK, FOLDER, "--size", 2, "--iterations", 1)
    for data, out in ((FOLDER, "labelled.npz"), ("imagefolder:new", "bare.npz")):
        done("predict", NETWORK, data, "--pep", "pep.json", "--out", out)
    with np.load("bare.npz") as found, np.load("labelled.npz") as expected:
        np.testing.assert_array_equal(found["log_probs"], expected["log_probs"])


def test_the_names_are_those_of_the_pictures_that_could_be_read(peppermill, val):
    new = flat(val)
    (new / "03.png").write_bytes(b"no picture")
    found = peppermill("predict", NETWORK, "imagefolder:new?bad=skip")
    assert "1 of 30 items cannot be read: 03.png (" in found.stderr
    with np.load("predictions.npz") as arrays:
        assert arrays["names"].tolist() == [f"{k:02d}.png" for k in range(30) if k != 3]
        assert len(arrays["log_probs"]) == 29


def test_fit_needs_labels(peppermill, val):
    found = peppermill("fit", NETWORK, "imagefolder:val?labels=none")
    assert found.exit_code == 2
    assert "imagefolder:val?labels=none has no labels, which only `predict` does without" in " ".join(
        found.stderr.split()
    )


def test_damaged_pictures_may_be_left_out(peppermill, done, val):
    (val / "cat" / "0.png").write_bytes((val / "cat" / "0.png").read_bytes()[:70])
    found = peppermill("evaluate", NETWORK, f"{FOLDER}?bad=skip")
    assert found.exit_code == 0
    assert "note: imagefolder:val: 1 of 30 items cannot be read: cat/0.png (" in found.stderr
    assert "29 test items" in found.stdout


def refused(peppermill, *arguments):
    """The one line with which a command is refused."""
    found = peppermill(*arguments)
    assert found.exit_code == 2
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


@pytest.mark.parametrize(
    ("model", "data", "match"),
    [
        (NETWORK, "imagefolder:nowhere", "imagefolder:nowhere: there is no folder nowhere: name the one"),
        (
            NETWORK,
            "imagefolder:val/cat",
            "imagefolder:val/cat has no sub-folder: expected one sub-folder for each class",
        ),
        (NETWORK, "imagefolder:empty", "imagefolder:empty has no sub-folder"),
        (NETWORK, "imagefolder:broken", "1 of 2 items cannot be read: cat/bad.png (cannot identify image file"),
        (
            NETWORK,
            "imagefolder:val/cat?labels=labels.csv",
            "labels.csv has labels for nobody.png, but the folder has no",
        ),
        (NETWORK, "imagefolder:val?colour=red", "the option 'colour=red' is unknown or empty"),
        ("python:picture_models:ten", FOLDER, "imagefolder:val has 3 classes, but the network has 10"),
        ("python:picture_models:two", FOLDER, "imagefolder:val has 3 classes, but the network has 2"),
        ("python:picture_models:two", "imagefolder:val/eel?labels=high.csv", "has 8 classes, but the network has 2"),
        ("python:picture_models:bare", FOLDER, "this model does not say how its pictures are prepared. Say how, as in"),
        (NETWORK, "hf:./nowhere:test", "hf:./nowhere:test could not be loaded ("),
    ],
)
def test_what_cannot_be_is_one_clear_line(peppermill, val, folder, model, data, match):
    (folder / "empty").mkdir()
    folder_of(folder / "broken", {"cat": 1, "dog": 0, "eel": 0}, height=6, width=8)
    (folder / "broken" / "cat" / "bad.png").write_text("no picture")
    (folder / "val" / "cat" / "labels.csv").write_text("nobody.png,1\n")
    (folder / "val" / "eel" / "high.csv").write_text("".join(f"{k}.png,{k}\n" for k in range(8)))
    assert match in refused(peppermill, "fit", model, data)


@pytest.mark.parametrize(
    ("validation", "match"),
    [
        (0, "`validation=0` must be at least 1 and less than the 30 items"),
        (-3, "`validation=-3` must be at least 1"),
        (31, "`validation=31` must be at least 1 and less than the 30 items: some must be left to test on"),
        (30, "`validation=30` must be at least 1 and less than the 30 items: leave it out to tune on all"),
    ],
)
def test_numbers_of_validation_items_that_cannot_be(peppermill, val, validation, match):
    assert match in refused(peppermill, "fit", NETWORK, FOLDER, "--validation", validation)
    import picture_models

    assert picture_models.SEEN == []


def test_data_that_can_be_read_only_once_cannot_be_split(peppermill, val):
    data = "python:picture_models:stream"
    message = refused(peppermill, "fit", "python:picture_models:wide", data, "--validation", 10)
    assert "data of the form generator cannot be split" in message


def test_a_damaged_split_is_a_damaged_file(peppermill, split_fit, val):
    content = json.loads((val.parent / "pep.json").read_text())
    for broken in ({**content["split"], "validation": 30}, {"items": 3}, 7):
        (val.parent / "pep.json").write_text(json.dumps({**content, "split": broken}))
        assert "pep.json is damaged" in refused(peppermill, "evaluate", NETWORK, FOLDER, "--pep", "pep.json")


def test_a_name_between_colons_stays_a_name(peppermill, val):
    """`:cat:` would become a cat where the terminal's library may have its way."""
    (val / "notes.txt").write_text("")
    val.rename("cat")
    found = peppermill("fit", NETWORK, "imagefolder:cat", "--size", 2, "--iterations", 1)
    assert "note: imagefolder:cat: 1 file is not a picture by its name and is not read (notes.txt).\n" in found.stderr


def test_no_global_generator_is_touched(done, val):
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    fit(done)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
