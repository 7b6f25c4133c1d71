"""Plots: each is a function that writes a story with a builder."""

from __future__ import annotations

from collections.abc import Callable

from firth.data.stories.plots.away import cave, journey, spoilt, visit
from firth.data.stories.plots.fables import camp, fable, letter, rescue
from firth.data.stories.plots.home import cooking, garden, gift, helping, lost_and_found, quarrel
from firth.data.stories.plots.play import contest, fair, match, music
from firth.data.stories.plots.school import lesson, reading, skill
from firth.data.stories.plots.town import doctor, flood, purse, saving, shopping, work_day
from firth.data.stories.story_builder import StoryBuilder

Plot = Callable[[StoryBuilder], None]

# a plot named twice is twice as likely
PLOTS: tuple[Plot, ...] = (
    *(camp, cave, contest, cooking, cooking, doctor, fable, fair, flood, garden, gift, helping),
    *(journey, journey, journey, lesson, lesson, letter, lost_and_found, match, music, music),
    *(purse, quarrel, reading, rescue, saving, shopping, shopping, skill, spoilt, visit, work_day),
)
