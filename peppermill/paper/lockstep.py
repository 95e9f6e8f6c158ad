"""Several searches at once: each asks its own question, and all questions of a round are answered together.

A golden-section search asks for one value at a time. The searches of 25 networks run in a thread each and wait for one
another at every question, so that one pass over stacked networks answers 25 questions, and each search is the very
function that serves a single network. Between questions one thread runs at a time: 25 that wait for a GPU and for the
interpreter by turns hold each other up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


def in_lockstep(
    count: int,
    job: Callable[[int, Callable[[Question], Answer]], Result],
    answer: Callable[[Mapping[int, Question]], Mapping[int, Answer]],
) -> list[Result]:
    """What `job(index, ask)` returns for each index below `count`.

    `answer` is called here, in the caller's thread, with the questions of all jobs that still run.
    """
    said: SimpleQueue[tuple[int, str, Any]] = SimpleQueue()
    turn = threading.Lock()
    replies: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(count)]
    for index in range(count):
        threading.Thread(target=_work, args=(index, job, said, replies[index], turn), daemon=True).start()
    results: dict[int, Result] = {}
    try:
        while len(results) < count:
            questions = _round(said, results, count)
            for index, reply in answer(questions).items() if questions else ():
                replies[index].put((True, reply))
    finally:
        for queue in replies:  # whoever still waits, because another failed, ends
            queue.put((False, None))
    return [results[index] for index in range(count)]


def _round(said: SimpleQueue[tuple[int, str, Any]], results: dict[int, Any], count: int) -> dict[int, Any]:
    """Listen until every job has asked or ended; the questions, by job."""
    questions: dict[int, Any] = {}
    while len(questions) + len(results) < count:
        index, what, value = said.get()
        if what == "fails":
            raise value
        (questions if what == "asks" else results)[index] = value
    return questions


def _work(
    index: int, job: Any, said: SimpleQueue[tuple[int, str, Any]], replies: SimpleQueue[Any], turn: threading.Lock
) -> None:
    def ask(question: Any) -> Any:
        said.put((index, "asks", question))
        turn.release()
        answered, reply = replies.get()
        turn.acquire()
        if not answered:
            raise SystemExit
        return reply

    with turn:
        try:
            said.put((index, "ends", job(index, ask)))
        except SystemExit:
            return
        except BaseException as error:
            said.put((index, "fails", error))
