// The client of the TypeScript SDK: `node typescript.mjs '{"packages": …, "command" or "url": …}'`.
// Writes what it was given as one line of JSON; it judges nothing.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout } from "node:timers/promises";

const asked = JSON.parse(process.argv[2]);
// The packages are where they were installed, not beside this file.
const load = createRequire(`${asked.packages}/`);
const { Client, StreamableHTTPClientTransport } = load("@modelcontextprotocol/client");
const { StdioClientTransport } = load("@modelcontextprotocol/client/stdio");

function transport() {
  if (asked.url) {
    return new StreamableHTTPClientTransport(new URL(asked.url), {
      requestInit: { headers: asked.headers },
    });
  }
  const [command, ...args] = asked.command;
  return new StdioClientTransport({ command, args, env: asked.env, stderr: "inherit" });
}

async function cancelled(client) {
  const abort = new AbortController();
  let ended = false;
  const call = client
    .callTool({ name: "shelf__slow", arguments: {} }, { signal: abort.signal })
    .then((result) => `it ended: ${text(result)}`, () => "")
    .finally(() => (ended = true));
  while (!ended && !readFileSync(asked.journal, "utf8").includes("started")) {
    await setTimeout(10);
  }
  abort.abort("enough");
  return await call;
}

const text = (result) => result.content.map((block) => block.text ?? "").join("");
const client = new Client(
  { name: "outside", version: "1" },
  asked.era === "legacy" ? {} : { versionNegotiation: { mode: "auto" } },
);
await client.connect(transport());
const { tools } = await client.listTools();
const echo = await client.callTool({ name: "shelf__echo", arguments: { text: asked.text } });
const picture = await client.callTool({ name: "shelf__picture", arguments: {} });
const failed = await client.callTool({ name: "shelf__fail", arguments: {} });
const read = await client.readResource({ uri: asked.resource });
const got = await client.getPrompt({ name: asked.prompt, arguments: { book: asked.book } });
let steps = 0;
await client.callTool({ name: "shelf__steps", arguments: {} }, { onprogress: () => (steps += 1) });
const uncancelled = await cancelled(client);
const after = await client.callTool({ name: "shelf__echo", arguments: { text: asked.text } });
const report = {
  protocol: client.getNegotiatedProtocolVersion(),
  tools: tools.map((tool) => tool.name),
  echoed: text(echo),
  image: [picture.content[0].mimeType, picture.content[0].data],
  resource: read.contents[0].text,
  prompt: got.messages[0].content.text,
  error: failed.isError ? text(failed) : "",
  steps,
  uncancelled,
  after: text(after),
};
await client.close();
process.stdout.write(`${JSON.stringify(report)}\n`);
