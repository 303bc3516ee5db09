// An instance of an endpoint written from the published contract alone, over the stock NATS JavaScript client.
//
// It takes one JSON command a line on stdin. "serve" is given the descriptor of a registration that somebody else made;
// who may call what is the broker's business, what a request says is judged here, in the order of section 13.

import { answerSubject, carriesProvenance, parse, splitRequest, tokenOf } from "./rails.mjs";
import { dial, say, serveLines } from "./lines.mjs";

let nc, served;
const handled = [];
let counter = 0;

class Refused extends Error {
  constructor(code, message, outcome = "not-executed", details = undefined) {
    super(message);
    Object.assign(this, { code, outcome, details });
  }
}

/** Commands by name: what they check of their arguments, and what they do. */
const HANDLERS = {
  describe: () => ({ public: true, descriptor: served.descriptor }),
  echo(args) {
    if (typeof args?.text !== "string" || Object.keys(args).length !== 1) throw new Refused("bad-request", "args is no {text}");
    return { text: args.text };
  },
  whoami(_args, asked) {
    return { owner: asked.caller.owner, actor: asked.caller.actor, uid: asked.caller.uid };
  },
  about(_args, _asked, body) {
    return { owner: body.target.owner, actor: body.target.actor };
  },
  count() {
    return { count: ++counter };
  },
  fail({ code, outcome }) {
    throw new Refused(code, "as asked", outcome);
  },
  hang() {
    return undefined; // nothing is ever answered
  },
  wrong() {
    return { text: 7 }; // not what the contract says
  },
};

/** What a frame asks for. Throws Refused; `bind` comes before everything that the request is about. */
function judge(asked, body) {
  if (body.v !== 1) throw new Refused("unsupported-version", "v is not 1");
  if (typeof body.id !== "string" || !/^[A-Za-z0-9_-]{1,64}$/.test(body.id)) throw new Refused("bad-request", "id is no id");
  if (body.op?.endpoint !== served.endpoint || body.op?.command !== asked.command) throw new Refused("op-mismatch", "op is not the subject's");
  fence(asked, body);
  const declared = served.commands[asked.command];
  if (asked.command !== "describe" && !declared) throw new Refused("unimplemented", "no such command");
  const modes = declared?.targeted ? declared.modes : [null];
  if (!modes.includes(asked.mode)) throw new Refused("target-mismatch", "the command does not admit this mode");
  if (asked.mode === null || asked.mode === "self") {
    if ("target" in body) throw new Refused("target-mismatch", "this form has no body target");
  } else if (body.target?.owner !== asked.named[0]) throw new Refused("target-mismatch", "the body target is another");
  if (body.from?.id !== `${asked.caller.owner}.${asked.caller.actor}`) throw new Refused("sender-mismatch", "from is another");
  if (body.class !== "ephemeral") throw new Refused("class-mismatch", "the command is ephemeral");
  if (declared && (body.op.inputDigest !== declared.inputDigest || body.op.outputDigest !== declared.outputDigest)) {
    throw new Refused("contract-mismatch", "the digests are others");
  }
}

function fence(asked, body) {
  if (body.bind === undefined) return;
  const { instanceId, epoch } = body.bind;
  if (asked.route === "all" || asked.command === "describe") throw new Refused("bad-request", "bind does not stand here");
  if (instanceId === served.instance && epoch === served.epoch) return;
  const detail = {
    kind: "ai.cotal.ep.bind-refused",
    endpoint: served.endpoint,
    command: asked.command,
    boundTo: { instanceId, epoch },
    servedBy: { instanceId: served.instance, epoch: served.epoch },
  };
  throw new Refused(instanceId === served.instance ? "expired" : "failed-precondition", "another incarnation", "not-executed", [detail]);
}

function take(frame) {
  if (carriesProvenance(frame.headers)) return;
  const asked = splitRequest(frame.subject);
  if (asked === null) return;
  let body = {};
  let answer;
  try {
    body = parse(frame.data);
    judge(asked, body);
    handled.push({ command: asked.command, args: body.args ?? null, correlation: body.correlation ?? null, route: asked.route, cast: body.replyExpected === false });
    const data = HANDLERS[asked.command](body.args, asked, body);
    if (data === undefined) return;
    answer = { v: 1, id: body.id, ok: true, data };
  } catch (error) {
    const refused = error instanceof Refused ? error : new Refused("bad-request", `${error.message}`);
    const { code, message, outcome, details } = refused;
    answer = { v: 1, id: typeof body.id === "string" ? body.id : "invalid", ok: false, error: { code, message, outcome, details } };
  }
  if (body.replyExpected === false) return;
  nc.publish(answerSubject(asked, served.instance, served.epoch), JSON.stringify(answer));
}

await serveLines({
  async connect(options) {
    ({ nc } = await dial(options, (text) => say({ event: "fault", text })));
  },
  /** Both rails, three routes: the class rail in the queue group of the endpoint alone. */
  async serve({ space, instance, epoch, descriptor, commands }) {
    served = { endpoint: descriptor.endpoint, instance, epoch, descriptor, commands };
    const token = tokenOf(descriptor.endpoint);
    for (const command of ["describe", ...Object.keys(commands)]) {
      for (const rail of [`cotal.${space}.ep`, `cotal.${space}.ep.v1`]) {
        nc.subscribe(`${rail}.one.${token}.${command}.>`, { queue: token, callback: (_error, frame) => take(frame) });
        nc.subscribe(`${rail}.all.${token}.${command}.>`, { callback: (_error, frame) => take(frame) });
        nc.subscribe(`${rail}.inst.${token}.${instance}.${command}.>`, { callback: (_error, frame) => take(frame) });
      }
    }
    await nc.flush();
  },
  /** The status half of the instance's service record, through the record mediator; its epoch is that of the subject. */
  async status({ space, state, observedSpecRevision }) {
    const token = tokenOf(served.endpoint);
    const subject = `cotal.${space}.epr.${token}.${served.instance}.${served.epoch}.svc.${token}.${served.instance}`;
    nc.publish(subject, JSON.stringify({ state, observedSpecRevision }));
    await nc.flush();
  },
  handled: () => handled.splice(0),
}, () => nc?.close());
