"""`TextModel`: fill blanks, generate, embed and score with a network and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack, overload

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.inference.embedding.embedder import Embedder, Layer, make_embedder
from firth.inference.embedding.semantic_search import SearchHit, SearchIndex, open_index, search
from firth.inference.embedding.vectors import Floats, TokenVector, embed, embed_tokens
from firth.inference.explanation import (
    as_continuation,
    blank_request,
    explain_blanks,
    explain_prompt,
    prompt_output,
    with_visible_targets,
)
from firth.inference.forward_pass import ForwardPass
from firth.inference.generation.chat_template import Messages, make_messages
from firth.inference.generation.generation_config import (
    GenerationConfig,
    GenerationOptions,
    one_completion,
)
from firth.inference.generation.text_generation import PromptCompletions, TextGenerator, first_texts
from firth.inference.infilling.blanks import has_blanks
from firth.inference.infilling.fill_methods import (
    BlankCandidates,
    BlankFiller,
    FillOptions,
    FillResult,
    check_top,
    make_filler,
)
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.infilling.spelling import CorrectedText, correct_batch, make_corrector
from firth.inference.logit_lens import LogitLens, logit_lens
from firth.inference.scoring.text_scoring import TextScore, score_texts
from firth.inference.scoring.token_scoring import ScoringRequest, check_language_head
from firth.inference.text_network import TextNetwork
from firth.objectives.registry import infill_format
from firth.utils.arguments import check_arguments
from firth.utils.errors import UsageError
from firth.utils.surrogates import without_surrogates

# Names under which sentence encoders store the prompts of documents and of queries.
PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}


@dataclass(repr=False, eq=False)
class TextModel(TextNetwork):
    """A network and its tokenizer: fill, generate, embed, search, score."""

    @property
    def reads_left_context_only(self) -> bool:
        """Return whether the model is a decoder that was not pre-trained to fill blanks."""
        return self.config.architecture == "decoder" and infill_format(self.objective) != "masks"

    @property
    def generates(self) -> bool:
        """Return whether the model was fine-tuned for a task with generated outputs."""
        return False

    @overload
    def score(self, text: str, context: str | None = None) -> TextScore: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, text: Data, context: Data | None = None) -> list[TextScore]: ...

    def score(self, text: Data, context: Data | None = None) -> TextScore | list[TextScore]:
        """Compute the log-probability of a text, per token (`log_probs`) and in `total`.

        Decoders score each token given those before it; without a beginning-of-text token the
        first token has no score. With a `context`, only the text after it is scored; an
        encoder-decoder scores a text given its input, the context. Encoders score by
        pseudo-log-likelihood (Salazar et al. 2020): each token given all others, with that token
        masked; these sums are not comparable to the log-likelihoods of other models. A list of
        texts gives a list of scores, given a context for each of them or one for all.
        """
        texts = as_texts(text, "text")
        contexts = [] if context is None else as_texts(context, "context")
        contexts *= len(texts) if isinstance(context, str) else 1
        if contexts and len(contexts) != len(texts):
            raise UsageError(f"There are {len(texts)} texts, but {len(contexts)} contexts.")
        scores = score_texts(
            self.network,
            self.require_tokenizer(),
            texts,
            contexts=contexts,
            encoder_tokenizer=self.require_encoder_tokenizer(),
        )
        return scores[0] if isinstance(text, str) else scores

    @overload
    def fill(self, text: str, **options: Unpack[FillOptions]) -> BlankCandidates: ...  # type: ignore[overload-overlap]

    @overload
    def fill(self, text: Data, **options: Unpack[FillOptions]) -> list[BlankCandidates]: ...

    @check_arguments
    def fill(
        self, text: Data, *, top: int = 5, targets: Sequence[str] | str = ()
    ) -> BlankCandidates | list[BlankCandidates]:
        """Return candidates for each blank of a text ([MASK], <extra_id_0>, ___), best first.

        With `targets`, score only these words. Several texts give a list.
        """
        found = [done.blanks for done in self.fill_texts(text, top=top, targets=targets)]
        return found[0] if isinstance(text, str) else found

    @check_arguments
    def fill_texts(
        self, texts: Data, *, top: int = 5, targets: Sequence[str] | str = ()
    ) -> list[FillResult]:
        """Fill the blanks of several texts; rank whole sentences where a text has several."""
        filler = self.blank_filler()
        encoded = [filler.encode(text) for text in as_texts(texts, "texts")]
        return fill_batch(filler, encoded, top=top, targets=targets)

    @check_arguments
    def correct(self, text: str) -> CorrectedText:
        """Correct words that are improbable in their context."""
        corrector = make_corrector(self.blank_filler())
        return correct_batch(corrector, [text], [corrector.find_suspects(text)])[0]

    @check_arguments
    def explain(self, text: str, *, answer: str | Sequence[str] = (), top: int = 5) -> ForwardPass:
        """Return all values of the forward pass that fills the blanks of a text or continues it.

        They are the token ids, embeddings, layers, logits and probabilities. With an `answer` also
        the loss: a word for each blank, or a continuation. A decoder continues every text, unless
        it was pre-trained to fill blanks.
        """
        check_top(top)
        answers = [answer] if isinstance(answer, str) else list(answer)
        text, encoder = without_surrogates(text), self.config.architecture == "encoder"
        if encoder or (not self.reads_left_context_only and has_blanks(text)):
            return explain_blanks(self.blank_filler(), text, answers=answers, top=top)
        generator = self.text_generator()
        prompt = generator.encode_prompt(text)
        return explain_prompt(generator, prompt, answer=" ".join(answers), top=top)

    @check_arguments
    def lens(
        self,
        text: str,
        *,
        top: int = 5,
        target: str | Sequence[str] = (),
        max_positions: int | None = None,
    ) -> LogitLens:
        """Compute what each layer would predict at each position of a text (logit lens).

        Each layer's hidden states pass the model's own final norm and language head; those of the
        last layer give the model's own predictions. `target` is what is right: a word for each
        blank, the continuation of a decoder's text, or the output of an encoder-decoder, by default
        the one that it generates. `max_positions` limits the work on long texts to the positions
        around the first blank, or to the last ones.
        """
        check_top(top)
        if not text.strip():
            raise UsageError("The text is empty: there is no position to predict; add a word.")
        if max_positions is not None and max_positions < 1:
            raise UsageError(f"`max_positions` must be at least 1, not {max_positions}.")
        check_language_head(self.network)
        text = without_surrogates(text)
        words = [target] if isinstance(target, str) else list(target)
        bidirectional, request = self.scoring_request(text, words)
        return logit_lens(
            self.transformer,
            self.require_tokenizer(),
            request,
            bidirectional=bidirectional,
            encoder_tokenizer=self.require_encoder_tokenizer(),
            text=text,
            top=top,
            max_positions=max_positions,
        )

    def scoring_request(self, text: str, words: Sequence[str]) -> tuple[bool, ScoringRequest]:
        """Return whether attention is bidirectional, and the tokens with the right predictions.

        `words` are what is right: as `target` of `lens`.
        """
        encoder, blanks = self.config.architecture == "encoder", has_blanks(text)
        if (encoder and (blanks or words)) or (blanks and not self.reads_left_context_only):
            filler = self.blank_filler()
            request = blank_request(filler, text, words)
            masks = filler.method == "masks"
            return masks, with_visible_targets(request, filler.shift) if masks else request
        if self.config.has_encoder and not encoder:
            return False, prompt_output(self.text_generator(), text, " ".join(words))
        if encoder:
            ids = tuple(self.input_ids(text).tolist())
            return True, ScoringRequest(ids, range(len(ids)), ids)
        text += as_continuation(text, " ".join(words)) if words else ""
        ids = self.text_generator(max_new_tokens=1).encode_prompt(text).ids
        tokens = ids[:-1] if words else ids
        return False, ScoringRequest(tokens, range(len(ids) - 1), ids[1:])

    def blank_filler(self) -> BlankFiller:
        """Return the method by which this model fills blanks."""
        return make_filler(self.network, self.require_tokenizer(), objective=self.objective)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, **settings: Unpack[GenerationOptions]
    ) -> str: ...

    @overload
    def generate(self, prompt: Data, **settings: Unpack[GenerationOptions]) -> list[str]: ...

    def generate(self, prompt: Data, **settings: Unpack[GenerationOptions]) -> str | list[str]:
        """Generate the completion of a prompt, without the prompt; a list for a list of prompts.

        `settings` are fields of `GenerationConfig`: max_new_tokens=40, temperature=0.8, beams=4, …
        `completions` returns several (`n`).
        """
        one_completion(settings)
        found = first_texts(self.completions(prompt, **settings))
        return found[0] if isinstance(prompt, str) else found

    def completions(
        self, prompts: Data, **settings: Unpack[GenerationOptions]
    ) -> list[PromptCompletions]:
        """Generate all completions of each prompt, with tokens, scores and stop reasons."""
        return list(self.text_generator(**settings).complete(as_texts(prompts, "prompts")))

    @check_arguments
    def stream(self, prompt: str, **settings: Unpack[GenerationOptions]) -> Iterator[str]:
        """Generate the completion of a prompt, yielding text as it is decoded."""
        pieces = self.text_generator(**settings).stream(without_surrogates(prompt))
        return (piece for piece in pieces if isinstance(piece, str))

    def chat(
        self,
        messages: str | Messages,
        *,
        system: str | None = None,
        **settings: Unpack[GenerationOptions],
    ) -> str:
        """Generate the reply to a question or to messages, with the model's chat template.

        Messages are a list such as [{"role": "user", "content": "Hello!"}]; `system` is a system
        message before a single question. `settings` are those of `generate`.
        """
        if isinstance(messages, str):
            messages = make_messages(messages, system)
        elif system is not None:
            raise UsageError("Put the system message into the messages, or give one question.")
        one_completion(settings)
        generator = self.text_generator(**settings)
        done = generator.complete_encoded([(0, generator.encode_chat(messages))])
        [text] = first_texts(done)
        return text

    def text_generator(self, **settings: Unpack[GenerationOptions]) -> TextGenerator:
        """Return a text generator; settings that are None have their default."""
        return TextGenerator(
            network=self.network,
            tokenizer=self.require_tokenizer(),
            encoder_tokenizer=self.require_encoder_tokenizer(),
            config=GenerationConfig.of(settings),
        )

    @check_arguments
    def embed(
        self,
        texts: Data,
        *,
        pooling: str | None = None,
        layer: Layer | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        precision: str = "auto",
    ) -> Floats:
        """Compute one vector for each text, (n, hidden_size).

        `pooling` is mean, cls, last, max, …, by default the model's own; `layer` is one layer, or
        several to average. `precision` is fp32, bf16 (cosine similarity above 0.9999 to fp32), or
        auto: bf16 for encoders on a GPU.
        """
        embedder = self.embedder(
            pooling=pooling, layer=layer, normalize=normalize, prompt=prompt, precision=precision
        )
        return embed(embedder, texts)

    @check_arguments
    def embed_tokens(self, text: str, *, layer: Layer | None = None) -> list[TokenVector]:
        """Compute one vector for each token of a text, with the token's character span."""
        return embed_tokens(self.embedder(layer=layer), text)

    @check_arguments
    def index(self, file: str | Path, *, place: str | Path | None = None) -> SearchIndex:
        """Embed all rows of a file into a search index, stored beside the file or at `place`."""
        return open_index(self.embedder(normalize=True, role="document"), file, path=place)

    @check_arguments
    def search(self, where: Data | SearchIndex, query: str, *, top: int = 5) -> list[SearchHit]:
        """Find the texts of a list, an index or a file that are nearest to a query, best first."""
        if isinstance(where, str | Path):
            where = self.index(where)
        if not isinstance(where, SearchIndex):
            texts = as_texts(where, "where")
            embedder = self.embedder(normalize=True, role="document")
            where = SearchIndex(embed(embedder, texts), texts)
        return search(self.embedder(normalize=True, role="query"), where, query, top=top)

    def embedder(
        self,
        *,
        pooling: str | None = None,
        layer: Layer | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        precision: str = "auto",
        role: str = "",
        batch_tokens: int = 0,
    ) -> Embedder:
        """Return an embedder with the options of `embed`.

        `role` is document or query, for models with a prompt for each.
        """
        prompts = self.sentence_encoder.prompts if self.sentence_encoder is not None else {}
        of_role = next((name for name in PROMPTS.get(role, ()) if name in prompts), None)
        embedder = make_embedder(
            self.network,
            self.input_tokenizer(),
            self.sentence_encoder,
            pooling=pooling,
            layer=layer,
            normalize=normalize,
            prompt=of_role if prompt is None else prompt,
            precision=precision,
        )
        return replace(embedder, batch_tokens=batch_tokens)
