"""Train word vectors: skip-gram, CBOW, fastText and GloVe."""
