"""Carries out the steps of operations with awaited calls, under asyncio or trio. It knows no operation.

Work on the local disk is done in threads; progress is reported in the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import httpx
from anyio import to_thread

from . import _operations as operations
from ._sse import EventReader
from ._steps import Answer, Body, Call, Flow, Local, Meter, Step
from ._transport import TIMEOUT, Receiver, Retry, Settings, broken, ended_early, request_parts
from .errors import SandboxError
from .models import Event

T = TypeVar("T")

CLEAN_UP_S = 10.0
"""What a cancelled operation may still take to cancel its run."""


class AsyncConnection:
    """The twin of `Connection`."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        retries: int,
        transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        settings = Settings(url, token)
        self._retry = Retry(retries)
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=settings.url, headers=settings.headers(), timeout=TIMEOUT, transport=transport
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Runs an operation. A cancellation is thrown into it, and it cleans up within a limit of time."""
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._step(step)
                except Exception as error:
                    step = flow.throw(error)
                except BaseException as stop:
                    await self._clean_up(flow, stop)
                    raise
                else:
                    step = flow.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _clean_up(self, flow: Flow[Any], stop: BaseException) -> None:
        with anyio.move_on_after(CLEAN_UP_S, shield=True):
            try:
                step = flow.throw(stop)
                while True:
                    try:
                        result = await self._step(step)
                    except Exception as error:
                        step = flow.throw(error)
                    else:
                        step = flow.send(result)
            except BaseException as error:
                if error is not stop:
                    raise
        flow.close()

    async def leave(self, clean_up: Callable[[], Awaitable[object]], kind: type[BaseException] | None) -> None:
        """Cleans up at the end of an `async with`, cancelled or not. An error on the way does not hide the one that
        ended it."""
        with anyio.move_on_after(CLEAN_UP_S, shield=True):
            try:
                await clean_up()
            except SandboxError:
                if kind is None:
                    raise

    async def _step(self, step: Step) -> Any:
        if isinstance(step, Local):
            return await to_thread.run_sync(step.work)
        return await self.call(step)

    async def call(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return call.read(await self._once(call))
            except SandboxError as error:
                pause = self._retry.pause(error, attempt, repeatable=call.repeatable, patient=call.patient)
                if pause is None:
                    raise
            await self._sleep(pause)
            attempt += 1

    async def events(self, run_id: str, reader: EventReader) -> AsyncGenerator[Event, None]:
        """The events of a run to the last, over as many connections as that takes."""
        attempt = 0
        while not reader.done:
            before = reader.after
            call = operations.events_call(run_id, reader)
            try:
                reader.connected()
                async with self._open(call) as response:
                    if response.status_code != 200:
                        await self._receive(call, response)
                        return
                    async for piece in response.aiter_bytes():
                        for event in reader.feed(piece):
                            yield event
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
            await self._sleep(pause)
            attempt += 1

    async def _once(self, call: Call[Any]) -> Answer:
        try:
            async with self._open(call) as response:
                return await self._receive(call, response)
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise broken(error) from error

    def _open(self, call: Call[Any]) -> AbstractAsyncContextManager[httpx.Response]:
        parts = request_parts(call)
        if call.body is not None:
            parts["content"] = self._pieces(call.body, call.meter)
        return self._http.stream(**parts)

    @staticmethod
    async def _pieces(body: Body, meter: Meter) -> AsyncIterator[bytes]:
        meter.again()
        pieces = body.pieces()
        while (piece := await to_thread.run_sync(next, pieces, b"")) != b"":
            yield piece
            meter.add(len(piece))

    @staticmethod
    async def _receive(call: Call[Any], response: httpx.Response) -> Answer:
        receiver = Receiver(call, response)
        if receiver.sink is None:
            async for piece in response.aiter_bytes():
                receiver.take(piece)
            return receiver.answer()
        async for piece in response.aiter_bytes():
            await to_thread.run_sync(receiver.take, piece)
            call.meter.add(len(piece))
        return receiver.answer()
