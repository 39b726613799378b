/** The page: one model, one form, one answer. */

import { load } from "./model.js";

const $ = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(1)} %`;

/** The model; others may wait for it as this page does. */
export const model = open();

async function open() {
  const start = performance.now();
  try {
    const ort = await import("./lib/onnxruntime-web.js");
    const { Tokenizer } = await import("./lib/tokenizers.js");
    const loaded = await load(ort, Tokenizer, read);
    show(loaded.manifest);
    $("state").textContent = `ready; loaded in ${Math.round(performance.now() - start)} ms`;
    return loaded;
  } catch (error) {
    $("state").textContent = `The model cannot be loaded (${error.message ?? error}); see README.md`;
    throw error;
  }
}

async function read(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

function show({ name, scheme, encoder, files, model: file }) {
  document.title = $("name").textContent = name;
  $("what").textContent = `${encoder.kind}, ${scheme}, ${(files[file].bytes / 1e6).toFixed(1)} MB`;
  $("second").hidden = !(encoder.pair || encoder.kind === "embedding");
  if (encoder.kind === "tagging") $("hint").textContent = "Words with spaces between them";
  $("run").disabled = false;
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await answer($("first").value, $("second-text").value);
  } catch (error) {
    $("answer").replaceChildren(line(`No answer: ${error.message ?? error}`));
  }
});

async function answer(first, second) {
  const loaded = await model;
  const { kind, labels, pair } = loaded.settings;
  const two = pair || (kind === "embedding" && second !== "");
  const start = performance.now();
  const found = await loaded.answer(two ? { text_a: first, text_b: second } : first);
  $("took").textContent = `${(performance.now() - start).toFixed(1)} ms`;
  $("answer").replaceChildren(...lines(found, labels));
}

/** Return the elements that show an answer. */
function lines({ labels: chosen, probabilities, tokens, tags, vectors, score }, labels) {
  if (chosen) {
    const order = labels.toSorted((x, y) => probabilities[y] - probabilities[x]);
    const bars = order.map((label) => bar(label, probabilities[label]));
    return [line(chosen.join(", ") || "none of the labels"), ...bars];
  }
  if (probabilities) {
    const order = labels.map((_, place) => place).sort((x, y) => probabilities[y] - probabilities[x]);
    return order.map((place) => bar(labels[place], probabilities[place]));
  }
  if (tags) return tokens.map((word, place) => tagged(word, tags[place]));
  if (vectors?.length === 1) {
    const shown = vectors[0].slice(0, 8).map((value) => value.toFixed(3));
    return [line(`${vectors[0].length} numbers: ${shown.join(", ")} …`)];
  }
  return [line(`${vectors ? "cosine" : "score"} ${score.toFixed(4)}`)];
}

function bar(label, probability) {
  const meter = element("meter", "", "");
  meter.value = probability;
  const row = element("div", "row", "");
  row.append(element("span", "label", label), meter, element("span", "value", percent(probability)));
  return row;
}

function tagged(word, tag) {
  const box = element("span", tag === "O" ? "word" : "word marked", word);
  if (tag !== "O") box.append(element("small", "tag", tag));
  return box;
}

function line(text) {
  return element("p", "", text);
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
