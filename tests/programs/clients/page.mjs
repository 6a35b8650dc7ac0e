// docs/examples/chat.html in a headless Chromium, which is told what to do through a pipe: CHROMIUM, PAGE, BASE and TOKEN are in
// the environment. The last line says what the page shows.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { CHROMIUM, PAGE, BASE, TOKEN } = process.env;
const profile = mkdtempSync(join(tmpdir(), "bantam-page-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
  "--disable-background-networking", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "about:blank"];
const browser = spawn(CHROMIUM, flags, { stdio: ["ignore", "ignore", "inherit", "pipe", "pipe"] });
const waiting = new Map();
let rest = "";
browser.stdio[4].on("data", data => {
  const messages = (rest + data).split("\0");
  rest = messages.pop();
  for (const { id, result, error } of messages.map(JSON.parse)) {
    waiting.get(id)?.(error ? Promise.reject(new Error(error.message)) : result);
    waiting.delete(id);
  }
});
let last = 0;
function send(method, params = {}, sessionId) {
  browser.stdio[3].write(JSON.stringify({ id: ++last, method, params, sessionId }) + "\0");
  return new Promise(resolve => waiting.set(last, resolve));
}

try {
  const { targetId } = await send("Target.createTarget", { url: PAGE });
  const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
  const run = async expression => {
    const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, awaitPromise: true }, sessionId);
    assert(!exceptionDetails, JSON.stringify(exceptionDetails));
    return result.value;
  };
  const until = async (what, expression) => {
    for (let tries = 0; !(await run(expression)); tries++) {
      assert(tries < 600, `${what}: ${await run("document.body?.innerText")}`);
      await new Promise(resolve => setTimeout(resolve, 100));
    }
  };
  await until("the page is loaded", "document.readyState === 'complete' && !!document.getElementById('ask')");
  const ask = async (token, text) => {
    await run(`$("base").value = ${JSON.stringify(BASE)}; $("token").value = ${JSON.stringify(token)};
      $("text").value = ${JSON.stringify(text)}; $("ask").requestSubmit()`);
  };
  await ask(TOKEN, "hello");
  await until("the first answer", "document.querySelector('.answer')?.textContent === 'heard hello'");
  await ask(TOKEN, "again");
  await until("the second answer", "document.querySelectorAll('.answer')[1]?.textContent === 'heard again after hello'");
  await ask("wrong", "a third time");
  await until("the error", "document.querySelector('.error')?.textContent.includes('token')");
  console.log("the page works");
} finally {
  // Its children write to the profile until it has ended in good order.
  const ended = new Promise(resolve => browser.once("exit", resolve));
  const late = setTimeout(() => browser.kill("SIGKILL"), 60_000);
  void send("Browser.close");
  await ended;
  clearTimeout(late);
  rmSync(profile, { recursive: true, force: true, maxRetries: 50 });
}
