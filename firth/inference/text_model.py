"""`TextModel`: a network and its tokenizer, and what they compute of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, Unpack, overload

import torch
from torch import Tensor

from firth.data.input_files import as_texts
from firth.data.memory import Data
from firth.data.readers import INVALID
from firth.formats.sentence_transformers import SentenceEncoderConfig
from firth.inference.embedding.embedder import Embedder, Layer, make_embedder
from firth.inference.embedding.semantic_search import SearchHit, SearchIndex, open_index, search
from firth.inference.embedding.vectors import Floats, TokenVector, embed, embed_tokens
from firth.inference.explanation import explain_blanks, explain_prompt, require_transformer
from firth.inference.forward_pass import ForwardPass
from firth.inference.generation.chat_template import Messages, make_messages
from firth.inference.generation.generation_config import (
    GenerationConfig,
    GenerationOptions,
    one_completion,
)
from firth.inference.generation.text_generation import PromptCompletions, TextGenerator
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
from firth.inference.padded_forward import padded_logits
from firth.inference.scoring.log_likelihood import check_length
from firth.inference.scoring.text_scoring import TextScore, score_texts
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters, max_input_length
from firth.objectives.registry import infill_format
from firth.quantization.int8 import count_int8_weights
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.devices import DTYPES, Dtype, find_dtype, restored_torch_state, select_device
from firth.utils.errors import MismatchError, UsageError
from firth.utils.notebook import HtmlRepr

# Names under which sentence encoders store the prompts of documents and of queries.
PROMPTS = {"document": ("document", "passage", "corpus"), "query": ("query",)}
ENCODER_FOLDER = "reader"  # with the tokenizer of an encoder that has its own


@dataclass(repr=False)
class TextModel(HtmlRepr):
    """A network and its tokenizer."""

    network: LanguageNetwork
    tokenizer: Tokenizer | None
    path: Path | None = None
    source: str | None = None  # the argument of `load`: a path or a name
    sentence_encoder: SentenceEncoderConfig | None = None  # pooling and prompts for embeddings
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with a vocabulary of its own
    objective: str | None = None  # of its pre-training, if run.json names it
    generation_config: dict[str, Any] = field(default_factory=dict)  # generation_config.json

    @property
    def config(self) -> ModelConfig:
        """Return the config of the network."""
        return self.network.config

    @property
    def transformer(self) -> Transformer:
        """Return the network; raise an error if it is no Transformer, which some functions need."""
        return require_transformer(self.network)

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters, quantized ones included."""
        return count_parameters(self.network) + count_int8_weights(self.network)

    @property
    def reads_left_context_only(self) -> bool:
        """Return whether the model is a decoder that was not pre-trained to fill blanks."""
        return self.config.architecture == "decoder" and infill_format(self.objective) != "masks"

    @property
    def generates(self) -> bool:
        """Return whether the model was fine-tuned for a task with generated outputs."""
        return False

    @restored_torch_state()
    def to(
        self,
        device: str | torch.device | torch.dtype | None = None,
        dtype: Dtype = None,
    ) -> Self:
        """Move the network to a device, or convert its weights to a dtype; return the model."""
        if isinstance(device, torch.dtype) or (isinstance(device, str) and device in DTYPES):
            device, dtype = None, device
        target = None if device is None else select_device(str(device))
        dtype = find_dtype(dtype)
        if count_int8_weights(self.network) and (dtype or (target and target.type != "cpu")):
            raise UsageError("Int8 weights stay on the CPU: load the model without weights='int8'.")
        self.network.to(device=target, dtype=dtype)
        return self

    @check_arguments
    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text as the network reads it, with the special tokens around it.

        They are the rows of `logits` and `hidden_states`. `model.tokenizer.pieces(text)` has no
        special tokens.
        """
        return self._input_tokenizer().encoding(_repaired(text), specials=True).tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits at each position: ids [batch, length] -> [batch, length, vocab].

        The attention mask is 1 for tokens and 0 for padding, on either side of a row: padding has
        no position, is not attended to, and its logits are 0. Decoders predict the next token,
        encoders the (masked) token itself. An encoder-decoder returns the logits of the decoder,
        whose inputs are `decoder_input_ids`; by default the input ids shifted right by one, as in
        BART. The network computes gradients, and applies dropout in training mode
        (`model.network.train()`).
        """
        return padded_logits(
            self.network,
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )

    @overload
    def logits(self, text: str) -> Tensor: ...  # type: ignore[overload-overlap]

    @overload
    def logits(self, text: Data) -> list[Tensor]: ...

    @torch.no_grad()
    def logits(self, text: Data) -> Tensor | list[Tensor]:
        """Compute the logits of a text: tokens × vocabulary, a row for each of `tokens(text)`.

        A row of a decoder predicts the next token, of an encoder the token itself. The decoder of
        an encoder-decoder predicts the text, token by token, from the text itself and the tokens
        before; use `forward` for other outputs. Several texts give a list.
        """
        if not isinstance(text, str):
            return [self.logits(one) for one in as_texts(text, "text")]
        ids = self._input_ids(text)
        target = None
        if self.encoder_tokenizer is not None:  # here rows are the decoder's tokens
            start = self.config.decoder_start_token_id or 0
            target = torch.tensor([[start, *self.require_tokenizer().encode(_repaired(text))][:-1]])
        return self.forward(ids[None], decoder_input_ids=target)[0]

    @overload
    def hidden_states(self, text: str) -> Tensor: ...  # type: ignore[overload-overlap]

    @overload
    def hidden_states(self, text: Data) -> list[Tensor]: ...

    @torch.no_grad()
    def hidden_states(self, text: Data) -> Tensor | list[Tensor]:
        """Compute the hidden states of a text: layers + 1 × tokens × hidden size.

        The first are the embeddings, the last the network's output. Those of an encoder-decoder are
        the encoder's: the decoder has its own tokens. Several texts give a list.
        """
        if not isinstance(text, str):
            return [self.hidden_states(one) for one in as_texts(text, "text")]
        ids, layers = self._input_ids(text), list[Tensor]()
        mask = (Mask if self.config.has_encoder else Mask.causal)([len(ids)], device=ids.device)
        last = self.network.encode(ids, mask, layers=layers)
        return torch.stack(layers or [last])

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
            fine_tuned=self.generates,
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
        text, encoder = _repaired(text), self.config.architecture == "encoder"
        if encoder or (not self.reads_left_context_only and has_blanks(text)):
            return explain_blanks(self.blank_filler(), text, answers=answers, top=top)
        generator = self.text_generator()
        prompt = generator.encode_prompt(text)
        return explain_prompt(generator, prompt, answer=" ".join(answers), top=top)

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
        found = [done.completions[0].text for done in self.completions(prompt, **settings)]
        return found[0] if isinstance(prompt, str) else found

    def completions(
        self, prompts: Data, **settings: Unpack[GenerationOptions]
    ) -> list[PromptCompletions]:
        """Generate all completions of each prompt, with tokens, scores and stop reasons."""
        return list(self.text_generator(**settings).complete(as_texts(prompts, "prompts")))

    @check_arguments
    def stream(self, prompt: str, **settings: Unpack[GenerationOptions]) -> Iterator[str]:
        """Generate the completion of a prompt, yielding text as it is decoded."""
        pieces = self.text_generator(**settings).stream(_repaired(prompt))
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
        [done] = generator.complete_encoded([(0, generator.encode_chat(messages))])
        return done.completions[0].text

    def text_generator(self, **settings: Unpack[GenerationOptions]) -> TextGenerator:
        """Return a text generator; settings that are None have their default."""
        return TextGenerator(
            network=self.network,
            tokenizer=self.require_tokenizer(),
            encoder_tokenizer=self.require_encoder_tokenizer(),
            fine_tuned=self.generates,
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
        tokenizer = self.require_encoder_tokenizer() or self.require_tokenizer()
        embedder = make_embedder(
            self.network,
            tokenizer,
            self.sentence_encoder,
            pooling=pooling,
            layer=layer,
            normalize=normalize,
            prompt=of_role if prompt is None else prompt,
            precision=precision,
        )
        return replace(embedder, batch_tokens=batch_tokens)

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raise an error if there is none."""
        if self.tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} has no tokenizer, which text input needs."
            )
        return self.tokenizer

    def require_encoder_tokenizer(self) -> Tokenizer | None:
        """Return the encoder's own tokenizer; None if encoder and decoder share one."""
        if self.config.encoder is not None and self.encoder_tokenizer is None:
            raise MismatchError(
                f"{self.source or self.path} lacks the tokenizer of its encoder, in the folder "
                f"{ENCODER_FOLDER}."
            )
        return self.encoder_tokenizer

    def _input_tokenizer(self) -> Tokenizer:
        return self.require_encoder_tokenizer() or self.require_tokenizer()

    def _input_ids(self, text: str) -> Tensor:
        """Return the token ids of a text, with special tokens."""
        ids = self._input_tokenizer().encode(_repaired(text), specials=True)
        check_length(len(ids), max_input_length(self.network))
        return torch.tensor(ids, dtype=torch.long, device=self.network.device)

    def __repr__(self) -> str:
        size, name = f"{self.num_parameters:,} parameters", type(self).__name__
        parts = [str(self.source or self.path or "unsaved"), self.config.architecture, size]
        dtype = str(self.network.dtype).removeprefix("torch.")
        dtype = "int8" if count_int8_weights(self.network) else dtype
        return f"{name}({', '.join([*parts, f'{dtype} on {self.network.device}'])})"


def _repaired(text: str) -> str:
    """Replace lone surrogates, which are no text."""
    return INVALID.sub("\ufffd", text)
