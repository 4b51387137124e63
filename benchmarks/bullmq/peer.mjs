// BullMQ as a user would run it: one producer and one worker, each a process of its own.
//   node peer.mjs producer|worker PORT ORDERS DONE
// The producer waits on the list ORDERS for «how many», and adds so many jobs with addBulk. The
// worker runs 100 at a time, completed jobs are removed, and the number of them is kept in DONE.
import { Queue, Worker } from 'bullmq';
import Redis from 'ioredis';

const [role, port, orders, done] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const NAME = 'benchmark';
const BULK = 1000;
const TEXT = 'x'.repeat(40);
const ready = () => console.log(JSON.stringify({ role: `bullmq ${role}`, ready: true }));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function produce() {
  const client = new Redis(connection);
  const queue = new Queue(NAME, { connection });
  await queue.waitUntilReady();
  ready();
  let published = 0;
  for (;;) {
    const order = await client.lpop(orders);
    if (order === null) {
      await pause(10);
      continue;
    }
    const last = published + Number(order);
    while (published < last) {
      const jobs = [];
      for (; jobs.length < BULK && published < last; published += 1) {
        const data = { number: published, text: TEXT };
        jobs.push({ name: 'message', data, opts: { removeOnComplete: true } });
      }
      await queue.addBulk(jobs);
    }
  }
}

async function work() {
  const client = new Redis(connection);
  let completed = 0;
  let told = 0;
  const worker = new Worker(NAME, async (job) => job.data, { connection, concurrency: 100 });
  worker.on('completed', () => {
    completed += 1;
  });
  await worker.waitUntilReady();
  ready();
  for (;;) {
    if (completed !== told) {
      told = completed;
      await client.set(done, told);
    }
    await pause(10);
  }
}

await (role === 'producer' ? produce() : work());
