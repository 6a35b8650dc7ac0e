// The openai package as a client of the endpoint: BASE and TOKEN are in the environment.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES + "/");
const OpenAI = require("openai").default;
const { BASE, TOKEN, PNG } = process.env;
const client = new OpenAI({ baseURL: BASE, apiKey: TOKEN, maxRetries: 0 });
const said = text => [{ role: "user", content: text }];
const ask = (messages, more = {}) => client.chat.completions.create({ model: "bantam", messages, ...more });
const text = answer => answer.choices[0].message.content;

const whole = await ask(said("hello"));
assert.equal(text(whole), "heard hello");
assert(whole.usage.total_tokens > 0);

let streamed = "";
let usage;
for await (const piece of await ask(said("stream"), { stream: true, stream_options: { include_usage: true } })) {
  streamed += piece.choices[0]?.delta.content ?? "";
  usage = piece.usage ?? usage;
}
assert.equal(streamed, "heard stream");
assert(usage.total_tokens > 0);

const parameters = { type: "object", properties: { city: { type: "string" } } };
const weather = { type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: () => "rain" } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const [{ message, finish_reason }] = (await ask(said("weather"), { tools })).choices;
assert.equal(finish_reason, "tool_calls");
const [call] = message.tool_calls;
assert.deepEqual(JSON.parse(call.function.arguments), { city: "Ulm" });
const result = { role: "tool", tool_call_id: call.id, content: "rain" };
assert.equal(text(await ask([...said("weather"), message, result], { tools })), "It is rain.");
const runner = client.chat.completions.runTools({ model: "bantam", messages: said("weather"), tools: [weather], stream: true });
assert.equal(await runner.finalContent(), "It is rain.");

const image = { type: "image_url", image_url: { url: PNG } };
assert.equal(text(await ask([{ role: "user", content: [{ type: "text", text: "see" }, image] }])), "heard see and an image");

const held = await ask(said("hold"), { stream: true });
for await (const piece of held) if (piece.choices[0]?.delta.content) break;
held.controller.abort();

const wrong = new OpenAI({ baseURL: BASE, apiKey: "wrong", maxRetries: 0 });
await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
await assert.rejects(ask(said("hello"), { model: "nosuch" }), OpenAI.NotFoundError);
await assert.rejects(ask(said("hello"), { n: 2 }), OpenAI.BadRequestError);

const many = await Promise.all(Array.from({ length: 50 }, (_, n) => ask(said(`number${n}`))));
many.forEach((answer, n) => assert.equal(text(answer), `heard number${n}`));
