"""Studies: a question, a grid of runs, a statistic, a figure and one sentence of verdict.

engine/           what runs any study: a grid of cells, each run once; statistics; the page
cells/            functions of cells, shared by studies: inputs, pre-training, fine-tuning, …
running.py        `run_study`: from arguments to a page; study_config.py has its options
registry.py       the table of studies
labels.py, …      one file per study: a function from a `StudyRun` to a `StudyAnalysis`; the
                  findings, figures or fits of a large one are in files of their own
claim_table.py    what the lectures claim, from claims.json; claims.py is the study of all claims
"""
