"""The line that says how far a long job is."""

import io
import re
import sys
import time

import pytest
import torch
from torch import nn

import peppermill as pm
from peppermill.plumbing import progress as module
from peppermill.plumbing.progress import line_of, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written_by_a_job(monkeypatch, ticks, error=None):
    """What a job of some ticks, a millisecond each, writes on a terminal if its line is shown at once."""
    monkeypatch.setattr(module, "DELAY_SECONDS", 1e-9)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("fitting") as tick:
        for _ in range(ticks):
            time.sleep(0.001)
            tick(3)
        if error:
            raise error
    return sys.stderr.getvalue()


def test_nothing_is_written_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(module, "DELAY_SECONDS", 1e-9)
    with progress("fitting", 10) as tick:
        time.sleep(0.001)
        tick(5)
    assert capsys.readouterr() == ("", "")


def test_a_short_job_shows_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("fitting") as tick:
        tick(5)
    assert sys.stderr.getvalue() == ""


def test_a_long_job_shows_a_line_and_takes_it_away(monkeypatch):
    written = written_by_a_job(monkeypatch, ticks=1)
    assert written.startswith("\r\033[Kfitting  3 forward passes of one item, ")
    assert written.endswith("\r\033[K")


def test_the_line_is_gone_after_an_error_too(monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        written_by_a_job(monkeypatch, ticks=1, error=KeyboardInterrupt())
    assert sys.stderr.getvalue().endswith("/s, 0 s\r\033[K")


def test_two_updates_are_some_time_apart(monkeypatch):
    """Fifty ticks in well under twenty seconds."""
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 20.0)
    assert written_by_a_job(monkeypatch, ticks=50).count("fitting") == 1


@pytest.mark.parametrize(
    ("done", "seconds", "total", "text"),
    [
        (6000, 3.0, None, "job  6,000 forward passes of one item, 2,000/s, 3 s"),
        (25, 5.0, 100, "job  " + 7 * "█" + 23 * "░" + "  25/100, 5/s, 15 s left"),
        (100, 4.0, 100, "job  " + 30 * "█" + "  100/100, 25/s, 0 s left"),
        (120, 4.0, 100, "job  120 forward passes of one item, 30/s, 4 s"),
    ],
)
def test_the_line_says_rate_and_time_left(done, seconds, total, text):
    assert line_of("job", done, total, seconds) == text


def test_a_notebook_shows_the_line_too(monkeypatch):
    """Its stderr is no terminal; what runs there has `ipykernel` among its modules."""
    monkeypatch.setattr(module, "DELAY_SECONDS", 1e-9)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel", module)
    with progress("predicting", 10) as tick:
        time.sleep(0.001)
        tick(5)
    assert "5/10" in sys.stderr.getvalue()


@pytest.mark.parametrize(
    ("options", "passes"),
    [({}, 5), ({"temperature": True}, 8), ({"search": "golden"}, 12), ({"search": "golden", "temperature": True}, 19)],
)
@pytest.mark.filterwarnings("ignore:noise does not help")
def test_fit_has_an_end_in_sight(monkeypatch, options, passes):
    """600 items and four members; the default search never needs more passes than it says."""
    monkeypatch.setattr(module, "DELAY_SECONDS", 1e-9)
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    torch.manual_seed(0)
    network, inputs = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).eval(), torch.randn(600, 6)
    pep = pm.fit(network, (inputs, torch.randint(3, (600,))), size=4, **options)
    shown = re.findall(r"fitting sigma  [█░]{30}  ([\d,]+)/([\d,]+)", sys.stderr.getvalue())
    done, total = ([int(text.replace(",", "")) for text in column] for column in zip(*shown, strict=True))
    assert set(total) == {passes * 4 * 600}
    assert done == sorted(done)
    if "search" not in options:
        assert done[-1] == pytest.approx(600 * pep.search.passes, rel=0.05)
