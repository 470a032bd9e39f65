// What ioredis does with an okq server. Arguments: port, password, version of RESP.
"use strict";
const assert = require("node:assert");
const { Redis } = require("ioredis");

const [port, password, protocol] = process.argv.slice(2);
const open = () => new Redis({ port: +port, password, protocol: +protocol, connectionName: "worker", retryStrategy: null });
const contents = Buffer.from([0, 255, 13, 10, 120]);

async function main() {
  const client = open();
  assert.strictEqual(await client.ping(), "PONG");
  assert.strictEqual(await client.client("GETNAME"), "worker");
  assert.match(await client.client("INFO"), new RegExp(`name=worker resp=${protocol}`));

  // Push and look.
  assert.strictEqual(await client.call("QLPUSH", "foo", "1", contents), "OK");
  assert.deepStrictEqual(await client.callBuffer("QLPEEK", "foo"), [Buffer.from("1"), contents]);
  await assert.rejects(client.call("QLPUSH", "foo", "1", "x"), /^ReplyError: ERR duplicate event 1$/);
  await assert.rejects(client.call("NOSUCH"), /ERR unknown command "NOSUCH"/);

  // Pipelines.
  const pushes = client.pipeline();
  for (let n = 2; n < 100; n++) pushes.call("QLPUSH", "foo", String(n), "x");
  for (const [error, reply] of await pushes.exec()) assert.deepStrictEqual([error, reply], [null, "OK"]);
  assert.deepStrictEqual(await client.call("QSTATUS", "foo"), [["foo", 99, 0, 0]]);

  // Pop, acknowledge, give back.
  assert.deepStrictEqual(await client.callBuffer("QRPOP", "foo", "EX", "30"), [Buffer.from("1"), contents]);
  assert.strictEqual(await client.call("QACK", "foo", "1", "REDO"), 1);
  const pops = await client.pipeline().call("QRPOP", "foo").call("QRPOP", "foo", "EX", "0").call("QINFO", "foo").exec();
  assert.deepStrictEqual(pops.map(([, reply]) => (Array.isArray(reply) ? reply[0] : reply)), [
    "1", "2", "foo  total: 98  processing: 1  consumers: 0",
  ]);
  assert.strictEqual(await client.call("QACK", "foo", "1"), 1);
  assert.strictEqual(await client.call("QACK", "foo", "1"), 0);
  assert.strictEqual(await client.call("QRPOP", "none"), null);

  // A consumer that waits, as the specification has it, and with one command.
  const consumer = open();
  assert.strictEqual(await consumer.call("QREGISTER", "bar"), "OK");
  const waiting = consumer.call("QNOTIFY", "60");
  assert.strictEqual(await client.call("QRPUSH", "bar", "a", "x"), "OK");
  assert.strictEqual(await waiting, "bar");
  assert.deepStrictEqual(await consumer.call("QRPOP", "bar", "EX", "0"), ["a", "x"]);
  const popped = consumer.call("QRPOP", "bar", "EX", "0", "WAIT", "60", "COUNT", "5");
  assert.strictEqual(await client.call("QLPUSH", "bar", "b", "y", "c", "z"), "OK");
  assert.deepStrictEqual((await popped)[0], ["b", "y"]);

  await Promise.all([consumer.quit(), client.quit()]);
  console.log("done");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
