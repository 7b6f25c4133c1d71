"""Studies: a question, a grid of runs, a statistic, a figure and one sentence of verdict.

study.py          a study as data, what it gets when it runs, what it finds
cells.py          one run of a grid: a function, its settings and a seed, named by a content hash
cell_cache.py     the finished cells of a folder, which never run again
engine.py         run the cells of a grid, in several processes
statistics.py     intervals that resample seeds and examples, paired differences, Holm correction
settings.py       the settings of a study: of its budget, with overrides
*_cells.py        functions of cells that several studies share: inputs, pre-training, fine-tuning,
                  baselines
study_result.py   a result as JSON values, rows, an image and a page
running.py        `run_study`: from arguments to a page; study_config.py has its options
registry.py       the table of studies
labels.py, …      one file per study: a function from a `StudyRun` to a `StudyAnalysis`
"""
