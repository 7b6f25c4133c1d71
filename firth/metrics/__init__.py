"""What predictions are worth: figures equal to the field's, each with an interval."""
