"""The results of an inspection, as a page, as images, and as JSON values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from firth.utils.errors import storage_errors
from firth.utils.figure_images import image_figures, write_image
from firth.utils.figures import Figure, Paragraph
from firth.utils.html_page import Page, Section, render_page, write_page
from firth.utils.outputs import check_output, replacing_files

SECTIONS = {  # name: title, and what the section shows
    "prediction": ("Prediction", "What the model predicts for its task."),
    "tokens": (
        "Tokens",
        "What the network reads, and the shapes and norms of its vectors from layer to layer.",
    ),
    "attention": (
        "Attention",
        "How much each token attends to each other token, in every layer and head.",
    ),
    "lens": (
        "Logit lens",
        "What each layer would predict if it were the last: its hidden states through the model's "
        "own final norm and language head.",
    ),
    "attribution": ("Attribution", "Which tokens of the text the prediction depends on."),
    "generation": (
        "Generation",
        "Token by token: the candidates with their probabilities, and the attention on the tokens "
        "before.",
    ),
    "alignment": (
        "Alignment",
        "How much attention the decoder paid to each word of the source for each output word.",
    ),
    "neighbours": (
        "Neighbours",
        "The words whose vectors are most similar to those of the text's words.",
    ),
    "senses": (
        "Word senses",
        "One word in several texts: its static embedding is the same in all of them, its vector in "
        "each layer depends on the context.",
    ),
    "comparison": (
        "Two models",
        "The vectors that two models compute for the same texts, layer by layer.",
    ),
}
MAX_TITLE = 70  # characters of a text in a title
FRAME = '<iframe srcdoc="{}" style="width:100%;height:{}px;border:0"></iframe>'
FRAME_HEIGHT = 800


class Analysis(Protocol):
    """The result of one analysis."""

    def values(self) -> dict[str, Any]:
        """Return JSON values."""

    def figures(self) -> tuple[Figure, ...]:
        """Return what a page shows."""


class AnalysisSection(NamedTuple):
    """One or several results of one kind, for one text or for all."""

    name: str  # a key of SECTIONS
    results: tuple[Analysis, ...]
    text: int | None = None  # the text's number, counted from 1


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What `firth.inspect` found; `save` writes the page."""

    model: str
    texts: tuple[str, ...] = ()
    second: str = ""  # the question, or the second text of a pair
    compared: str = ""  # the other model
    sections: tuple[AnalysisSection, ...]
    notes: tuple[str, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return JSON values: the sections of each text, and those of all texts."""
        texts = [
            {"text": text, **self._section_values(number)}
            for number, text in enumerate(self.texts, 1)
        ]
        compared = {"compared": self.compared} if self.compared else {}
        return {
            "model": self.model,
            **compared,
            **({"second_text": self.second} if self.second else {}),
            "texts": texts,
            **self._section_values(None),
            "notes": list(self.notes),
        }

    def _section_values(self, text: int | None) -> dict[str, Any]:
        return {
            section.name: section.results[0].values()
            if len(section.results) == 1
            else [result.values() for result in section.results]
            for section in self.sections
            if section.text == text
        }

    def titled(self) -> Iterator[tuple[str, str, tuple[Figure, ...]]]:
        """Yield the title, the explanation and the figures of each section."""
        for section in self.sections:
            title, lead = SECTIONS[section.name]
            if section.text is not None and len(self.texts) > 1:
                title = (
                    f"{title} of text {section.text}: {_shortened(self.texts[section.text - 1])}"
                )
            yield title, lead, tuple(f for result in section.results for f in result.figures())

    def page(self) -> Page:
        """Return the page of all sections."""
        notes = [Section("Notes", "", [Paragraph(note, warning=True) for note in self.notes])]
        sections = [Section(*parts) for parts in self.titled()]
        title = f"{self.model} and {self.compared}" if self.compared else self.model
        return Page(
            f"Inside {title}",
            " · ".join(map(_shortened, filter(None, (*self.texts, self.second)))),
            [*sections, *(notes if self.notes else ())],
            "Made by firth inspect. Layers and heads are counted from 1; layer 0 is the "
            "embeddings.",
            wide=True,
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page: one HTML file that needs no other file and no network."""
        check_output(path, overwrite)
        with storage_errors(Path(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_page(Path(path), self.page())

    def save_images(self, folder: str | Path, *, overwrite: bool = False) -> list[Path]:
        """Write each figure that is a picture as a PNG file; return the files."""
        check_output(folder, overwrite)
        files = []
        with storage_errors(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
            with replacing_files(Path(folder), ["*.png"] if overwrite else []):
                for place, (title, _, figures) in enumerate(self.titled(), 1):
                    for number, figure in enumerate(image_figures(figures), 1):
                        name = f"{place:02}-{_file_name(title)}-{number:02}.png"
                        files.append(Path(folder) / name)
                        write_image(figure, files[-1])
        return files

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(section.name for section in self.sections))
        return f"Inspection({self.model}, {len(self.texts)} texts: {names})"

    def _repr_html_(self) -> str:
        return FRAME.format(escape(render_page(self.page()), quote=True), FRAME_HEIGHT)


def _shortened(text: str) -> str:
    """Shorten a text for a title.

    >>> len(_shortened("word " * 100))
    70
    """
    text = " ".join(text.split())
    return text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1]}…"


def _file_name(title: str) -> str:
    """Return a title as a file name.

    >>> _file_name("Attention of text 2: The dog")
    'attention-of-text-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")
