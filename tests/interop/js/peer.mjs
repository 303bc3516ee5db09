// A member of a space written from the published contract alone, over the stock NATS JavaScript client.
//
// It takes one JSON command a line on stdin and answers each with one JSON line {"done": ..., ...}; what it surfaces
// comes as {"event": "message", ...}, what it refuses as {"event": "refused", ...}. Nothing here knows Sidecar.

import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { randomUUID, randomBytes } from "node:crypto";
import { connect, credsAuthenticator, headers as newHeaders } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";

const HEARTBEAT_MS = 2000;
const OWNER = /^(local|u_[a-z2-7]{26})$/;
const TOKEN = /^[A-Za-z0-9_]+$/;
const KINDS = { chat: "channel", inst: "dm", svc: "anycast" };
const ROUTING = { channel: "channel", dm: "to", anycast: "toService" };
const PROVENANCE = new Set(["nats-stream", "nats-subject", "nats-sequence", "nats-time-stamp"]);
const decoder = new TextDecoder("utf-8", { fatal: true });

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

/** A delivery subject taken apart, or null (sections 3 and 12). */
function split(subject) {
  const tokens = subject.split(".");
  if (tokens[0] !== "cotal" || !(tokens[2] in KINDS) || tokens.some((token) => token === "")) return null;
  const kind = tokens[2];
  if (kind === "chat" && tokens.length < 6) return null;
  if (kind === "inst" && tokens.length !== 7) return null;
  if (kind === "svc" && tokens.length !== 6) return null;
  const at = { chat: 3, inst: 5, svc: 4 }[kind];
  const rest = { chat: tokens.slice(5), inst: tokens.slice(3, 5), svc: [tokens[3]] }[kind].join(".");
  return { kind: KINDS[kind], owner: tokens[at], actor: tokens[at + 1], rest };
}

/** The message, or the reason why it is not shown (section 5). */
function judge(subject, data) {
  const delivery = split(subject);
  if (!delivery || !OWNER.test(delivery.owner) || !TOKEN.test(delivery.actor)) return { reason: "malformed-subject" };
  let message;
  try {
    message = JSON.parse(decoder.decode(data));
  } catch {
    return { reason: "malformed-json" };
  }
  const sender = `${delivery.owner}.${delivery.actor}`;
  if (message?.from?.id !== sender) return { reason: "sender-mismatch" };
  if (typeof message.id !== "string" || !Array.isArray(message.parts)) return { reason: "malformed-envelope" };
  return { message, delivery, sender };
}

class Peer {
  constructor(nc, options) {
    this.nc = nc;
    this.js = jetstream(nc);
    this.space = options.space;
    this.owner = options.owner;
    this.actor = options.actor;
    this.uid = options.uid;
    this.seen = new Set();
    this.channels = new Map();
  }

  get id() {
    return `${this.owner}.${this.actor}`;
  }

  static async open(options) {
    const creds = readFileSync(options.creds);
    const jwt = /-----BEGIN NATS USER JWT-----\s+(\S+)/.exec(creds.toString())[1];
    const nkey = JSON.parse(Buffer.from(jwt.split(".")[1], "base64url")).sub;
    const nc = await connect({
      servers: options.url,
      authenticator: credsAuthenticator(new Uint8Array(creds)),
      inboxPrefix: `_INBOX_${nkey}`,
    });
    const peer = new Peer(nc, options);
    (async () => {
      for await (const status of nc.status()) if (status.type === "error") say({ event: "fault", text: `${status.error}` });
    })();
    return peer;
  }

  // ---- presence ----

  async announce(name) {
    const key = `$KV.cotal_presence_${this.space}.${this.id}`;
    const since = Date.now();
    const put = async () => {
      const card = { id: this.id, name, kind: "agent", owner: this.owner, actor: this.actor, protocolVersion: "0.4" };
      const record = { card, status: "idle", ts: Date.now(), statusSince: since, lifecycleUid: this.uid };
      await this.js.publish(key, JSON.stringify(record));
    };
    await put();
    this.beat = setInterval(() => put().catch((error) => say({ event: "fault", text: `${error}` })), HEARTBEAT_MS);
  }

  /** The roster by one batched Direct Get, without a consumer (section 6). */
  async roster() {
    const stream = `KV_cotal_presence_${this.space}`;
    const inbox = `${this.nc.options.inboxPrefix}.${randomUUID().replaceAll("-", "")}`;
    const subscription = this.nc.subscribe(inbox);
    const body = { multi_last: [`$KV.cotal_presence_${this.space}.>`], batch: 256 };
    this.nc.publish(`$JS.API.DIRECT.GET.${stream}`, JSON.stringify(body), { reply: inbox });
    const found = {};
    for await (const frame of subscription) {
      if (frame.headers?.code) break; // 204: everything was sent; 404: nobody is here
      if (frame.headers?.get("KV-Operation")) continue;
      const record = JSON.parse(decoder.decode(frame.data));
      if (frame.headers?.get("Nats-Subject").endsWith(`.${record.card.id}`)) found[record.card.id] = record;
    }
    subscription.unsubscribe();
    return found;
  }

  // ---- sending ----

  envelope(target, text) {
    const id = randomUUID();
    const from = { id: this.id, name: this.actor };
    return { id, ts: Date.now(), space: this.space, from, ...target, parts: [{ kind: "text", text }] };
  }

  async send(subject, message) {
    const ack = await this.js.publish(subject, JSON.stringify(message), { msgID: message.id });
    return { id: message.id, sequence: ack.seq };
  }

  post(channel, text) {
    const subject = `cotal.${this.space}.chat.${this.id}.${channel}`;
    return this.send(subject, this.envelope({ channel }, text));
  }

  tell(to, text) {
    return this.send(`cotal.${this.space}.inst.${to}.${this.id}`, this.envelope({ to }, text));
  }

  ask(role, text) {
    return this.send(`cotal.${this.space}.svc.${role}.${this.id}`, this.envelope({ toService: role }, text));
  }

  // ---- receiving ----

  /** Shows one copy; true when it may be acked, false when it is to be terminated. */
  surface(subject, frame, historical, live) {
    const names = [...(frame.headers?.keys() ?? [])];
    if (live && names.some((name) => PROVENANCE.has(name.toLowerCase()))) {
      say({ event: "refused", subject, reason: "redirected" });
      return false;
    }
    const { message, delivery, sender, reason } = judge(subject, frame.data);
    if (reason) {
      say({ event: "refused", subject, reason });
      return false;
    }
    if (message.id !== "" && this.seen.has(message.id)) return true;
    this.seen.add(message.id);
    const mismatched = message[ROUTING[delivery.kind]] !== delivery.rest;
    say({ event: "message", kind: delivery.kind, target: delivery.rest, sender, historical, mismatched, message });
    return true;
  }

  async api(subject, body) {
    const reply = await this.nc.request(subject, body ? JSON.stringify(body) : "", { timeout: 5000 });
    const answer = JSON.parse(decoder.decode(reply.data));
    if (answer.error) throw new Error(answer.error.description);
    return answer;
  }

  /** Section 7: the frontier, then the subscription, then the retained messages up to the frontier. */
  async join(channel) {
    const stream = `CHAT_${this.space}`;
    const watermark = (await this.api(`$JS.API.STREAM.INFO.${stream}`)).state.last_seq;
    const filter = `cotal.${this.space}.chat.*.*.${channel}`;
    const subscription = this.nc.subscribe(filter, {
      callback: (error, frame) => (error ? say({ event: "fault", text: `${error}` }) : this.surface(frame.subject, frame, false, true)),
    });
    await this.nc.flush();
    this.channels.set(channel, subscription);
    if (watermark > 0 && !/[*>]/.test(channel)) await this.backfill(stream, filter, watermark);
    return { watermark };
  }

  async backfill(stream, filter, watermark) {
    const name = `chathist_${this.owner}-${this.actor}-${this.uid}`;
    const config = { name, filter_subject: filter, ack_policy: "none", deliver_policy: "all", inactive_threshold: 30e9 };
    await this.api(`$JS.API.CONSUMER.CREATE.${stream}.${name}.${filter}`, { stream_name: stream, config });
    try {
      for (let more = true; more; ) more = await this.page(stream, name, watermark);
    } finally {
      await this.api(`$JS.API.CONSUMER.DELETE.${stream}.${name}`);
    }
  }

  async page(stream, name, watermark) {
    const inbox = `${this.nc.options.inboxPrefix}.${randomUUID().replaceAll("-", "")}`;
    const subscription = this.nc.subscribe(inbox);
    this.nc.publish(`$JS.API.CONSUMER.MSG.NEXT.${stream}.${name}`, JSON.stringify({ batch: 64, no_wait: true }), { reply: inbox });
    let count = 0;
    try {
      for await (const frame of subscription) {
        if (frame.headers?.code) return false;
        const sequence = Number(frame.reply.split(".").at(-4));
        if (sequence > watermark) return false;
        this.surface(frame.subject, frame, true, false);
        if (++count === 64) return true;
      }
    } finally {
      subscription.unsubscribe();
    }
    return false;
  }

  /** Direct messages: bind the durable that exists, ack what was shown, terminate what never can be (section 8). */
  async inbox() {
    const consumer = await this.js.consumers.get(`DM_${this.space}`, `dm_${this.owner}-${this.actor}-${this.uid}`);
    const messages = await consumer.consume({ max_messages: 16 });
    (async () => {
      for await (const copy of messages) this.surface(copy.subject, copy, false, true) ? copy.ack() : copy.term();
    })();
  }

  /** Requests to a role: each is taken before it is shown (section 8.1). */
  async serve(role) {
    const stream = `TASK_${this.space}`;
    this.epoch = (await this.api(`$JS.API.STREAM.INFO.${stream}`)).created;
    const take = `cotal.${this.space}.take.${role}.${this.id}`;
    const waiting = new Map();
    this.nc.subscribe(`${take}.>`, { callback: (_error, frame) => waiting.get(frame.subject)?.(frame) });
    const consumer = await this.js.consumers.get(stream, `svc_${role}`);
    const messages = await consumer.consume({ max_messages: 4 });
    (async () => {
      for await (const copy of messages) await this.taken(take, waiting, copy);
    })();
  }

  async taken(take, waiting, copy) {
    const { message, reason } = judge(copy.subject, copy.data);
    if (reason) return copy.term();
    copy.working();
    const reply = `${take}.reply.${randomBytes(18).toString("base64url")}`;
    const body = { from: { id: this.id, name: this.actor }, seq: copy.seq, id: message.id, count: copy.info.deliveryCount, epoch: this.epoch };
    const answered = new Promise((resolve) => {
      waiting.set(reply, resolve);
      setTimeout(() => resolve(null), 5000);
    });
    this.nc.publish(take, JSON.stringify(body), { reply });
    const frame = await answered;
    waiting.delete(reply);
    const answer = frame && !frame.headers?.code ? JSON.parse(decoder.decode(frame.data)) : { ok: false, code: "no-answer" };
    if (!answer.ok) return say({ event: "not-taken", id: message.id, code: answer.code });
    this.surface(copy.subject, copy, false, true) ? copy.ack() : copy.term();
  }

  async leave(channel) {
    this.channels.get(channel)?.unsubscribe();
    this.channels.delete(channel);
    await this.nc.flush();
  }

  /** Any bytes on any subject: to find out what the broker lets this member do. */
  async publish(subject, data, headers) {
    const carried = newHeaders();
    for (const [name, value] of Object.entries(headers ?? {})) carried.set(name, value);
    this.nc.publish(subject, data, { headers: carried });
    await this.nc.flush();
  }

  async close() {
    clearInterval(this.beat);
    await this.nc.close();
  }
}

const ACTIONS = {
  announce: (peer, { name }) => peer.announce(name),
  roster: (peer) => peer.roster(),
  post: (peer, { channel, text }) => peer.post(channel, text),
  tell: (peer, { to, text }) => peer.tell(to, text),
  ask: (peer, { role, text }) => peer.ask(role, text),
  join: (peer, { channel }) => peer.join(channel),
  leave: (peer, { channel }) => peer.leave(channel),
  inbox: (peer) => peer.inbox(),
  serve: (peer, { role }) => peer.serve(role),
  publish: (peer, { subject, data, headers }) => peer.publish(subject, data, headers),
};

let peer = null;
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  try {
    if (command.do === "connect") peer = await Peer.open(command);
    const result = command.do === "connect" ? { id: peer.id } : await ACTIONS[command.do](peer, command);
    say({ done: command.do, result: result ?? null });
  } catch (error) {
    say({ done: command.do, error: `${error}` });
  }
}
await peer?.close();
process.exit(0);
