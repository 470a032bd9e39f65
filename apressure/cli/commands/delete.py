"""`apressure delete`: deletes a queue."""

from __future__ import annotations

from apressure.cli.asking import command_for, told
from apressure.cli.commands.dead import count, letters_of
from apressure.cli.options import Address, Common, Timeout, complain
from apressure.cli.show import answer
from apressure.exceptions import PressureError


async def delete(common: Common, queue: Address, timeout: Timeout = None) -> None:
    """Delete a queue with all its items, and the results of its tasks. Clients that wait for the queue get an error.

    Dead letters of an AsyncQueue or a directory are in another queue, and stay: standard error says so.
    """
    address = common.read(queue)
    letters, left = letters_of(address), 0
    async with common.finder() as finder, finder.open(address) as opened:
        await opened.delete(timeout)
        if letters is not None:
            try:
                left = await count(finder, opened, address)
            except PressureError:  # the queue is deleted all the same
                left = 0
    result = told(address, deleted=True, **({"dead_letters": left} if left else {}))
    answer(result, f"deleted {address}", as_json=common.json)
    if letters is not None and left and not common.json:
        what = "1 dead letter" if left == 1 else f"{left:,} dead letters"
        complain(f"apressure: {letters} keeps {what}: `{command_for('delete', letters)}` deletes that queue")
