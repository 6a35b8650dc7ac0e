// The `ai` SDK as a client of the endpoint: BASE and TOKEN are in the environment.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.MODULES + "/");
const load = async name => import(pathToFileURL(require.resolve(name)));
const { generateText, jsonSchema, stepCountIs, isStepCount, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { BASE, TOKEN, PNG } = process.env;
const model = (apiKey = TOKEN) => createOpenAICompatible({ name: "bantam", baseURL: BASE, apiKey })("bantam");
const ask = (prompt, more = {}) => generateText({ model: model(), prompt, maxRetries: 0, ...more });

const whole = await ask("hello");
assert.equal(whole.text, "heard hello");
assert(whole.usage.totalTokens > 0);

let streamed = "";
for await (const piece of streamText({ model: model(), prompt: "stream", maxRetries: 0 }).textStream) streamed += piece;
assert.equal(streamed, "heard stream");

const inputSchema = jsonSchema({ type: "object", properties: { city: { type: "string" } } });
const tools = { weather: tool({ description: "Tells the weather.", inputSchema, execute: async () => "rain" }) };
const stopWhen = (isStepCount ?? stepCountIs)(3);
assert.equal((await ask("weather", { tools, stopWhen })).text, "It is rain.");
assert.equal(await streamText({ model: model(), prompt: "weather", tools, stopWhen, maxRetries: 0 }).text, "It is rain.");

const content = [{ type: "text", text: "see" }, { type: "file", data: PNG, mediaType: "image/png" }];
const seen = await generateText({ model: model(), messages: [{ role: "user", content }], maxRetries: 0 });
assert.equal(seen.text, "heard see and an image");

const stop = new AbortController();
const held = streamText({ model: model(), prompt: "hold", abortSignal: stop.signal, maxRetries: 0, onError: () => {} });
try {
  for await (const piece of held.textStream) if (piece) stop.abort();
} catch (e) { assert.equal(e.name, "AbortError"); }

await assert.rejects(generateText({ model: model("wrong"), prompt: "hello", maxRetries: 0 }), e => e.statusCode === 401);

const many = await Promise.all(Array.from({ length: 50 }, (_, n) => ask(`number${n}`)));
many.forEach((answer, n) => assert.equal(answer.text, `heard number${n}`));
