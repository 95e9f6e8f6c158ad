"""Real processes that do jobs together: each job in a new process group, on gloo, met through a file."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import team_jobs
import torch
import torch.distributed as dist

PATIENCE = 200  # seconds after which a process counts as hung, on however busy a machine


@dataclass(frozen=True)
class Answer:
    """What one process found, or the error with which it ended; and the warnings that it gave."""

    found: Any = None
    error: str = ""
    text: str = ""
    warnings: list[str] = field(default_factory=list)


class Team:
    """Three processes, of which a job takes as many as it needs."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.jobs = 0
        self.started = [_start(rank) for rank in range(3)]

    def do(self, job: str, *args: Any, processes: int = 2, answers: int = 0, **options: Any) -> list[Answer]:
        """The answers of the processes that answer, in order of rank."""
        self.jobs += 1
        store = Path(self.folder.name) / f"store{self.jobs}"
        for rank in range(processes):
            if not self.started[rank][0].is_alive():
                self.started[rank] = _start(rank)
            self.started[rank][1].send((job, processes, str(store), args, options))
        return [self._answer(rank) for rank in range(answers or processes)]

    def _answer(self, rank: int) -> Answer:
        connection = self.started[rank][1]
        assert connection.poll(PATIENCE), f"process {rank} hangs"
        answer: Answer = connection.recv()
        return answer

    def close(self) -> None:
        for process, _ in self.started:
            process.kill()
            process.join()
        self.folder.cleanup()


def _start(rank: int) -> tuple[Any, Any]:
    """A process, and the end of a pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(rank, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def alone(job: str, *args: Any, **options: Any) -> Answer:
    """The same job in this process, without a group."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = getattr(team_jobs, job)(*args, **options)
    return Answer(found, warnings=[str(one.message) for one in caught])


def _next_job(connection: Any) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None


def _work(rank: int, connection: Any) -> None:
    torch.set_num_threads(1)
    while asked := _next_job(connection):
        job, processes, store, args, options = asked
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=PATIENCE),
        )
        dist.barrier()  # or one that has little to do would be gone before the others have met it
        try:
            answer = alone(job, *args, **options)
        except Exception as error:
            answer = Answer(error=type(error).__name__, text=str(error))
        dist.destroy_process_group()
        connection.send(answer)
