"""From text to sequences of tokens: documents, tokenizers, corpus, packing, sentence pairs."""
