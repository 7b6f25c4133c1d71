"""The embedded corpus: stories of a small English world, told by a seed.

Story number i of a seed is the same whatever else is told. Each story comes with labelled examples
whose labels are right, because the teller knows what is true.
"""

from firth.data.stories.story import HELD_OUT, Story, generate_story, held_out
from firth.data.stories.story_files import Summary, write_stories
from firth.data.stories.task_examples import Answer, Examples

__all__ = [
    "HELD_OUT",
    "Answer",
    "Examples",
    "Story",
    "Summary",
    "generate_story",
    "held_out",
    "write_stories",
]
