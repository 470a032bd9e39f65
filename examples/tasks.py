"""Run long tasks on two nodes, watch their progress, wait for their results, and schedule one for later.

Each node could be a process on a machine of its own. `apressure tasks run` is such a node for commands.
"""

from __future__ import annotations

import asyncio
import os
import time

from apressure.exceptions import TaskFailedError
from apressure.tasks import Scheduler, TaskClient


async def node(client: TaskClient, name: str) -> None:
    """Encode videos until the queue is closed and empty."""
    async with client.listener("video.encode") as listener:
        async for task in listener:  # reserved for this node
            processor = client.processor(task)
            parameters = await processor.start(os.getpid())
            for second in range(parameters["seconds"]):
                await processor.progress(second / parameters["seconds"], f"second {second}")
                await asyncio.sleep(0.01)
            if parameters["seconds"] > 8:
                await processor.fail("the video is too long")
            else:
                await processor.complete({"frames": 25 * parameters["seconds"]})
            print(f"{name} has finished {parameters['file']}")


async def main() -> None:
    """Enqueue, and wait for the results."""
    async with TaskClient("embedded://") as client, asyncio.TaskGroup() as group:
        queue = client.queue("video.encode")
        ids = [await queue.enqueue({"file": f"{number}.mov", "seconds": number}) for number in range(5, 10)]
        ids.append(await queue.schedule({"file": "later.mov", "seconds": 3}, eta=time.time() + 0.2))
        scheduling = group.create_task(Scheduler(client).run())
        for name in ("one", "two"):
            group.create_task(node(client, name))
        for task_id in ids:
            task = await client.task(task_id)
            try:
                print(task.parameters["file"], await task.wait(timeout=60))
            except TaskFailedError as error:
                print(task.parameters["file"], "failed:", error)
        scheduling.cancel()
        await queue.close()


if __name__ == "__main__":
    asyncio.run(main())
