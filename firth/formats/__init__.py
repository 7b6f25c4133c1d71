"""Model and tokenizer files of other libraries."""
