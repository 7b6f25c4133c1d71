"""The engine of studies.

study.py          a study as data, what it gets when it runs, what it finds
cell.py           one run of a grid: a function, its settings and a seed, named by a content hash
cell_cache.py     the finished cells of a folder, which never run again
grid.py           run the cells of a grid, in several processes
statistics.py     intervals that resample seeds and examples, paired differences, Holm correction
settings.py       the settings of a study: of its budget, with overrides
study_result.py   a result as JSON values, rows, an image and a page
"""
