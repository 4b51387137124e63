#!/usr/bin/env node
// A worker in Node (18 or newer), without packages, written from docs/protocols/dispatch.md alone.
//
//   node worker.mjs --redis redis://127.0.0.1:6379 --port 9100
//
// It registers itself, or with --no-register is listed in ANGARIUM_DISPATCH__CONSUMERS. Its results
// are delivered at least once: it stores them by itself and acknowledges afterwards.

import crypto from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import tls from "node:tls";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    redis: { type: "string", default: "redis://127.0.0.1:6379" },
    prefix: { type: "string", default: "" },
    partitions: { type: "string", default: "1" },
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "0" },
    address: { type: "string" }, // where dispatchers reach us, when it is not host:port
    window: { type: "string", default: "200" },
    token: { type: "string", default: "" },
    ack: { type: "string" }, // host:port of an ACK port to use instead of the link
    cert: { type: "string" },
    key: { type: "string" },
    ca: { type: "string" },
    "no-register": { type: "boolean", default: false },
  },
});
const partitions = Number(options.partitions);
const log = (text) => process.stderr.write(`${text}\n`);

// What this worker does with a message ---------------------------------------------------------

function work(message) {
  if (message === null || typeof message !== "object" || Array.isArray(message)) {
    throw new Error("a message is a JSON object here");
  }
  if (message.fail) throw new Error(String(message.fail));
  return { ...message, worker: "node" };
}

// Redis: commands out as arrays of bulk strings, replies in as they come -------------------------

class Redis {
  constructor(url) {
    this.url = new URL(url);
    this.waiting = [];
    this.socket = null;
    this.rest = Buffer.alloc(0);
  }

  call(...command) {
    if (this.socket === null) this.connect();
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      this.socket.write(encodeCommand(command));
    });
  }

  connect() {
    const { hostname, port, username, password, pathname } = this.url;
    const socket = (this.socket = net.connect(Number(port || 6379), hostname));
    socket.setNoDelay(true);
    socket.on("data", (data) => this.socket === socket && this.received(data));
    socket.on("error", (error) => log(`redis: ${error.message}`));
    socket.on("close", () => this.socket === socket && this.lost());
    const quietly = (call) => call.catch((error) => log(`redis: ${error.message}`));
    if (password) quietly(this.call("AUTH", decodeURIComponent(username) || "default", decodeURIComponent(password)));
    if (pathname.length > 1) quietly(this.call("SELECT", pathname.slice(1)));
  }

  lost() {
    const waiting = this.waiting;
    this.socket = null;
    this.waiting = [];
    this.rest = Buffer.alloc(0);
    for (const each of waiting) each.reject(new Error("the connection to Redis ended"));
  }

  received(data) {
    this.rest = this.rest.length ? Buffer.concat([this.rest, data]) : data;
    for (let reply; (reply = decodeReply(this.rest, 0)) !== null; ) {
      this.rest = this.rest.subarray(reply.end);
      const { resolve, reject } = this.waiting.shift();
      if (reply.value instanceof Error) reject(reply.value);
      else resolve(reply.value);
    }
  }
}

function encodeCommand(command) {
  const parts = [Buffer.from(`*${command.length}\r\n`)];
  for (const each of command) {
    const bytes = Buffer.isBuffer(each) ? each : Buffer.from(String(each));
    parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n"));
  }
  return Buffer.concat(parts);
}

function decodeReply(data, at) {
  const eol = data.indexOf("\r\n", at);
  if (eol < 0) return null;
  const line = data.toString("utf8", at + 1, eol);
  const end = eol + 2;
  switch (String.fromCharCode(data[at])) {
    case "+": return { value: line, end };
    case "-": return { value: new Error(line), end };
    case ":": return { value: Number(line), end };
    case "$": {
      const size = Number(line);
      if (size < 0) return { value: null, end };
      if (data.length < end + size + 2) return null;
      return { value: data.toString("utf8", end, end + size), end: end + size + 2 };
    }
    case "*": {
      const items = [];
      let next = end;
      for (let i = 0; i < Number(line); i++) {
        const item = decodeReply(data, next);
        if (item === null) return null;
        items.push(item.value);
        next = item.end;
      }
      return { value: items, end: next };
    }
    default: throw new Error(`not a reply of Redis: ${line}`);
  }
}

const redis = new Redis(options.redis);

// Frames -----------------------------------------------------------------------------------------

const VERSION = 1;
const PROCESS_MESSAGE = 0, ACK_MESSAGE = 1, NACK_MESSAGE = 2, HELLO = 3, HEARTBEAT = 4, ERROR = 5, PROOF = 6;
const FRAME_BYTES_MAX = 1024 * 1024;
const UNTRUSTED_BYTES_MAX = 8192; // before the dispatcher has proved that it knows the token
const HANDSHAKE_MS = 10_000;

function frame(command, payload = "") {
  const body = Buffer.from(payload);
  const head = Buffer.alloc(6);
  head.writeUInt8(VERSION, 0);
  head.writeUInt8(command, 1);
  head.writeUInt32BE(body.length, 2);
  return Buffer.concat([head, body]);
}

/** Calls `take(command, payload)` for each whole frame, however the bytes were cut. */
function frameReader(bytesMax, take) {
  let parts = [], size = 0, wanted = 6;
  return (data) => {
    parts.push(data);
    size += data.length;
    if (size < wanted) return;
    let rest = parts.length === 1 ? data : Buffer.concat(parts);
    for (wanted = 6; rest.length >= 6; wanted = 6) {
      if (rest[0] !== VERSION) throw new Error(`version_unknown: a frame of version ${rest[0]}`);
      const length = rest.readUInt32BE(2);
      if (length > bytesMax()) throw new Error(`frame_too_large: a frame of ${length} bytes`);
      wanted = 6 + length;
      if (rest.length < wanted) break;
      take(rest[1], rest.subarray(6, wanted));
      rest = rest.subarray(wanted);
    }
    parts = rest.length ? [rest] : [];
    size = rest.length;
  };
}

// The handshake: HELLO, and where a token is set, proofs that both sides know it -------------------

/** On one connection: at our own port, where we listen, or to an ACK port, which we dial. */
class Handshake {
  constructor(port) {
    this.port = port; // "worker-port" or "ack-port"
    this.dials = port === "ack-port";
    const says = { consumer_id: address, window: Number(options.window) };
    if (options.token) says.nonce = crypto.randomBytes(32).toString("hex");
    this.hello = frame(HELLO, JSON.stringify(says));
    this.other = null; // the dispatcher's HELLO, as a whole frame
    this.trusted = options.token === "";
  }

  bytesMax() {
    return this.trusted ? FRAME_BYTES_MAX : UNTRUSTED_BYTES_MAX;
  }

  /** What to answer to a HELLO or PROOF, if anything. */
  take(command, payload) {
    if (command === HELLO) {
      const { nonce = "" } = JSON.parse(payload.toString());
      if (!options.token && nonce) throw new Error("token_refused: a proof of dispatch.token is asked for, and we have none");
      if (this.trusted) return "";
      if (this.other || nonce.length < 32) throw new Error("token_refused: one HELLO with a nonce must come; is dispatch.token set?");
      this.other = frame(HELLO, payload);
      return this.dials ? frame(PROOF, this.proof("worker")) : "";
    }
    if (this.trusted || !this.other) throw new Error("frame_misplaced: PROOF is not expected");
    const right = this.proof("dispatcher");
    if (payload.length !== right.length || !crypto.timingSafeEqual(payload, right)) {
      throw new Error("token_refused: the proof is wrong; dispatch.token differs");
    }
    this.trusted = true;
    return this.dials ? "" : frame(PROOF, this.proof("worker"));
  }

  proof(role) {
    const [listener, dialler] = this.dials ? [this.other, this.hello] : [this.hello, this.other];
    const hmac = crypto.createHmac("sha256", options.token);
    return hmac.update(`angarium-dispatch ${this.port} ${role}\0`).update(listener).update(dialler).digest();
  }
}

// Messages ---------------------------------------------------------------------------------------

const stored = new Map(); // id → when its result was stored; one that comes again is only acknowledged
const inHand = new Map(); // id → the link it came on last
let stopping = false;

function streamOf(id) {
  if (partitions === 1) return `${options.prefix}messages:processed`;
  return `{p${parseInt(id.slice(-4), 16) % partitions}}:${options.prefix}messages:processed`;
}

async function received(link, payload) {
  const id = payload.toString("latin1", 0, 36);
  if (stopping) return link.send(frame(NACK_MESSAGE, `${id}:`));
  if (stored.has(id)) return acknowledge(link, id);
  if (inHand.has(id)) return void inHand.set(id, link);
  inHand.set(id, link);
  try {
    const result = work(JSON.parse(payload.toString("utf8", 37)));
    const fields = [];
    for (const [name, value] of Object.entries(result ?? {})) {
      fields.push(name === "message_id" || name === "consumer_id" ? `result_${name}` : name);
      fields.push(typeof value === "string" ? value : JSON.stringify(value));
    }
    await redis.call("XADD", streamOf(id), "*", "message_id", id, "consumer_id", address, ...fields);
    stored.set(id, Date.now());
    acknowledge(inHand.get(id), id);
  } catch (error) {
    inHand.get(id).send(frame(NACK_MESSAGE, `${id}:${error.message.slice(0, 300)}`));
  } finally {
    inHand.delete(id);
  }
}

function acknowledge(link, id) {
  if (options.ack) ackPort().acknowledge(frame(ACK_MESSAGE, id));
  else link.send(frame(ACK_MESSAGE, id));
}

setInterval(() => {
  for (const [id, at] of stored) {
    if (Date.now() - at < 60_000) break;
    stored.delete(id);
  }
}, 1_000).unref();

// Links: connections that dispatchers opened ------------------------------------------------------

/** A socket with its handshake. Refuses, with an ERROR, what breaks the protocol or comes too late. */
class Connection {
  constructor(socket, port) {
    this.socket = socket;
    this.port = port;
    this.handshake = new Handshake(port);
    const read = frameReader(() => this.handshake.bytesMax(), (command, payload) => this.take(command, payload));
    const late = setTimeout(() => {
      if (!this.handshake.trusted) this.refuse(new Error("token_refused: no proof of dispatch.token in time"));
    }, HANDSHAKE_MS);
    socket.setNoDelay(true);
    socket.on("data", (data) => {
      try {
        read(data);
      } catch (error) {
        this.refuse(error);
      }
    });
    socket.on("error", (error) => log(`${port}: ${error.message}`));
    socket.on("close", () => clearTimeout(late));
    this.send(this.handshake.hello);
  }

  refuse(error) {
    log(`${this.port}: ${error.message}`);
    this.socket.removeAllListeners("data").resume(); // nothing behind it can be trusted
    this.socket.end(frame(ERROR, error.message));
  }

  send(bytes) {
    if (bytes.length > 0 && this.socket.writable) this.socket.write(bytes);
  }

  take(command, payload) {
    if (command === HELLO || command === PROOF) {
      this.send(this.handshake.take(command, payload));
    } else if (command === ERROR) {
      log(`dispatcher: ${payload}`);
    } else if (command === HEARTBEAT) {
      this.send(frame(HEARTBEAT));
    } else if (!this.handshake.trusted) {
      throw new Error("token_refused: a proof of dispatch.token must come first");
    } else if (command === PROCESS_MESSAGE && this.port === "worker-port") {
      received(this, payload);
    } // Anything else is skipped: NACK_MESSAGE only says that an acknowledgement came too late.
  }
}

class AckPort extends Connection {
  waiting = []; // until the dispatcher has proved itself

  acknowledge(bytes) {
    if (this.handshake.trusted) this.send(bytes);
    else this.waiting.push(bytes);
  }

  take(command, payload) {
    super.take(command, payload);
    if (this.handshake.trusted) for (const bytes of this.waiting.splice(0)) this.send(bytes);
  }
}

let atPort = null; // the connection to an ACK port, opened when it is needed

function ackPort() {
  if (atPort === null || !atPort.socket.writable) {
    const [, host, port] = options.ack.match(/^\[?(.*?)\]?:(\d+)$/);
    const own = options.cert ? { cert: fs.readFileSync(options.cert), key: fs.readFileSync(options.key) } : {};
    const ca = options.ca && fs.readFileSync(options.ca);
    const socket = ca ? tls.connect({ host, port, ca, ...own }) : net.connect(Number(port), host);
    atPort = new AckPort(socket, "ack-port");
  }
  return atPort;
}

// Being found ------------------------------------------------------------------------------------

const tag = partitions === 1 ? options.prefix : `{p0}:${options.prefix}`;
const list = `${tag}consumer:ids`, seen = `${tag}consumer:ids:seen`;

async function sayAlive(joining) {
  const [seconds, microseconds] = await redis.call("TIME");
  const now = Number(seconds) * 1000 + Math.floor(Number(microseconds) / 1000);
  const added = await redis.call("ZADD", seen, now, address);
  if (joining || added === 1) {
    await redis.call("LREM", list, 0, address);
    await redis.call("RPUSH", list, address);
  }
}

// Life -------------------------------------------------------------------------------------------

const links = new Set();
const accept = (socket) => {
  const link = new Connection(socket, "worker-port");
  links.add(link);
  socket.on("close", () => links.delete(link));
};
const secured = options.cert && {
  cert: fs.readFileSync(options.cert),
  key: fs.readFileSync(options.key),
  ...(options.ca && { ca: fs.readFileSync(options.ca), requestCert: true, rejectUnauthorized: true }),
};
const server = secured ? tls.createServer(secured, accept) : net.createServer(accept);
server.on("tlsClientError", (error) => log(`tls: ${error.message}`));
let address = options.address;
let alive = null;

server.listen(Number(options.port), options.host, async () => {
  const { port } = server.address();
  address ??= options.host.includes(":") ? `[${options.host}]:${port}` : `${options.host}:${port}`;
  if (!options["no-register"]) {
    await sayAlive(true);
    alive = setInterval(() => sayAlive(false).catch((error) => log(`alive: ${error.message}`)), 1_000);
  }
  console.log(JSON.stringify({ role: "node-worker", ready: true, ports: { worker: port } }));
});

async function stop() {
  if (stopping) return;
  stopping = true; // from now on messages are given back
  server.close();
  clearInterval(alive);
  if (!options["no-register"]) {
    await redis.call("LREM", list, 0, address);
    await redis.call("ZREM", seen, address);
  }
  while (inHand.size > 0) await new Promise((resolve) => setTimeout(resolve, 10));
  for (const link of links) link.socket.end();
  atPort?.socket.end();
  redis.socket?.end();
  setTimeout(() => process.exit(0), 1_000).unref();
}
process.on("SIGTERM", stop);
process.on("SIGINT", stop);
