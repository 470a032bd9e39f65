"""Sell: this stands for the requests of a web application."""

import asyncio

from shop import Order, accept, invoices


async def main() -> None:
    async with invoices() as queue:
        for number in range(100):
            cents = -1 if number == 13 else 100 * number  # one order is wrong
            while await accept(queue, Order(number, cents)) == 503:
                print("503, the customer tries again")


asyncio.run(main())
