"""Filling blanks: masked tokens, spans, and corrections of spelling."""
