// The client of the TypeScript SDK before a gateway whose tools are searched: `node search_typescript.mjs '{…}'`.
// Writes what it was given as one line of JSON; it judges nothing.

import { createRequire } from "node:module";

const asked = JSON.parse(process.argv[2]);
// The packages are where they were installed, not beside this file.
const load = createRequire(`${asked.packages}/`);
const { Client, StreamableHTTPClientTransport } = load("@modelcontextprotocol/client");
const { StdioClientTransport } = load("@modelcontextprotocol/client/stdio");

function transport() {
  if (asked.url) {
    return new StreamableHTTPClientTransport(new URL(asked.url), { requestInit: { headers: asked.headers } });
  }
  const [command, ...args] = asked.command;
  return new StdioClientTransport({ command, args, env: asked.env, stderr: "inherit" });
}

const text = (result) => result.content.map((block) => block.text ?? "").join("");
const client = new Client({ name: "outside", version: "1" }, { versionNegotiation: { mode: "auto" } });
await client.connect(transport());
const { tools } = await client.listTools();
const call = (name, args) => client.callTool({ name, arguments: args });
const echo = { text: asked.text };
const picture = await call("call_tool", { name: "shelf__picture" });
const report = {
  tools: tools.map((tool) => tool.name),
  found: text(await call("find_tools", { queries: [asked.query] })),
  by_card: text(await call("call_tool", { name: "shelf__echo", arguments: echo })),
  by_name: text(await call("shelf__echo", echo)),
  image: picture.content[0].data,
};
await client.close();
process.stdout.write(`${JSON.stringify(report)}\n`);
