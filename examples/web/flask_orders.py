"""Flask: take orders over HTTP, put them into a bounded queue, and handle them in processes beside.

    pip install apressure flask
    flask --app examples/web/flask_orders run
    flask --app examples/web/flask_orders handle-orders

APRESSURE_URL names the server. Any number of web processes and workers share the queue.
"""

import functools
import os
from dataclasses import dataclass

from flask import Flask, Response, request

from apressure import AsyncQueue
from apressure.sync import BlockingQueue, Queue, serve

URL = os.environ.get("APRESSURE_URL", "redis://127.0.0.1:6379/0")
BOUND = int(os.environ.get("ORDERS_BOUND", "100"))


@dataclass
class Order:
    number: int


@dataclass
class Invoice:
    order: int
    worker: int


def orders_queue() -> AsyncQueue[Order]:
    return AsyncQueue("orders", url=URL, codec=Order, max_attempts=5)


@functools.cache
def orders() -> BlockingQueue[Order]:
    """Return the open queue of this process. Its first request opens it: a server forks its processes before that."""
    queue = Queue(orders_queue()).open()
    queue.create(bound=BOUND, exist_ok=True)
    return queue


app = Flask(__name__)


@app.post("/orders")
def take() -> Response:
    """Answer 202 when the order is in the queue, or 503 when the queue stays full or the server is down."""
    number = (request.get_json(silent=True) or {}).get("number")
    if not isinstance(number, int):
        return Response("an order has a number", 422)
    try:
        orders().put(Order(number), timeout=0.5, deadline=5)
    except (TimeoutError, ConnectionError) as error:  # full, in use, or out of reach
        app.logger.warning("refused an order: %s", error)  # the error names the server: it is not for clients
        return Response("try again later", 503, {"Retry-After": "1"})
    return Response(status=202)


@app.cli.command("handle-orders")
def handle_orders() -> None:
    """Handle orders in four threads, until SIGTERM or Ctrl-C."""
    with Queue(AsyncQueue("invoices", url=URL, codec=Invoice)) as invoices:
        invoices.create(exist_ok=True)

        def handle(order: Order) -> None:
            with app.app_context():
                invoices.put(Invoice(order.number, os.getpid()))

        print(serve(handle, orders_queue(), concurrency=4, create=True, bound=BOUND, shutdown_timeout=20))
