"""Sell: customers send orders, and try again when the shop has too many."""

import json
from http.client import HTTPConnection


def order(shop: HTTPConnection, number: int, cents: int) -> int:
    """Send an order. Returns the status of the response."""
    body = json.dumps({"number": number, "cents": cents})
    shop.request("POST", "/orders", body, {"Content-Type": "application/json"})
    response = shop.getresponse()
    response.read()
    return response.status


def main() -> None:
    shop = HTTPConnection("127.0.0.1:8000", timeout=30)
    for number in range(100):
        cents = -1 if number == 13 else 100 * number  # one order is wrong
        while (status := order(shop, number, cents)) == 503:
            print("503, the customer tries again")
        assert status == 202


main()
