"""aiohttp: send updates to a browser over a websocket, and acknowledge those that the browser confirmed.

    pip install apressure aiohttp
    APRESSURE_URL=redis://127.0.0.1:6379/0 python examples/web/aiohttp_updates.py 8080

The server sends {"id": ..., "item": ..., "redelivered": ...}, and the browser answers {"ack": id}. What a browser has
not confirmed goes back to the queue when its connection ends, and the next browser gets it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from aiohttp import WSCloseCode, web

from apressure import AsyncQueue, Client, Delivery
from apressure.pressure import Consumer

URL = os.environ.get("APRESSURE_URL", "redis://127.0.0.1:6379/0")
UNCONFIRMED = 10  # how many updates a browser gets ahead

client_key = web.AppKey("client", Client)
sockets_key: web.AppKey[set[web.WebSocketResponse]] = web.AppKey("sockets", set)


def updates_queue(client: Client) -> AsyncQueue[str]:
    """Return an object for the queue. Each consumer needs one of its own; they share the client."""
    return AsyncQueue("updates", client=client, codec="text")


async def open_client(app: web.Application) -> AsyncIterator[None]:
    """Open the client at the start of the application, and close it at the end."""
    async with Client(URL) as client:
        await updates_queue(client).create(bound=1000, exist_ok=True)
        app[client_key] = client
        yield


async def updates(request: web.Request) -> web.WebSocketResponse:
    """Send updates to one browser until its connection ends, or the queue is closed and drained."""
    socket = web.WebSocketResponse(heartbeat=10, max_msg_size=1024)  # seconds: a browser that vanished is noticed
    await socket.prepare(request)
    request.app[sockets_key].add(socket)
    unconfirmed: dict[str, Delivery[str]] = {}
    room = asyncio.Semaphore(UNCONFIRMED)

    async def send(consumer: Consumer[Delivery[str]]) -> None:
        await room.acquire()
        async for delivery in consumer:
            unconfirmed[delivery.id] = delivery
            await socket.send_json({"id": delivery.id, "item": delivery.item, "redelivered": delivery.redelivered})
            await room.acquire()

    async def confirm() -> None:
        async for message in socket:
            try:
                delivery = unconfirmed.pop(message.json()["ack"])
            except (ValueError, TypeError, KeyError):
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"not an unconfirmed update")
                return
            await delivery.ack()
            room.release()

    # The end of the consumer's block gives back what the browser has not confirmed.
    async with updates_queue(request.app[client_key]).consumer("manual", shared=True) as consumer:
        sending, confirming = asyncio.create_task(send(consumer)), asyncio.create_task(confirm())
        try:
            await asyncio.wait([sending, confirming], return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not sending.exception():  # the queue is closed and drained
                await asyncio.wait([confirming], timeout=10)
        finally:
            sending.cancel()
            confirming.cancel()
            await asyncio.wait([sending, confirming])
            request.app[sockets_key].discard(socket)
    await socket.close()
    return socket


async def close_sockets(app: web.Application) -> None:
    """End the websockets at SIGTERM, so that the application need not wait for the browsers."""
    sockets = app[sockets_key]
    for socket in list(sockets):
        await socket.close(code=WSCloseCode.GOING_AWAY)


def application() -> web.Application:
    """Return the application."""
    app = web.Application()
    app[sockets_key] = set()
    app.cleanup_ctx.append(open_client)
    app.on_shutdown.append(close_sockets)
    app.router.add_get("/updates", updates)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
