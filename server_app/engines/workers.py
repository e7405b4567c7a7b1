"""The processes that train in a simulation.

Flower's own backend keeps the ClientApps in Ray actors, and each imports torch for itself. These workers
are forked from the driver, which has imported everything, and share its pages until one of them writes.
Measured on two cores, 100 clients and `2nn`: 1.9 s instead of 7-13 s to the end of round 1, 0.87 GB
(proportional set size) instead of 2.1 GB.

The standard library has no pool for this: one dead process breaks all of a `ProcessPoolExecutor`, and
`multiprocessing.Pool` never ends the wait for the job that died with it. So each worker has a pipe of its
own, and its end is the end of that pipe. Messages go through it as pickles, large arrays as pages that both
sides map: both ends are one program of one user, with the same modules, so a worker could do nothing to the
driver by them that it could not do anyway.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, cast

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from server_app.deploy.host.processes import how_the_work_ended
from server_app.engines.handover import receive, send
from task.errors import BouquetError, with_kind
from task.numerics import pages
from task.numerics.devices import gpus_here
from task.references import place
from task.storage.files import free
from task.text import logger
from task.wire.error_codes import ErrorCode

MakeApp = Callable[[], ClientApp]


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class _Failure:
    """What a worker answers when the ClientApp raised."""

    reason: str
    trace: str  # "" where the reason is enough


class Workers:
    """Worker processes, one message each at a time.

    Make it before the driver has threads, runs anything parallel in torch or touches a GPU: a forked
    process would inherit locks without a holder and a GPU context that it cannot use. A worker that
    replaces a dead one is spawned, since by then all of this has happened; so are all of them where a fork is
    unsafe (not `fork`, see `may_fork`). `make_app` makes the ClientApp and prepares the worker for its first
    message. The workers take turns at the `gpus`, 0 = all that this process may use: each sees one.
    """

    def __init__(self, make_app: MakeApp, count: int, *, fork: bool = True, gpus: int = 0) -> None:
        self._make_app, self._gpus = make_app, gpus
        self._lock = threading.Lock()
        self._ended = False
        self._workers: dict[int, _Worker] = {}
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for number in range(count):
            self._idle.put(self._start(number, "fork" if fork and sys.platform == "linux" else "spawn"))

    def _start(self, number: int, how: str) -> _Worker:
        context = get_context(how)
        with self._lock:
            ours, theirs = context.Pipe()
            process = context.Process(  # type: ignore[attr-defined]  # mypy does not know which kind of context
                target=_serve,
                args=(theirs, number, self._gpus, self._make_app),
                name=f"bouquet-worker-{number}",
                daemon=True,
            )
            with _ours_only() if how == "spawn" else nullcontext():
                process.start()
            theirs.close()  # now only the worker has it: the pipe ends with the worker
            self._workers[number] = _Worker(number, process, ours)
            if self._ended:
                process.kill()
            return self._workers[number]

    @property
    def count(self) -> int:
        """Messages that are answered at the same time."""
        return len(self._workers)

    def answer(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Have a worker answer a message; return the reply and the context as it left it.

        The reply is an error, and the context as it was, if the ClientApp raised or the worker died.
        """
        worker = self._idle.get()
        try:
            if not worker.process.is_alive() and not self._ended:  # died idle: no message is lost
                worker = self._replace(worker)
            send(worker.pipe, (message, context))
            answer = receive(worker.pipe, ours=True)
        except (EOFError, OSError):
            dead = worker
            dead.process.join()
            if not self._ended:
                worker = self._replace(dead)
            how = how_the_work_ended(dead.process.exitcode or 0)
            reason = f"worker process {dead.process.pid} of the simulation {how}"
            return Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message), context
        finally:
            self._idle.put(worker)
        if isinstance(answer, _Failure):
            if answer.trace:
                logger.error("in a worker process of the simulation:\n%s", answer.trace)
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, answer.reason)
            return Message(error, reply_to=message), context
        return cast(tuple[Message, Context], answer)

    def _replace(self, dead: _Worker) -> _Worker:
        dead.pipe.close()
        return self._start(dead.number, "spawn")

    def terminate(self) -> None:
        """End all workers, whatever they do; a second call does nothing."""
        with self._lock:
            self._ended = True
            for worker in self._workers.values():
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join()


def may_fork() -> bool:
    """Return whether a process that is forked now would work: no other thread runs, no GPU is in use."""
    import torch

    gpu: Any = torch.cuda
    return sys.platform == "linux" and threading.active_count() == 1 and not gpu.is_initialized()


@contextmanager
def _ours_only() -> Iterator[None]:
    """Keep a spawned process from running the user's script again, or importing a user's `task` for ours.

    It inherits the main module's name and Python's path. It also inherits that Ctrl-C is held back, so that
    it is not interrupted, with a traceback, before it can ignore it.
    """
    main, path = sys.modules["__main__"], sys.path[:]
    sys.modules["__main__"] = ModuleType("__main__")
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    mask: Any = getattr(signal, "pthread_sigmask", lambda how, signals: set())  # Windows has none
    before = mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)
        sys.modules["__main__"], sys.path[:] = main, path


def _serve(pipe: Connection, number: int, gpus: int, make_app: MakeApp) -> None:
    """Answer messages until the driver ends; runs in the worker."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends Ctrl-C to all; the driver decides what ends
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    _take_a_gpu(number, gpus)
    pages.in_use(use=True)
    app = make_app()
    while True:
        try:
            message, context = receive(pipe, ours=False)
        except EOFError:
            return
        answer: tuple[Message, Context] | _Failure
        try:
            answer = app(message, context), context
        except BouquetError as err:
            answer = _Failure(str(err), "")
        except Exception as err:  # it goes to the driver with its traceback
            answer = _Failure(with_kind(err, place(err)), traceback.format_exc())
        send(pipe, answer)
        del answer, message  # and their arrays, while no one waits for this process
        free()
        pages.trim()


def _end_with_the_driver() -> None:
    """End this process when its parent does, even if that is killed and this one is in the midst of work."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _take_a_gpu(number: int, gpus: int) -> None:
    """Spread the workers over so many GPUs that this process may see; must come before CUDA is used."""
    there = gpus_here()[: gpus or None]
    if len(there) > 1 or (there and gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = there[number % len(there)]
