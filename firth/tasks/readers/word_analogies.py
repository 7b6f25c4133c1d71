"""Reader of word analogies: sections of questions of four words (Mikolov et al. 2013)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import TaskFile, place
from firth.tasks.readers.word_pairs import read_fields
from firth.utils.errors import InputError

SYNTACTIC = "gram"  # beginning of the names of Google's syntactic sections


@dataclass(frozen=True, kw_only=True, slots=True)
class Analogy:
    """A question: the first word is to the second as the third is to which?"""

    words: tuple[str, str, str, str]  # the last is the answer
    section: str = ""
    line: int = 0

    @property
    def is_syntactic(self) -> bool:
        """Whether it asks for a grammatical form, by the name of its section."""
        return self.section.startswith(SYNTACTIC)


def read_analogies(file: TaskFile) -> Iterator[Analogy]:
    """Yield questions: four words in each line, after lines such as `: family`.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "questions.txt")
    >>> _ = path.write_text(": family\\nboy girl brother sister\\n")
    >>> next(read_analogies(TaskFile(path)))
    Analogy(words=('boy', 'girl', 'brother', 'sister'), section='family', line=2)
    """
    section, found = "", False
    for line, fields in read_fields(file):
        if fields[0].startswith(":"):
            section = " ".join(fields).removeprefix(":").strip()
            continue
        with reporting_errors(file.bad):
            if len(fields) != 4 or not all(fields):
                raise InputError(
                    f"{place(file.path, line)} has {len(fields)} words; an analogy has four, such "
                    "as: boy girl brother sister."
                )
            first, second, third, fourth = fields
            yield Analogy(words=(first, second, third, fourth), section=section, line=line)
            found = True
    file.require_examples(found)
