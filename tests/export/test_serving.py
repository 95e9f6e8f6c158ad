"""The files of docs/deployment.md: the server starts and answers what the ensemble says; Triton's names are ours."""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import peppermill as pm

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
OUTPUTS = ("probabilities", "mutual_information")


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 5)

    def forward(self, images):
        return self.layer(images.flatten(1))


@pytest.fixture(scope="module")
def pep(tmp_path_factory):
    torch.manual_seed(0)
    return pm.PepEnsemble.at_sigma(Pictures().eval(), 0.5, size=3)


@pytest.fixture(scope="module")
def server(pep, tmp_path_factory):
    """The address of the server of the page, beside an exported model."""
    folder = tmp_path_factory.mktemp("server")
    pep.export(folder / "model.onnx", torch.randn(2, 3, 2, 2), outputs=OUTPUTS)
    (code,) = re.findall(r'```py title="serve.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "serve.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{address}/docs", timeout=5).close()
            break
        except OSError:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.1)
    yield address
    process.terminate()
    process.communicate()


def post(address, content):
    request = urllib.request.Request(f"{address}/predict", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_server_answers_what_the_ensemble_says(server, pep):
    """Forty requests from eight threads, which share batches; each gets its own answer."""
    x = torch.randn(40, 3, 2, 2)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: post(server, json.dumps(item.tolist()).encode()), x))
    expected = pep.uncertainty(x)
    np.testing.assert_allclose([one["probabilities"] for one in found], expected.outputs.exp(), atol=1e-5)
    np.testing.assert_allclose([one["mutual_information"] for one in found], expected.mutual_information, atol=1e-5)


def test_a_bad_request_harms_no_other(server):
    with pytest.raises(urllib.error.HTTPError, match="500"):
        post(server, b"[1, 2]")
    with pytest.raises(urllib.error.HTTPError, match="422"):
        post(server, b"no JSON")
    assert len(post(server, json.dumps([0.0] * 12).encode())["probabilities"]) == 5


def test_triton_gets_the_names_and_types_of_the_file(pep, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pep.export(tmp_path / "model.onnx", torch.randn(2, 3, 2, 2), outputs=OUTPUTS)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    config = PAGE.read_text(encoding="utf-8").partition('name: "pep"')[2].partition("```")[0]
    named = re.findall(r'name: "(\w+)" data_type: TYPE_FP32', config)
    values = [*session.get_inputs(), *session.get_outputs()]
    assert named == [value.name for value in values]
    assert {value.type for value in values} == {"tensor(float)"}
    assert all(isinstance(value.shape[0], str) for value in values)  # any number of items, as max_batch_size needs
    dims = [found.split(",") for found in re.findall(r"TYPE_FP32 dims: \[ ([\d, ]+) \]", config)]
    assert [len(one) for one in dims[:2]] == [len(value.shape) - 1 for value in values[:2]]
    assert session.get_outputs()[1].shape[1:] == []  # hence the reshape
    assert dims[-1] == dims[0]  # the item that warms up
    assert config.count("{") == config.count("}")
