"""Real Ray on two local actors: the numbers of one process, by id, whatever happens to an actor or a batch."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.integrations.ray import PepPredictor

ITEMS = 600


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(ITEMS, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def pep_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pep") / "pep.json"
    pm.PepEnsemble.at_sigma(network().eval(), 0.2, size=3).save(path)
    return str(path)


@pytest.fixture(scope="module")
def expected(x, pep_file):
    return pm.load(pep_file, network().eval()).uncertainty(torch.from_numpy(x))


def test_a_batch_keeps_its_other_columns(x, pep_file, expected):
    """Without Ray: the class is a function of dicts of arrays."""
    predictor = PepPredictor(network, pep_file, columns="probabilities,mutual_information", top=2)
    found = predictor({"x": x, "id": np.arange(ITEMS)[::-1]})
    assert list(found) == ["id", "probabilities", "mutual_information", "classes"]
    best = expected.outputs.exp().sort(dim=1, descending=True)
    np.testing.assert_allclose(found["probabilities"], best.values[:, :2], atol=1e-6)
    np.testing.assert_allclose(found["mutual_information"], expected.mutual_information, atol=1e-6)
    np.testing.assert_array_equal(found["id"], np.arange(ITEMS)[::-1])


def test_items_are_prepared_and_several_columns_are_arguments_by_name(x):
    class Sum(nn.Module):
        def forward(self, left, right):
            return left + right

    def halves(row):
        return torch.as_tensor(row) / 2

    found = PepPredictor(Sum, inputs=("left", "right"), prepare=halves)({"left": x, "right": np.array(list(x))})
    np.testing.assert_allclose(found["log_probs"], torch.from_numpy(x).log_softmax(dim=1), atol=1e-6)
    rows = np.empty(ITEMS, dtype=object)
    rows[:] = list(x)
    found = PepPredictor(nn.Identity)({"x": rows})
    np.testing.assert_array_equal(found["predicted"], x.argmax(axis=1))


def test_a_column_that_is_not_there_is_named(x):
    with pytest.raises(ValueError, match=r"`inputs='x'`: the data have no column 'x', only pixels, id\."):
        PepPredictor(network)({"pixels": x, "id": x})


class Failing(PepPredictor):
    def __call__(self, batch):
        if 300 in batch["id"]:
            raise ValueError("this batch holds item 300")
        return super().__call__(batch)


class DyingAndFailing(Failing):
    """Its process is also killed at the third call, once."""

    def __init__(self, mark, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mark, self.calls = Path(mark), 0

    def __call__(self, batch):
        self.calls += 1
        if self.calls == 3 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    paths = os.pathsep.join([str(Path(pm.__file__).resolve().parents[1]), str(Path(__file__).parent)])
    ray.init(
        num_cpus=3,  # for two actors and then one; those of a job that failed end later
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def items(ray, x):
    return ray.data.from_items([{"id": k, "x": row} for k, row in enumerate(x)], override_num_blocks=12)


def mapped(ray, data, predictor, actors, **arguments):
    return data.map_batches(
        predictor, batch_size=50, compute=ray.data.ActorPoolStrategy(size=actors), fn_constructor_kwargs=arguments
    )


def by_id(dataset):
    columns = dataset.to_pandas().sort_values("id")
    return columns["id"].to_numpy(), np.stack(columns["probabilities"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_two_actors_give_the_numbers_of_one_process_but_for_a_block_that_fails(ray, x, pep_file, expected, tmp_path):
    """Also if one of them is killed in the middle; from the Parquet files that they wrote."""
    arguments = {"factory": network, "pep": pep_file, "columns": "probabilities", "mark": str(tmp_path / "killed")}
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = 1  # a data set keeps the context of its making
    try:
        mapped(ray, items(ray, x), DyingAndFailing, 2, **arguments).write_parquet(str(tmp_path / "parts"))
    finally:
        context.max_errored_blocks = 0
    ids, probabilities = by_id(ray.data.read_parquet(str(tmp_path / "parts")))
    lost = sorted(set(range(ITEMS)) - set(ids.tolist()))
    assert lost == list(range(300, 350))  # the block of item 300, and nothing by the kill
    assert len(ids) + len(lost) == ITEMS  # nothing twice
    np.testing.assert_allclose(probabilities, expected.outputs.exp()[ids], atol=1e-6)
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_an_error_in_one_batch_is_named(ray, x, pep_file):
    arguments = {"factory": network, "pep": pep_file, "columns": "probabilities"}
    with pytest.raises(Exception, match="this batch holds item 300"):
        mapped(ray, items(ray, x), Failing, 1, **arguments).materialize()
