"""The web application of the shop: it takes orders over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from shop import Order, accept, invoices

queue = invoices()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with queue:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def take(order: Order, response: Response) -> None:
    """Answer 202 if the order is in the queue, and 503 if there are too many orders."""
    response.status_code = await accept(queue, order)
