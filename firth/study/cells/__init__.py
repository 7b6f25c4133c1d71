"""Functions of cells: what one run of a study's grid does."""
