// A caller of endpoints written from the published contract alone, over the stock NATS JavaScript client.
//
// It takes one JSON command a line on stdin and answers each with one JSON line {"done": ..., ...}.

import { createHash, randomUUID } from "node:crypto";
import {
  closure, canonical, digest, newNonce, parse, readReply, replyFilter, replySubject, request, requestSubject, sentinel, splitRequest, verifiedCluster,
} from "./rails.mjs";
import { dial, serveLines } from "./lines.mjs";

const REGISTRY = "registry";
let nc, login, space, caller;
const contracts = new Map();

/** One request and everything that comes back under its nonce, until `enough` says so, nobody is there, or time is up. */
async function exchange(asked, body, ms, enough, give = {}) {
  const nonce = give.nonce ?? newNonce();
  const who = give.who ?? caller;
  const replies = [];
  let nobody = false;
  const subject = requestSubject(space, who, { ...asked, nonce });
  const none = sentinel(space, who, nonce);
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const subscription = nc.subscribe(replyFilter(space, who, nonce), {
    callback: (error, frame) => {
      if (error) return finish(`${error}`);
      if (frame.subject === none) {
        nobody = frame.headers?.code === 503;
        return finish();
      }
      const answering = replySubject(frame.subject);
      let reply;
      try {
        reply = readReply(frame.data, body.id);
      } catch (wrong) {
        reply = { invalid: `${wrong.message}` };
      }
      replies.push({ ...reply, ...answering });
      if (replies.length >= enough) finish();
    },
  });
  await nc.flush(); // the reply rail stands before the request leaves
  const refused = give.refused ?? [];
  const watching = watchRefusals(subject, (text) => (refused.push(text), finish()));
  nc.publish(subject, JSON.stringify(body), { reply: none });
  const timer = setTimeout(finish, ms);
  const broken = await finished;
  clearTimeout(timer);
  watching();
  subscription.unsubscribe();
  return { replies, nobody, subject, refused: refused[0] ?? broken ?? null, id: body.id };
}

const watchers = new Set();

function watchRefusals(subject, tell) {
  const watcher = (text) => text.includes(subject) && tell(text);
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** Describe an endpoint: no args, no digests, no bind. Every inline cluster is checked against its digest; one that is
 * named by digest alone is fetched from the registry and checked as well. */
async function describe({ endpoint, instance, ms = 5000 }) {
  const route = instance ? "inst" : "one";
  const body = request(caller, { endpoint, command: "describe", id: randomUUID(), deadlineMs: ms });
  const found = await exchange({ route, endpoint, command: "describe", instance }, body, ms, 1);
  const [reply] = found.replies;
  if (!reply?.ok) return { ...found, reply: reply ?? null };
  const { descriptor } = reply.data;
  if (![1, 2].includes(descriptor.protocol.v)) throw new Error(`protocol ${descriptor.protocol.v}`);
  const commands = {};
  for (const one of descriptor.clusters) {
    const document = one.document ?? (await artifact(one.digest));
    verifiedCluster(one.digest, document);
    for (const command of document.commands) if (one.commands.includes(command.name)) commands[command.name] = command;
  }
  contracts.set(endpoint, commands);
  return { ...found, reply, descriptor, public: reply.data.public, commands };
}

/** The root document of a closure, from the registry: manifest first, each checked against the digest asked for. */
async function artifact(named) {
  const manifest = await fetchOne(named);
  if (manifest.v !== 1 || manifest.members.length !== 0) throw new Error("a manifest with members");
  return fetchOne(manifest.root);
}

async function fetchOne(named) {
  const found = await call({ endpoint: REGISTRY, command: "artifacts", args: { digests: [named] } });
  const [entry] = found.reply?.data?.documents ?? [];
  const document = typeof entry?.document === "string" ? JSON.parse(entry.document) : entry?.document;
  if (digest(document) !== named) throw new Error(`the artifact ${named} has other bytes`);
  return document;
}

async function contract(endpoint, command) {
  if (!contracts.has(endpoint)) await describe({ endpoint });
  const found = contracts.get(endpoint)?.[command];
  if (!found) throw new Error(`${endpoint} shows no command ${command}`);
  return found;
}

function shaped(declared, options) {
  const digests = { input: declared?.inputDigest, output: declared?.outputDigest };
  return { digests, ...options.over };
}

/** A call by any instance, or by the one that is named. `over` replaces members of the request. */
async function call(options) {
  const { endpoint, command, args, instance, to, bind, target, correlation, ms = 5000 } = options;
  const declared = await contract(options.shown ?? endpoint, command);
  const id = options.id ?? randomUUID();
  const plain = { endpoint, command, args, bind, target, correlation, id, deadlineMs: options.deadlineMs ?? ms };
  const body = { ...request(caller, { ...plain, ...shaped(declared, {}) }), ...options.over };
  const route = instance ? "inst" : "one";
  const found = await exchange({ route, endpoint, command, instance, to }, body, ms, 1, { nonce: options.nonce });
  return { ...found, reply: found.replies[0] ?? null };
}

/** Publish and forget: no reply is expected, and none is read. */
async function cast({ endpoint, command, args, to, target }) {
  const declared = await contract(endpoint, command);
  const id = randomUUID();
  const body = request(caller, { endpoint, command, args, target, id, call: false, ...shaped(declared, {}) });
  const subject = requestSubject(space, caller, { endpoint, command, to, nonce: newNonce() });
  const refused = [];
  const watching = watchRefusals(subject, (text) => refused.push(text));
  nc.publish(subject, JSON.stringify(body));
  await nc.flush(); // the broker has answered by now
  await new Promise(setImmediate); // and whoever follows the status of the connection has heard it
  watching();
  return { id, refused: refused[0] ?? null };
}

/** Ask every instance; the answers of the first `enough`. */
async function scatter({ endpoint, command, args, enough, ms = 5000 }) {
  const declared = await contract(endpoint, command);
  const id = randomUUID();
  const body = request(caller, { endpoint, command, args, id, deadlineMs: ms, ...shaped(declared, {}) });
  return exchange({ route: "all", endpoint, command }, body, ms, enough);
}

/** The listing of the registry with the generation that the accepted row of this very connection names (13.15, 13.20). */
async function listing({ ms = 5000, limit, after }) {
  const { endpoint, command } = { endpoint: REGISTRY, command: "endpoints" };
  const declared = await contract(endpoint, command);
  const generation = await listingGeneration();
  const who = { ...caller, generation };
  const plain = { endpoint, command, args: { limit, after }, id: randomUUID(), deadlineMs: ms };
  const body = request(who, { ...plain, ...shaped(declared, {}) });
  const found = await exchange({ route: "one", endpoint, command }, body, ms, 1, { who });
  return { ...found, reply: found.replies[0] ?? null, generation };
}

async function listingGeneration() {
  const bucket = `cotal_accepted_${space}`;
  const stream = `KV_${bucket}`;
  const token = createHash("sha256").update(`cotal.listing.v1\0${login.connection}\0${login.horizon}`).digest("hex").slice(0, 32);
  const frame = await nc.request(`$JS.API.DIRECT.GET.${stream}.$KV.${bucket}.accepted.v1.${token}`, "", { timeout: 5000 });
  if (frame.headers?.code) throw new Error(`no accepted row: ${frame.headers.code}`);
  const { ref } = parse(frame.data);
  if (ref.space !== space || ref.owner !== caller.owner || ref.actor !== caller.actor || ref.uid !== caller.uid) throw new Error("a row of somebody else");
  return ref.generation;
}

await serveLines({
  async connect(options) {
    ({ space } = options);
    caller = { owner: options.owner, actor: options.actor, uid: options.uid, generation: options.generation };
    ({ nc, login } = await dial(options, (text) => watchers.forEach((watcher) => watcher(text))));
    return { id: `${options.owner}.${options.actor}` };
  },
  describe,
  call,
  cast,
  scatter,
  listing,
  async subscribed({ subject, queue }) {
    // Whether the broker lets this caller read a subject.
    const refused = [];
    const subscription = nc.subscribe(subject, { queue, callback: (error) => error && refused.push(`${error}`) });
    await nc.flush(); // the broker has answered the subscription
    if (!subscription.isClosed()) subscription.unsubscribe();
    return { refused: refused[0] ?? null };
  },
  /** The codec by itself, for the vectors of the contract. */
  codec: ({ value, subject }) => ({
    ...(value === undefined ? {} : { canonical: canonical(value), digest: digest(value), closure: closure(value) }),
    ...(subject === undefined ? {} : { split: splitRequest(subject) }),
  }),
  subjects: ({ space: where, caller: who, asked, nonce }) => ({
    request: requestSubject(where, who, { ...asked, nonce }),
    sentinel: sentinel(where, who, nonce),
  }),
}, () => nc?.close());
