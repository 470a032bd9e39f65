// BullMQ on Node: bullmq.cjs enqueue|consume URL COUNT [TERMS], as in measure.py.
"use strict";

const { Queue, Worker } = require("bullmq");

const NAME = "benchmark";
const PAYLOAD = "x".repeat(100);
const BULK = 1000;

const [what, url, argument, terms] = process.argv.slice(2);
const count = Number(argument);
const warmUp = Math.max(1, Math.floor(count / 5));
// By ioredis, BullMQ's own choice. node-redis enqueues as fast, and consumes more slowly.
const connection = { host: new URL(url).hostname, port: Number(new URL(url).port), maxRetriesPerRequest: null };

// The options of jobs and of workers, by the terms. Keys (groups) are in BullMQ Pro only.
const ids = { once: () => `order-${performance.now()}`, again: () => "order" };
const limits = { rate: { limiter: { max: 1_000_000, duration: 1000 } } };

async function enqueue() {
  const queue = new Queue(NAME, { connection, defaultJobOptions: { removeOnComplete: true } });
  const putOneByOne = async (many) => {
    for (let done = 0; done < many; done += 1) {
      const options = terms in ids ? { deduplication: { id: ids[terms]() } } : {};
      await queue.add("work", { payload: PAYLOAD }, options);
    }
  };
  const putInBulk = async (many) => {
    for (let done = 0; done < many; done += BULK) {
      const size = Math.min(BULK, many - done);
      await queue.addBulk(Array.from({ length: size }, () => ({ name: "work", data: { payload: PAYLOAD } })));
    }
  };
  const put = terms ? putOneByOne : putInBulk;
  await queue.waitUntilReady();
  await put(warmUp);
  const begin = performance.now();
  await put(count);
  return (count / (performance.now() - begin)) * 1000;
}

function consume() {
  return new Promise((resolve) => {
    let done = 0;
    let begin;
    const work = async () => {
      done += 1;
      if (done === warmUp) begin = performance.now();
      else if (done === warmUp + count) resolve((count / (performance.now() - begin)) * 1000);
    };
    // 10 jobs at a time are slower, 200 are no faster. Batches are in BullMQ Pro only, which is not free.
    new Worker(NAME, work, { connection, concurrency: terms ? 32 : 100, ...limits[terms] });
  });
}

(what === "enqueue" ? enqueue() : consume()).then((rate) => {
  const versions = { bullmq: require("bullmq/package.json").version, node: process.versions.node };
  console.log(JSON.stringify({ rate, versions }));
  process.exit(0);
});
