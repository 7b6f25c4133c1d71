"""The embedded corpus: generated English stories with labelled examples.

Story i of a seed does not depend on the number of stories. Labels are right by construction: the
generator knows what is true.
"""

from firth.data.stories.probes import HELD_OUT, held_out
from firth.data.stories.story import Story, generate_story
from firth.data.stories.story_files import Summary, write_stories
from firth.data.stories.task_examples import Answer, Examples

__all__ = ["HELD_OUT", "Answer", "Examples", "Story", "Summary"]
__all__ += ["generate_story", "held_out", "write_stories"]
