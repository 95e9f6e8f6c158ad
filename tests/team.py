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

    def __init__(self, size: int = 3) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.jobs = 0
        pipes = [context.Pipe() for _ in range(size)]
        self.connections = [mine for mine, _ in pipes]
        self.processes = [context.Process(target=_work, args=(rank, theirs)) for rank, (_, theirs) in enumerate(pipes)]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()

    def do(self, job: str, *args: Any, processes: int = 2, answers: int = 0, **options: Any) -> list[Answer]:
        """The answers of the processes that answer, in order of rank."""
        self.jobs += 1
        store = Path(self.folder.name) / f"store{self.jobs}"
        for connection in self.connections[:processes]:
            connection.send((job, processes, str(store), args, options))
        return [self._answer(rank) for rank in range(answers or processes)]

    def _answer(self, rank: int) -> Answer:
        assert self.connections[rank].poll(PATIENCE), f"process {rank} hangs"
        answer: Answer = self.connections[rank].recv()
        return answer

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


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
        try:
            answer = alone(job, *args, **options)
        except Exception as error:
            answer = Answer(error=type(error).__name__, text=str(error))
        dist.destroy_process_group()
        connection.send(answer)
