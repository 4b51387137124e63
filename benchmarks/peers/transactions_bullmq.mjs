// A BullMQ worker or producer for benchmarks/transactions.py: `node … worker|producer PORT`.
// A job carries how many jobs there are; the worker writes `done` to the file
// PEER_DONE when it has seen that many.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Queue, Worker } from "bullmq";

const [role, port] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const CHUNK = 100;

if (role === "worker") {
  let seen = 0;
  const worker = new Worker("one", async () => ({ ok: true }), { connection, concurrency: 100 });
  worker.on("completed", (job) => {
    seen += 1;
    if (seen === job.data.total) {
      seen = 0;
      appendFileSync(process.env.PEER_DONE, "done\n");
    }
  });
  await worker.waitUntilReady();
  console.log("ready");
} else {
  const queue = new Queue("one", { connection });
  await queue.waitUntilReady();
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const total = Number(line);
    for (let made = 0; made < total; made += CHUNK) {
      const count = Math.min(CHUNK, total - made);
      await queue.addBulk(Array.from({ length: count }, () => ({ name: "job", data: { total } })));
    }
  }
}
