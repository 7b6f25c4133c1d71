"""What people want of a model: the form of the data, a head, a metric and a recipe."""
