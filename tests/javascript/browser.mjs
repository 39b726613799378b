// Opens pages in Chromium and tells what they show and which addresses they ask for.
// Standard input: {chromium, profile, pages: [{url, examples, typed, shows}]}; standard output: a list of findings.
// A page with `shows` is done when that element shows something else than an ellipsis; others are pages of an export.

import { text } from "node:stream/consumers";
import { chromium } from "playwright-core";

const given = JSON.parse(await text(process.stdin));
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];
const context = await chromium.launchPersistentContext(given.profile, {
  executablePath: given.chromium,
  headless: true,
  args: FLAGS,
});

async function visit({ url, examples, typed, shows, picture }) {
  const requests = [];
  const problems = [];
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  page.on("request", (request) => requests.push(request.url()));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(url);
  const found = shows ? { shown: await settled(page, shows, "…") } : await answered(page, examples, typed);
  if (picture) await page.screenshot({ path: picture });
  await page.close();
  return { ...found, requests, problems };
}

/** Return the text of an element once it is another one. */
async function settled(page, selector, before) {
  await page.waitForFunction(([place, old]) => document.querySelector(place).textContent !== old, [selector, before]);
  return page.innerText(selector);
}

/** Use the page of an export as a person does, then ask its model for all examples. */
async function answered(page, examples, typed) {
  const state = await settled(page, "#state", "loading…");
  if (!state.startsWith("ready")) return { state };
  await page.fill("#first", typed[0]);
  if (typed.length > 1) await page.fill("#second-text", typed[1]);
  await page.click("#run");
  const took = await settled(page, "#took", "");
  const shown = await page.innerText("#answer");
  const answers = await page.evaluate(async (all) => {
    const model = await (await import("./page.js")).model;
    const found = [];
    for (const example of all) found.push(await model.answer(example));
    return found;
  }, examples);
  return { state, took, shown, answers };
}

const found = [];
for (const page of given.pages) found.push(await visit(page));
await context.close();
process.stdout.write(JSON.stringify(found));
