"""Move rows from a feeder through a bounded queue to Spark, Parquet and a chart, as `apressure pipeline` does.

Needs the extra `pipeline` and Java 17. Kill any part at any time and start it again: it continues where it was. To
make it your own, change the rows of `flights`, the query of `delays`, and the output of `write`.

python pipeline.py [FOLDER [ROWS]]
"""

import asyncio
import multiprocessing
import sys
from pathlib import Path

from apressure import AsyncQueue
from apressure.demo import flights, pipeline
from apressure.embedded import EmbeddedServer
from apressure.spark import feed, session, sweep


async def feed_flights(url: str, rows: int) -> None:
    async with AsyncQueue("flights", url=url, codec="json") as queue:
        await feed(queue, flights.flights(rows))  # waits while Spark is behind


def run_feeder(url: str, rows: int) -> None:
    asyncio.run(feed_flights(url, rows))


async def create(url: str) -> None:
    async with AsyncQueue("flights", url=url) as queue:
        await queue.create(bound=5000, exist_ok=True)


def main(folder: Path, rows: int) -> None:
    with EmbeddedServer(directory=folder / "server", config={"appendfsync": "always"}) as server:
        asyncio.run(create(server.url))
        spawn = multiprocessing.get_context("spawn")
        feeder = spawn.Process(target=run_feeder, args=(server.url, rows), daemon=True)
        feeder.start()

        spark = session("delays of flights", configuration=pipeline.SESSION)
        stream = pipeline.read(spark, url=server.url, queue="flights")
        query = pipeline.write(pipeline.delays(stream), folder / "delays", folder / "checkpoint")
        query.awaitTermination()  # until the queue is closed and everything is processed
        sweep(spark, folder / "delays")
        spark.stop()
        feeder.join()

    delays = pipeline.table(folder / "delays")
    pipeline.chart(delays, folder / "delays.png")
    print(f"{delays['flights'].sum():,} flights in {len(delays):,} windows: {folder / 'delays.png'}")


if __name__ == "__main__":
    folder, rows = (*sys.argv[1:], *("delays-of-flights", "20000")[len(sys.argv) - 1 :])
    main(Path(folder), int(rows))
