"""A pipeline of two stages: each item goes through exactly once, wherever a process dies.

Here both stages run in one process. In production each is a program of its own:

    asyncio.run(pipe(AsyncQueue("lines", url=URL), count, AsyncQueue("counts", url=URL), close=True))
"""

import asyncio

from apressure import AsyncQueue, Client, Many, pipe

TEXT = ["to be or not to be", "", "that is the question"]


async def split(line: str) -> Many[str] | None:
    return Many(line.split()) if line else None  # none, one or many results


async def measure(words: list[str]) -> list[str]:
    return [f"{word} has {len(word)} letters" for word in words]


async def main() -> None:
    async with Client("embedded://") as client:
        lines = AsyncQueue("lines", client=client, codec="text")
        words = AsyncQueue("words", client=client, codec="text")
        lengths = AsyncQueue("lengths", client=client, codec="text")
        for queue in (lines, words, lengths):
            await queue.create(bound=10)

        async with asyncio.TaskGroup() as stages:
            stages.create_task(pipe(lines, split, words, close=True, exactly_once=True))
            stages.create_task(pipe(words, measure, lengths, batch=5, close=True, exactly_once=True))
            async with lines.producer() as producer:  # its end closes the first queue, and each stage the next one
                await producer.put_many(TEXT)
            async for length in lengths:
                print(length)

        for queue in (lines, words, lengths):
            await queue.delete()


asyncio.run(main())
