// Asks exported folders in Node.js, through their own model.js and through transformers.js.
// Standard input: a list of {folder, task, examples}; standard output: a list of {answers, ids, theirs, ...}.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";
import { Tokenizer } from "@huggingface/tokenizers";
import * as transformers from "@huggingface/transformers";
import * as ort from "onnxruntime-node";

const { AutoTokenizer, AutoModelForSequenceClassification, AutoModelForTokenClassification, env } = transformers;
env.allowRemoteModels = false;
env.logLevel = transformers.LogLevel.ERROR;

const THREADS = { intraOpNumThreads: 1 };
const CLASSES = { classification: AutoModelForSequenceClassification, tagging: AutoModelForTokenClassification };

async function ask({ folder, examples, pipeline }) {
  const { load } = await import(pathToFileURL(join(folder, "model.js")));
  const model = await load(ort, Tokenizer, (name) => readFile(join(folder, name)), THREADS);
  const found = { answers: [], ids: [], theirs: [] };
  const tokenizer = await AutoTokenizer.from_pretrained(folder);
  const config = JSON.parse(await readFile(join(folder, "config.json"), "utf8"));
  found.supported = CLASSES[model.settings.kind]?.supports(config.model_type) ?? false;
  for (const example of examples) {
    const texts = "text_a" in example ? [example.text_a, example.text_b] : [example.text];
    found.answers.push(await model.answer(example));
    if ("tokens" in example) continue;
    found.ids.push(model.ids(model.encode(...texts)));
    const options = { text_pair: texts[1] ?? null, truncation: true, return_tensor: false };
    found.theirs.push(tokenizer(texts[0], options).input_ids);
  }
  if (pipeline) {
    const run = await transformers.pipeline(pipeline, folder, { session_options: THREADS });
    found.piped = [];
    for (const { text } of examples) found.piped.push(await run(text, { ignore_labels: [] }));
  }
  return found;
}

const found = [];
for (const job of JSON.parse(await text(process.stdin))) found.push(await ask(job));
process.stdout.write(JSON.stringify(found));
