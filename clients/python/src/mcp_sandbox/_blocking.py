"""Carries out the steps of operations with blocking calls. It knows no operation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import httpx

from . import _operations as operations
from ._sse import EventReader
from ._steps import Answer, Body, Call, Flow, Local, Meter
from ._transport import TIMEOUT, Receiver, Retry, Settings, broken, ended_early, request_parts
from .errors import SandboxError
from .models import Event

T = TypeVar("T")


class Connection:
    """Carries out the steps of operations with blocking calls."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        retries: int,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
    ) -> None:
        settings = Settings(url, token)
        self._retry = Retry(retries)
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=settings.url, headers=settings.headers(), timeout=TIMEOUT, transport=transport
        )

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """Runs an operation. An interruption is thrown into it, so that it can clean up."""
        try:
            step = next(flow)
            while True:
                try:
                    result = step.work() if isinstance(step, Local) else self.call(step)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def leave(self, clean_up: Callable[[], object], kind: type[BaseException] | None) -> None:
        """Cleans up at the end of a `with`. An error on the way does not hide the one that ended it."""
        try:
            clean_up()
        except SandboxError:
            if kind is None:
                raise

    def call(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return call.read(self._once(call))
            except SandboxError as error:
                pause = self._retry.pause(error, attempt, repeatable=call.repeatable, patient=call.patient)
                if pause is None:
                    raise
            self._sleep(pause)
            attempt += 1

    def events(self, run_id: str, reader: EventReader) -> Generator[Event, None, None]:
        """The events of a run to the last, over as many connections as that takes."""
        attempt = 0
        while not reader.done:
            before = reader.after
            call = operations.events_call(run_id, reader)
            try:
                reader.connected()
                with self._open(call) as response:
                    if response.status_code != 200:
                        self._receive(call, response)
                        return
                    for piece in response.iter_bytes():
                        yield from reader.feed(piece)
                failure: SandboxError = ended_early()
            except httpx.HTTPError as error:
                failure = broken(error)
            except SandboxError as error:
                failure = error
            if reader.done:
                return
            attempt = 0 if reader.after > before else attempt
            pause = self._retry.pause(failure, attempt, repeatable=True)
            if pause is None:
                raise failure
            self._sleep(pause)
            attempt += 1

    def _once(self, call: Call[Any]) -> Answer:
        try:
            with self._open(call) as response:
                return self._receive(call, response)
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise broken(error) from error

    def _open(self, call: Call[Any]) -> AbstractContextManager[httpx.Response]:
        parts = request_parts(call)
        if call.body is not None:
            parts["content"] = self._pieces(call.body, call.meter)
        return self._http.stream(**parts)

    @staticmethod
    def _pieces(body: Body, meter: Meter) -> Iterator[bytes]:
        meter.again()
        for piece in body.pieces():
            yield piece
            meter.add(len(piece))

    @staticmethod
    def _receive(call: Call[Any], response: httpx.Response) -> Answer:
        receiver = Receiver(call, response)
        for piece in response.iter_bytes():
            receiver.take(piece)
            if receiver.sink is not None:
                call.meter.add(len(piece))
        return receiver.answer()
