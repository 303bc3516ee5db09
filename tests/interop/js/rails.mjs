// The request/reply half of the endpoint rails, written from the published contract alone (section 13): canonical JSON,
// digests, subjects of both rails, and the two envelopes. Nothing here knows Sidecar.

import { createHash, randomBytes } from "node:crypto";

export const MODES = { self: 0, owner: 1, any: 1, child: 1, ledger: 1, handle: 3, exact: 3 };
const TOKEN = /^[A-Za-z0-9_]{1,64}$/;
const UID = /^[a-z0-9]{26,32}$/;
const NONCE = /^[A-Za-z0-9_-]{22,64}$/;
const COMMAND = /^[a-z0-9-]{1,32}$/;
const EPOCH = /^(0|[1-9][0-9]*)$/;
const GENERATION = /^[0-9a-f]{32}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;
const ENDPOINT = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$/;
const LONGEST = 1024;
const PROVENANCE = new Set(["nats-stream", "nats-subject", "nats-sequence", "nats-time-stamp"]);
const decoder = new TextDecoder("utf-8", { fatal: true });

// ---- canonical JSON (RFC 8785 over I-JSON) and digests ----

export function canonical(value) {
  if (value === null || typeof value === "boolean") return JSON.stringify(value);
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new Error("no finite number");
    return JSON.stringify(value);
  }
  if (typeof value === "string") {
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) throw new Error("a lone surrogate");
    return JSON.stringify(value);
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object") throw new Error(`no JSON: ${typeof value}`);
  const members = Object.keys(value).sort().map((name) => `${canonical(name)}:${canonical(value[name])}`);
  return `{${members.join(",")}}`;
}

/** The artifact digest of one document (13.7). */
export const digest = (value) => `sha256:${createHash("sha256").update(canonical(value)).digest("hex")}`;

/** The closure digest of a root whose members are known by their artifact digests. */
export const closure = (root, members = []) => digest({ v: 1, root: digest(root), members });

export const VOID = closure({ type: "null" });

// ---- subjects ----

export const tokenOf = (endpoint) => {
  if (!ENDPOINT.test(endpoint)) throw new Error(`no endpoint name: ${endpoint}`);
  return endpoint.replaceAll(".", "_");
};

export const newNonce = () => randomBytes(18).toString("base64url");

const railOf = (space, generation) => `cotal.${space}.ep${generation ? ".v1" : ""}`;

/** What stands behind the command of every request of a caller, up to its nonce. */
function callerTail(caller, nonce) {
  if (!TOKEN.test(caller.owner) || caller.owner in MODES || !TOKEN.test(caller.actor) || !UID.test(caller.uid)) {
    throw new Error("no caller triple");
  }
  if (!NONCE.test(nonce)) throw new Error("no nonce");
  if (caller.generation && !GENERATION.test(caller.generation)) throw new Error("no generation");
  return [caller.owner, caller.actor, caller.uid, ...(caller.generation ? [caller.generation] : []), nonce];
}

/** A request subject. `to` is {mode, owner?, actor?, uid?}; `route` one, all or inst. */
export function requestSubject(space, caller, { route = "one", endpoint, command, instance, to, nonce }) {
  if (!COMMAND.test(command)) throw new Error(`no command: ${command}`);
  const head = [railOf(space, caller.generation), route, tokenOf(endpoint)];
  if (route === "inst") {
    if (!UID.test(instance ?? "")) throw new Error("no instance");
    head.push(instance);
  }
  const target = to ? [to.mode, ...[to.owner, to.actor, to.uid].slice(0, MODES[to.mode])] : [];
  if (target.includes(undefined)) throw new Error("a target is missing");
  const subject = [...head, command, ...target, ...callerTail(caller, nonce)].join(".");
  if (subject.length > LONGEST) throw new Error("the subject is too long");
  return subject;
}

export const replyFilter = (space, caller, nonce) =>
  [railOf(space, caller.generation), "reply.*.*.*", ...callerTail(caller, nonce)].join(".");

export const sentinel = (space, caller, nonce) =>
  [railOf(space, caller.generation), "reply._nr._nr._nr", ...callerTail(caller, nonce)].join(".");

/** Who answers, from the subject alone. */
export function replySubject(subject) {
  const tokens = subject.split(".");
  const at = tokens[3] === "v1" ? 4 : 3;
  if (tokens[at] !== "reply" || tokens.length !== at + (at === 4 ? 9 : 8) || !EPOCH.test(tokens[at + 3])) throw new Error("no reply subject");
  return { endpoint: tokens[at + 1], instance: tokens[at + 2], epoch: Number(tokens[at + 3]) };
}

/** A request subject taken apart by closed sets, never by counting; null for what is none. */
export function splitRequest(subject) {
  const tokens = subject.split(".");
  if (tokens.length < 4 || subject.length > LONGEST || tokens[0] !== "cotal" || tokens[2] !== "ep" || tokens.includes("")) return null;
  const issued = tokens[3] === "v1";
  let at = issued ? 4 : 3;
  const route = tokens[at++];
  if (!["one", "all", "inst"].includes(route)) return null;
  const endpoint = tokens[at++];
  const instance = route === "inst" ? tokens[at++] : null;
  const command = tokens[at++];
  const mode = tokens[at] in MODES ? tokens[at++] : null;
  const named = tokens.slice(at, (at += mode ? MODES[mode] : 0));
  const [owner, actor, uid, ...rest] = tokens.slice(at);
  if (rest.length !== (issued ? 2 : 1)) return null;
  const generation = issued ? rest[0] : null;
  const nonce = rest.at(-1);
  const caller = { owner, actor, uid, generation };
  try {
    callerTail(caller, nonce);
  } catch {
    return null;
  }
  if (!COMMAND.test(command)) return null;
  return { space: tokens[1], route, endpoint, instance, command, mode, named, caller, nonce };
}

/** The one subject on which a request may be answered, on the rail that it came in on (13.2). */
export const answerSubject = (asked, instance, epoch) =>
  [railOf(asked.space, asked.caller.generation), "reply", asked.endpoint, instance, epoch, ...callerTail(asked.caller, asked.nonce)].join(".");

export const carriesProvenance = (headers) => [...(headers?.keys() ?? [])].some((name) => PROVENANCE.has(name.toLowerCase()));

// ---- envelopes ----

/** The body of a request; members that are undefined are absent. */
export function request(caller, { endpoint, command, digests, call = true, args, deadlineMs, target, bind, correlation, id, name }) {
  const op = { endpoint, command };
  if (digests) Object.assign(op, { inputDigest: digests.input, outputDigest: digests.output });
  const from = { id: `${caller.owner}.${caller.actor}`, name: name ?? caller.actor };
  return { v: 1, id, op, class: "ephemeral", replyExpected: call, args, deadlineMs, target, bind, correlation, from };
}

/** A reply, judged; throws for what is none. */
export function readReply(data, id) {
  const reply = JSON.parse(decoder.decode(data));
  if (reply.v !== 1) throw new Error(`v is ${reply.v}`);
  if (reply.id !== id) throw new Error(`id is ${reply.id}`);
  if (reply.ok === true) {
    if ("error" in reply) throw new Error("error beside ok");
    return { ok: true, data: reply.data ?? null };
  }
  if (reply.ok !== false || "data" in reply || typeof reply.error?.code !== "string" || typeof reply.error?.message !== "string") {
    throw new Error("neither an answer nor a refusal");
  }
  const outcome = reply.error.outcome ?? "unknown";
  if (!["executed", "not-executed", "unknown"].includes(outcome)) throw new Error(`outcome is ${outcome}`);
  return { ok: false, ...reply.error, outcome };
}

export const parse = (data) => JSON.parse(decoder.decode(data));

// ---- contracts ----

/** The commands of a cluster document whose closure digest is the one that was named; throws for other bytes. */
export function verifiedCluster(named, document) {
  if (!DIGEST.test(named)) throw new Error(`no digest: ${named}`);
  const found = closure(document);
  if (found !== named) throw new Error(`the cluster ${document?.urn} has digest ${found}, not ${named}`);
  for (const command of document.commands) {
    if (!DIGEST.test(command.inputDigest) || !DIGEST.test(command.outputDigest)) throw new Error(`${command.name} pins no digests`);
  }
  return document;
}
