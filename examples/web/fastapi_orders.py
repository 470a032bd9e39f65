"""FastAPI: take orders over HTTP, put them into a bounded queue, and handle them in the background.

    pip install apressure fastapi uvicorn
    uvicorn --app-dir examples/web fastapi_orders:app --workers 2

APRESSURE_URL names the server. All workers share the queue, and each order goes to one of them.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from apressure import AsyncQueue, serve

URL = os.environ.get("APRESSURE_URL", "redis://127.0.0.1:6379/0")
BOUND = int(os.environ.get("ORDERS_BOUND", "100"))

logger = logging.getLogger("orders")


class Order(BaseModel):
    number: int


class Invoice(BaseModel):
    order: int
    worker: int


@contextlib.asynccontextmanager
async def in_background(
    service: Coroutine[Any, Any, object], stop: asyncio.Event
) -> AsyncIterator[asyncio.Task[object]]:
    """Run a service until the application ends, then set `stop`. If the service fails, the application shuts down."""

    def ended(task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("the background service failed: shutting down", exc_info=error)
            signal.raise_signal(signal.SIGTERM)

    task = asyncio.create_task(service)
    task.add_done_callback(ended)
    try:
        yield task
    finally:
        stop.set()  # handlers finish, and the other orders go back, first in line
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        AsyncQueue("orders", url=URL, codec=Order) as orders,
        AsyncQueue("invoices", url=URL, codec=Invoice) as invoices,
    ):
        await orders.create(bound=BOUND, exist_ok=True)
        await invoices.create(exist_ok=True)

        async def handle(order: Order) -> None:
            await invoices.put(Invoice(order=order.number, worker=os.getpid()))

        # signals=(): uvicorn has its own signal handlers.
        stop = asyncio.Event()
        orders_service = serve(handle, orders, concurrency=4, signals=(), stop=stop, shutdown_timeout=20)
        async with in_background(orders_service, stop) as service:
            app.state.orders, app.state.service = orders, service
            gc.freeze()  # Python looks for garbage only among what comes later: up to a fifth more requests
            yield


app = FastAPI(lifespan=lifespan)


def orders_of(request: Request) -> AsyncQueue[Order]:
    queue: AsyncQueue[Order] = request.app.state.orders
    return queue


Orders = Annotated[AsyncQueue[Order], Depends(orders_of)]


@app.post("/orders", status_code=202)
async def take(order: Order, orders: Orders) -> None:
    """Answer 202 when the order is in the queue, or 503 when the queue stays full or the server is down."""
    try:
        await orders.put(order, timeout=0.5, deadline=5)
    except (TimeoutError, ConnectionError) as error:  # full, in use, or out of reach
        logger.warning("refused an order: %s", error)  # the error names the server: it is not for clients
        raise HTTPException(503, "try again later", {"Retry-After": "1"}) from error


@app.get("/health")
async def health(request: Request) -> str:
    """Answer 503 when the background service has ended: nobody handles orders."""
    if request.app.state.service.done():
        raise HTTPException(503, "the background service has ended")
    return "healthy"
