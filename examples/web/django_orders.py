"""Django: take orders over HTTP, put them into a bounded queue, and handle them in processes beside.

    pip install apressure django
    python examples/web/django_orders.py migrate
    python examples/web/django_orders.py runserver
    python examples/web/django_orders.py handle_orders

APRESSURE_URL names the server. This is a whole project in one file: in yours, the command is
`management/commands/handle_orders.py`, and the rest is in `views.py`, `urls.py` and `settings.py`.
"""

import functools
import json
import logging
import os
import sys
from dataclasses import dataclass

import django
from django.conf import settings
from django.core.management import call_command, execute_from_command_line
from django.core.management.base import BaseCommand
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from apressure import AsyncQueue
from apressure.sync import BlockingQueue, Queue, serve

URL = os.environ.get("APRESSURE_URL", "redis://127.0.0.1:6379/0")
BOUND = int(os.environ.get("ORDERS_BOUND", "100"))

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.db")}},
    DEBUG=False,
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SHOP_SECRET_KEY", "of an example"),
    WSGI_APPLICATION=f"{__name__}.application",
)
django.setup()
logger = logging.getLogger("orders")


@dataclass
class Order:
    number: int


def orders_queue() -> AsyncQueue[Order]:
    return AsyncQueue("orders", url=URL, codec=Order, max_attempts=5)


@functools.cache
def orders() -> BlockingQueue[Order]:
    """Return the open queue of this process. Its first request opens it: a server forks its processes before that."""
    queue = Queue(orders_queue()).open()
    queue.create(bound=BOUND, exist_ok=True)
    return queue


@csrf_exempt
@require_POST
def take(request: HttpRequest) -> HttpResponse:
    """Answer 202 when the order is in the queue, or 503 when the queue stays full or the server is down."""
    try:
        order = Order(int(json.loads(request.body)["number"]))
    except (ValueError, TypeError, KeyError):
        return HttpResponse("an order has a number", status=422)
    try:
        orders().put(order, timeout=0.5, deadline=5)
    except (TimeoutError, ConnectionError) as error:  # full, in use, or out of reach
        logger.warning("refused an order: %s", error)  # the error names the server: it is not for clients
        return HttpResponse("try again later", status=503, headers={"Retry-After": "1"})
    return HttpResponse(status=202)


def bill(order: Order) -> None:
    """Write an invoice. An order that comes twice has one invoice."""
    close_old_connections()  # a request does this by itself, a thread of a worker does not
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT OR IGNORE INTO invoices VALUES (%s, %s)", [order.number, os.getpid()])
    finally:
        close_old_connections()


class Command(BaseCommand):
    help = "Handle orders in four threads, until SIGTERM or Ctrl-C."

    def handle(self, *args: object, **options: object) -> None:
        served = serve(bill, orders_queue(), concurrency=4, create=True, bound=BOUND, shutdown_timeout=20)
        self.stdout.write(str(served))


class Migrate(BaseCommand):
    help = "Make the table of invoices. A project of yours has models and migrations."

    def handle(self, *args: object, **options: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS invoices (number INTEGER PRIMARY KEY, worker INTEGER)")


urlpatterns = [path("orders", take)]
application = get_wsgi_application()

if __name__ == "__main__":
    own = {"handle_orders": Command, "migrate": Migrate}
    if len(sys.argv) == 2 and (command := own.get(sys.argv[1])):
        call_command(command())
    else:
        execute_from_command_line([sys.argv[0], *sys.argv[1:], "--noreload"])
