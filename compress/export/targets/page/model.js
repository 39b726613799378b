/**
 * The model in this folder, in a browser or in Node.js.
 *
 *     const model = await load(ort, Tokenizer, read);
 *     await model.answer("a text");
 *
 * Texts become inputs as they do in Python: special tokens stay when a text is truncated, a word of a tagger is cut
 * into pieces by itself, and a long list of words is read in windows that overlap.
 */

/**
 * Load the model.
 * @param {object} ort onnxruntime-web or onnxruntime-node.
 * @param {function} Tokenizer The class of that name of @huggingface/tokenizers.
 * @param {function(string): Promise<Uint8Array>} read Gives the bytes of a file of this folder.
 * @param {object} options What ONNX Runtime takes when it opens a session, such as `intraOpNumThreads`.
 * @returns {Promise<Model>}
 */
export async function load(ort, Tokenizer, read, options = {}) {
  const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
  const manifest = await json("export.json");
  const tokenizer = new Tokenizer(await json("tokenizer.json"), {});
  const session = await ort.InferenceSession.create(await read(manifest.model), options);
  return new Model(manifest, tokenizer, session, ort.Tensor);
}

class Model {
  constructor(manifest, tokenizer, session, Tensor) {
    this.manifest = manifest;
    this.settings = manifest.encoder;
    this.tokenizer = tokenizer;
    this.session = session;
    this.Tensor = Tensor;
  }

  /**
   * Answer one example.
   * @param {string|object} example A text, or `{text}`, `{text_a, text_b}` (pairs; embedding), `{tokens}` (tagging).
   *   For embedding also `prompt_name`, `query` or `document`: what the texts are, for a model that has prompts for them.
   * @returns {Promise<object>} `{label, probability, probabilities}`, `{labels, probabilities}` (multilabel; by label),
   *   `{score}`, `{tokens, tags}`, or `{vectors}`, with the cosine of two as `score`.
   */
  async answer(example) {
    const { kind, labels, pair } = this.settings;
    const given = typeof example === "string" ? { text: example } : example;
    if (kind === "tagging") {
      const tokens = given.tokens ?? given.text.split(/\s+/).filter((word) => word !== "");
      return { tokens, tags: await this.tags(tokens) };
    }
    if (kind === "embedding") {
      const prompt = this.promptOf(given.prompt_name);
      const vectors = [];
      for (const text of "text_a" in given ? [given.text_a, given.text_b] : [given.text]) {
        vectors.push(await this.run(this.encode(prompt + text)));
      }
      return vectors.length === 2 ? { vectors, score: cosine(...vectors) } : { vectors };
    }
    if (pair && !("text_a" in given)) throw new Error("this model takes two texts: {text_a, text_b}");
    const output = await this.run(pair ? this.encode(given.text_a, given.text_b) : this.encode(given.text));
    if (kind === "regression") return { score: output[0] };
    if (kind === "multilabel") {
      const { thresholds = [] } = this.settings;
      const there = (place) => output[place] >= logOdds(thresholds[place] ?? 0.5);
      return {
        labels: labels.filter((_, place) => there(place)),
        probabilities: Object.fromEntries(labels.map((label, place) => [label, 1 / (1 + Math.exp(-output[place]))])),
      };
    }
    const probabilities = softmax(output);
    const best = largest(probabilities);
    return { label: labels[best], probability: probabilities[best], probabilities };
  }

  /** Return what is put before a text that is a query, a document, or (`undefined`) neither. */
  promptOf(role) {
    if (![undefined, "query", "document"].includes(role)) {
      throw new Error(`prompt_name: got ${JSON.stringify(role)}, must be query or document`);
    }
    return this.settings[`${role}_prompt`] ?? this.settings.prompt ?? "";
  }

  /** Return the framed tokens of one text or two, no more than the model takes. */
  encode(first, second = null) {
    const one = this.tokenizer.tokenize(first);
    const two = second === null ? null : this.tokenizer.tokenize(second);
    const room = this.settings.max_length - this.frame([], two && []).tokens.length;
    const [most, rest] = shares(one.length, two?.length ?? 0, room, two ? this.settings.truncation : "longest_first");
    return this.frame(this.cut(one, most), two && this.cut(two, rest));
  }

  /** Return the tag of each word. */
  async tags(words) {
    const { labels, max_length, stride } = this.settings;
    const pieces = words.map((word) => this.tokenizer.tokenize(word));
    const tokens = pieces.flat();
    const wordOf = pieces.flatMap((parts, word) => parts.map((_, place) => (place === 0 ? word : -1)));
    const special = this.frame([]).tokens.length;
    const before = this.frame(["\0"]).tokens.indexOf("\0");
    const room = max_length - special;
    const step = room - Math.max(1, Math.min(stride, Math.floor(room / 2)));
    // A word without a piece of its own (a control character) is outside of everything.
    const tags = words.map(() => null);
    for (let first = 0; first === 0 || first + room - step < tokens.length; first += step) {
      const window = tokens.slice(first, first + room);
      const output = await this.run(this.frame(window));
      window.forEach((_, place) => {
        const row = (before + place) * labels.length;
        const word = wordOf[first + place];
        if (word >= 0) tags[word] ??= labels[largest(output.slice(row, row + labels.length))];
      });
    }
    return tags.map((tag) => tag ?? (labels.includes("O") ? "O" : labels[0]));
  }

  /** Put the special tokens around the tokens of one text or two. */
  frame(first, second = null) {
    const process = this.tokenizer.post_processor;
    return process ? process(first, second, true) : { tokens: [...first, ...(second ?? [])] };
  }

  cut(tokens, most) {
    return this.settings.truncation_side === "left" ? tokens.slice(tokens.length - most) : tokens.slice(0, most);
  }

  /** Return token ids. */
  ids({ tokens }) {
    return tokens.map((token) => this.tokenizer.token_to_id(token) ?? this.tokenizer.model.unk_token_id);
  }

  /** Return the numbers that the network gives for framed tokens. */
  async run(framed) {
    const ids = this.ids(framed);
    const types = framed.token_type_ids ?? ids.map(() => 0);
    const values = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: types };
    const feeds = this.settings.inputs.map((name) => {
      return [name, new this.Tensor("int64", BigInt64Array.from(values[name], BigInt), [1, ids.length])];
    });
    const { logits, vectors } = await this.session.run(Object.fromEntries(feeds));
    return Array.from((logits ?? vectors).data);
  }
}

/** Return how many tokens each of two texts keeps, so that both fit into the room. */
function shares(first, second, room, truncation) {
  const excess = first + second - room;
  if (excess <= 0) return [first, second];
  if (truncation === "only_first" && first > excess) return [first - excess, second];
  if (truncation === "only_second" && second > excess) return [first, second - excess];
  // The shorter one stays whole if it takes half of the room at most.
  const shorter = Math.min(first, second, Math.floor(room / 2));
  return first <= second ? [shorter, room - shorter] : [room - shorter, shorter];
}

function largest(values) {
  return values.indexOf(Math.max(...values));
}

function softmax(logits) {
  const top = Math.max(...logits);
  const exponents = logits.map((value) => Math.exp(value - top));
  const sum = exponents.reduce((total, value) => total + value, 0);
  return exponents.map((value) => value / sum);
}

function logOdds(probability) {
  return Math.log(probability / (1 - probability));
}

function cosine(first, second) {
  const dot = (x, y) => x.reduce((total, value, place) => total + value * y[place], 0);
  return dot(first, second) / Math.max(Math.sqrt(dot(first, first) * dot(second, second)), Number.MIN_VALUE);
}
