"""The embedded corpus: stories of a small English world, told by a seed.

Story number i of a seed is the same whatever else is told. Each story comes with labelled examples
whose labels are right, because the teller knows what is true.
"""

from firth.data.stories.task_examples import Answer, Examples
from firth.data.stories.telling import WITHHELD, Story, tell, withheld
from firth.data.stories.writing import Summary, write_stories

__all__ = [
    "WITHHELD",
    "Answer",
    "Examples",
    "Story",
    "Summary",
    "tell",
    "withheld",
    "write_stories",
]
