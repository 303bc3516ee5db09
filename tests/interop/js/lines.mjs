// One JSON command a line on stdin, one JSON line {"done": ..., "result" or "error": ...} for each on stdout.

import { createInterface } from "node:readline";
import { readFileSync } from "node:fs";
import { connect, credsAuthenticator } from "@nats-io/transport-node";

export const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

/** Connect with a creds file; what the broker refuses is told as text. `login`: the user key and the end of the creds. */
export async function dial({ url, creds }, refused) {
  const text = readFileSync(creds);
  const jwt = /-----BEGIN NATS USER JWT-----\s+(\S+)/.exec(text.toString())[1];
  const { sub: nkey, exp } = JSON.parse(Buffer.from(jwt.split(".")[1], "base64url"));
  const nc = await connect({ servers: url, authenticator: credsAuthenticator(new Uint8Array(text)), inboxPrefix: `_INBOX_${nkey}` });
  (async () => {
    for await (const status of nc.status()) if (status.type === "error") refused(`${status.error?.message ?? status.error}`);
  })();
  return { nc, login: { connection: nkey, horizon: exp } };
}

export async function serveLines(actions, end) {
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      say({ done: command.do, result: (await actions[command.do](command)) ?? null });
    } catch (error) {
      say({ done: command.do, error: `${error}` });
    }
  }
  await end();
  process.exit(0);
}
