"""The playground in Chromium: every tab, streams, errors, keyboard, phones, quoting of samples."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pytest
from sklearn.decomposition import PCA

import firth
from firth.serve.app import make_app
from tests.nightly import mostly_nightly
from tests.serve.conftest import running, task_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

TABS = ("fill", "generate", "predict", "search", "prompt", "attention", "masking")
EVIL = "<img src=x onerror=alert(1)> </script> 'quoted' \"twice\" $HOME `id` \\ é 😀"
KEY = "secret-key-of-this-test"


@pytest.fixture(scope="module")
def models(served_models: dict[str, firth.Model]) -> dict[str, firth.Model]:
    tasks = {"sentiment": "classify", "names": "tag", "questions": "span"}
    return served_models | {name: task_model(task, task) for name, task in tasks.items()}


@pytest.fixture(scope="module")
def server(models: dict[str, firth.Model]) -> Iterator[str]:
    with running(make_app(models)) as address:
        yield f"{address}/"


@pytest.fixture
def browse(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open the playground; at the end nothing was requested elsewhere, and nothing reported."""
    outside: list[str] = []
    reported: list[str] = []
    opened: list[Page] = []

    def open_page(
        address: str, tab: str = "fill", *, width: int = 1280, dark: bool = False
    ) -> Page:
        scheme: Any = "dark" if dark else "light"
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.set_default_timeout(15_000)

        def watch(url: str) -> None:
            if not url.startswith((address, "data:")):
                outside.append(url)

        page.on("request", lambda request: watch(request.url))
        page.on("console", lambda message: reported.append(message.text))
        page.on("pageerror", lambda error: reported.append(str(error)))
        page.on("dialog", lambda dialog: reported.append(dialog.message))
        page.goto(f"{address}#{tab}")
        opened.append(page)
        return page

    yield open_page
    assert not outside
    # A status of 400 and above is reported by the browser itself.
    assert not [text for text in reported if "Failed to load resource" not in text]
    for page in opened:
        page.close()


def panel(page: Page, tab: str) -> Locator:
    return page.locator(f"#panel-{tab}")


def run(page: Page, tab: str) -> Locator:
    """Press the button of a tab, wait for the end, and return its result."""
    own = panel(page, tab)
    own.locator(".primary:visible").click()
    own.locator(".time:visible", has_text=" s").wait_for()
    return own.locator(".result:visible")


def sample(page: Page, tab: str, language: str) -> str:
    own = panel(page, tab)
    own.locator(f"[data-language={language}]:visible").click()
    return own.locator("pre:visible").inner_text()


def test_fill(server: str, models: dict[str, firth.Model], browse: Callable[..., Page]) -> None:
    page = browse(server)
    text = "The [MASK] barked at the [MASK]."
    page.fill("#panel-fill textarea", text)
    found = run(page, "fill")
    shown = found.locator("tbody").all()
    expected = models["encoder"].fill(text, top=8)
    assert [one.locator("th").all_inner_texts() for one in shown] == [
        [candidate.token for candidate in blank] for blank in expected
    ]
    assert found.locator("mark").all_inner_texts() == [blank[0].token for blank in expected]


def test_a_stream_appears_token_by_token(
    server: str, models: dict[str, firth.Model], browse: Callable[..., Page]
) -> None:
    page = browse(server, "generate")
    own = panel(page, "generate")
    own.locator("input[type=range]").first.fill("0")  # greedy
    own.locator("input[type=number]").first.fill("30")
    own.locator(".result").evaluate(
        "box => { window.moments = new Set(); new MutationObserver(() =>"
        " window.moments.add(Math.round(performance.now()))).observe("
        "box, { childList: true, subtree: true }); }"
    )
    found = run(page, "generate")
    assert page.evaluate("window.moments.size") >= 8
    prompt = own.locator("textarea").input_value()
    expected = models["decoder"].generate(prompt, max_new_tokens=30)
    tokens = found.locator(".token")
    assert "".join(tokens.all_text_contents()) == expected
    tokens.nth(3).hover()
    tip = page.locator(".token-tip")
    assert tip.locator("tr").count() == 5
    assert "%" in tip.inner_text()
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == tokens.nth(1).text_content()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_strategies_side_by_side(
    server: str, models: dict[str, firth.Model], browse: Callable[..., Page]
) -> None:
    page = browse(server, "generate")
    own = panel(page, "generate")
    own.get_by_label("Method").select_option("many")
    assert not own.get_by_label("Temperature").is_visible()
    own.get_by_label("Maximum tokens").fill("8")
    found = run(page, "generate")
    texts = {
        card.locator("h3").inner_text(): card.locator(".token-text").text_content() or ""
        for card in found.locator(".card").all()
    }
    prompt = own.locator("textarea").input_value()
    how = {"greedy": {}, "4 beams": {"method": "beam", "beams": 4}}
    for name, settings in how.items():
        expected = models["decoder"].generate(prompt, max_new_tokens=8, **settings)
        assert texts[name] == prompt + expected
    assert set(texts) == {*how, "temperature 0.5", "temperature 1.0", "temperature 2.0"}


def test_a_stream_that_breaks_is_an_error(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server, "generate")
    first = 'data: {"choices": [{"text": "", "logprobs": {"tokens": [], "token_logprobs": []}}]}'
    page.route("**/v1/completions", lambda route: route.fulfill(status=200, body=f"{first}\n\n"))
    page.click("#panel-generate .primary")
    page.locator(".failure", has_text="before the text was complete").wait_for()


def test_a_stream_can_be_stopped(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server, "generate")
    own = panel(page, "generate")
    own.get_by_label("Maximum tokens").fill("1000")
    own.locator(".primary").click()
    own.locator(".token").nth(2).wait_for()
    own.get_by_role("button", name="Stop").click()
    assert own.locator(".card .note").inner_text() == "stopped"
    assert own.locator(".failure").is_hidden()


def test_fine_tuned_models(
    server: str, models: dict[str, firth.Model], browse: Callable[..., Page]
) -> None:
    page = browse(server, "predict")
    own = panel(page, "predict")
    found = run(page, "predict")
    texts = own.locator("textarea:visible").input_value().splitlines()
    best = [card.locator("th").first.inner_text() for card in found.locator(".card").all()]
    assert best == [one["label"] for one in models["sentiment"].predict(texts) if one]
    own.get_by_role("tab", name="Tag").click()
    found = run(page, "predict")
    answer = models["names"].predict(own.locator("textarea:visible").input_value())
    marks = [mark.evaluate("mark => mark.firstChild.data") for mark in found.locator("mark").all()]
    assert marks == [entity["text"] for entity in answer["entities"]]
    own.get_by_role("tab", name="Answer").click()
    context = "Ünal 😀 lives in Stonebridge. He is seven years old."
    own.locator("textarea:visible").fill(context)
    found = run(page, "predict")
    row = {"question": own.get_by_label("Question").input_value(), "context": context}
    [expected] = models["questions"].predict([row])
    assert expected
    assert found.locator("mark").inner_text() == expected["answer"]
    assert found.locator(".marked").inner_text() == context


def test_samples_of_texts_and_pairs(server: str, browse: Callable[..., Page]) -> None:
    """Texts and pairs of texts have other columns, so each kind is predicted by itself."""
    page = browse(server, "predict")
    box = panel(page, "predict").locator("textarea:visible")
    box.fill("One text.\nIt rained. || It was wet.\nA second text.")
    texts = ["One text.", "A second text."]
    pairs = [{"text_a": "It rained.", "text_b": "It was wet."}]
    calls: list[Any] = []

    def predict(model: str, data: Any) -> Any:
        calls.append(data)
        return SimpleNamespace(answers=None)

    code = sample(page, "predict", "python").removeprefix("import firth")
    exec(code, {"firth": SimpleNamespace(predict=predict)})
    assert calls == [texts, pairs]
    first, *second = sample(page, "predict", "shell").split("\n")
    assert shlex.split(first)[-2:] == texts
    assert json.loads(shlex.split(" ".join(second))[3]) == pairs[0]
    body = shlex.split(sample(page, "predict", "curl"))[-1]
    assert json.loads(body)["texts"] == [texts[0], ["It rained.", "It was wet."], texts[1]]


def test_search(server: str, models: dict[str, firth.Model], browse: Callable[..., Page]) -> None:
    page = browse(server, "search")
    found = run(page, "search")
    texts = page.locator("#panel-search textarea").input_value().splitlines()
    hits = models["encoder"].search(texts, "bad weather", top=len(texts))
    shown = found.locator(".hits li").all_inner_texts()
    assert [line.split("\n")[-1] for line in shown] == [hit.text for hit in hits]
    assert float(shown[0].split("\n")[-2]) == pytest.approx(hits[0].score, abs=1e-3)
    assert found.locator(".spot").count() == len(texts) + 1
    found.locator(".hits li").nth(2).hover()
    assert found.locator(".spot.chosen").get_attribute("aria-label") == hits[2].text


def test_the_picture_shows_principal_components(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server, "search")
    vectors = np.random.default_rng(0).normal(size=(12, 30)) * np.linspace(3, 1, 30)
    reference = PCA(2).fit(vectors[:11])
    made = page.evaluate(
        "async (rows) => (await import('./playground/files/scripts/projection.js'))"
        ".principalComponents(rows.slice(0, 11), rows)",
        vectors.tolist(),
    )
    places, expected = np.array(made["places"]), reference.transform(vectors)
    assert np.abs(places) == pytest.approx(np.abs(expected), abs=1e-3)
    assert made["fractions"] == pytest.approx(reference.explained_variance_ratio_, abs=1e-6)


def test_prompt(server: str, models: dict[str, firth.Model], browse: Callable[..., Page]) -> None:
    page = browse(server, "prompt")
    own = panel(page, "prompt")
    own.get_by_role("button", name="Add a demonstration").click()
    page.keyboard.type("The songs were dull.")
    page.keyboard.press("Tab")
    page.keyboard.type("terrible")
    own.get_by_label("Remove this demonstration").first.click()
    found = run(page, "prompt")
    expected = firth.prompt(
        models["decoder"],
        own.get_by_label("Text", exact=True).last.input_value(),
        task="classify",
        labels=["wonderful", "terrible"],
        template="{text} It was {label}.",
        examples=[
            ("The pictures are charming.", "wonderful"),
            ("The songs were dull.", "terrible"),
        ],
    )
    assert found.locator(".big").inner_text() == expected.answers[0]["label"]
    assert found.locator(".marked").inner_text() == expected.prompt


def test_attention(
    server: str, models: dict[str, firth.Model], browse: Callable[..., Page]
) -> None:
    page = browse(server, "attention")
    found = run(page, "attention")
    text = page.locator("#panel-attention textarea").input_value()
    layers, heads, tokens, _ = np.shape(models["encoder"].attention(text))
    assert found.locator("[role=gridcell]").count() == layers * heads
    assert found.locator("[role=option]").count() == tokens
    found.get_by_role("gridcell", name="Layer 2, head 3").click()
    assert "Layer 2, head 3" in found.get_by_role("status").inner_text()


def test_masking(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server, "masking")
    own = panel(page, "masking")
    own.get_by_label("Objective").select_option("masked")  # is shown at once
    found = own.locator(".result")
    shown = found.locator(".example")
    shown.nth(2).wait_for()
    text = own.locator("textarea").input_value()
    examples, _ = firth.show_objectives(text, ["masked"], tokenizer="words")
    for one, expected in zip(shown.all(), examples, strict=True):
        tokens = one.locator("li > span:first-child").all_inner_texts()
        assert tokens == [word.token for word in expected.reads]
        assert one.locator(".target").all_inner_texts() == expected.predicts["masked"]
    own.get_by_label("Objective").select_option("causal")
    found.locator("h3", has_text="causal").wait_for()


def test_errors_are_shown_in_words(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server)
    page.fill("#panel-fill textarea", "There is no blank here.")
    page.click("#panel-fill .primary")
    alert = panel(page, "fill").get_by_role("alert")
    alert.wait_for()
    assert "blank" in alert.inner_text()
    page.route("**/fill", lambda route: route.abort())
    page.click("#panel-fill .primary")
    page.locator(".failure", has_text="does not answer").wait_for()
    page.unroute("**/fill")
    busy = {"status": 429, "headers": {"Retry-After": "7"}, "body": "{}"}
    page.route("**/fill", lambda route: route.fulfill(**busy))
    page.click("#panel-fill .primary")
    page.locator(".failure", has_text="7 s").wait_for()
    page.unroute("**/fill")
    page.fill("#panel-fill textarea", "A [MASK].")
    run(page, "fill")
    assert alert.is_hidden()


def test_texts_are_never_markup(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server)
    page.fill("#panel-fill textarea", f"{EVIL} [MASK]")
    found = run(page, "fill")
    assert EVIL in found.locator(".filled").inner_text()
    page.click("#tab-masking")
    page.fill("#panel-masking textarea", EVIL)
    page.get_by_label("Objective").select_option("causal")
    assert "onerror" in run(page, "masking").inner_text()
    assert page.locator("img").count() == 0


def is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


@pytest.mark.parametrize("text", [f"{EVIL}\nand [MASK]", "-x [MASK]"])
def test_samples_are_quoted(server: str, browse: Callable[..., Page], text: str) -> None:
    page = browse(server)
    page.fill("#panel-fill textarea", text)
    words = shlex.split(sample(page, "fill", "shell"))
    assert words[:2] == ["firth", "fill"]
    assert text in words[words.index("--") + 1 :] if text[0] == "-" else text in words
    calls = [one for one in ast.walk(ast.parse(sample(page, "fill", "python"))) if is_call(one)]
    assert [ast.literal_eval(one) for one in calls[-1].args] == ["stories-encoder", text]
    words = shlex.split(sample(page, "fill", "curl"))
    assert words[:2] == ["curl", f"{server}fill"]
    assert json.loads(words[words.index("-d") + 1])["text"] == text


def test_samples_are_copied(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("firth fill stories-encoder ")


def test_the_page_asks_for_the_api_key(
    models: dict[str, firth.Model], browse: Callable[..., Page]
) -> None:
    app = make_app({"encoder": models["encoder"]}, api_key=KEY)
    with running(app) as address:
        page = browse(f"{address}/")
        for key in ("wrong key", KEY):
            page.locator("dialog[open] input").fill(key)
            page.keyboard.press("Enter")
        page.locator("#panel-fill").wait_for()
        run(page, "fill")
        code = sample(page, "fill", "curl")
        assert "Bearer $FIRTH_API_KEY" in code
        assert KEY not in code
        page.reload()  # the key is kept for this tab of the browser
        page.locator("#panel-fill").wait_for()


def test_the_keyboard_is_enough(server: str, browse: Callable[..., Page]) -> None:
    page = browse(server)
    page.locator("#panel-fill select").first.wait_for()  # the scripts have run
    page.locator("#tab-fill").focus()
    for key, tab in [("ArrowRight", "generate"), ("End", "masking"), ("ArrowRight", "fill")]:
        page.keyboard.press(key)
        page.wait_for_function(f"document.activeElement.id === 'tab-{tab}'")
        assert page.get_attribute(f"#tab-{tab}", "aria-selected") == "true"
        assert page.locator("[role=tabpanel][id^=panel]:visible").get_attribute("id") == (
            f"panel-{tab}"
        )
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.keyboard.press("Tab")
    page.keyboard.press("Control+Enter")
    page.locator("#panel-fill .bars").wait_for()


def test_a_tab_without_a_model_says_which_one_it_needs(
    server: str, browse: Callable[..., Page]
) -> None:
    page = browse(server)
    alone = {"id": "m", "object": "model", "capabilities": ["tokenize"], "architecture": "decoder"}
    body = json.dumps({"object": "list", "data": [alone]})
    page.route("**/v1/models", lambda route: route.fulfill(status=200, body=body))
    page.reload()
    wanted = ["stories-encoder", "stories-decoder", "--task classify", "stories-encoder"]
    for tab, name in zip(TABS, [*wanted, "stories-decoder", "stories-encoder"], strict=False):
        page.click(f"#tab-{tab}")
        assert name in panel(page, tab).locator(".missing:visible").inner_text()
    page.click("#tab-masking")  # needs no network
    page.get_by_label("Objective").select_option("causal")
    run(page, "masking")


OFTEN = (390, False, ("fill", "predict", "search"))


@pytest.mark.parametrize(
    ("width", "dark", "tabs"),
    mostly_nightly([OFTEN, (390, False, TABS), (320, True, TABS)], always=[OFTEN]),
)
def test_nothing_sticks_out_of_a_phone(
    server: str, browse: Callable[..., Page], width: int, dark: bool, tabs: tuple[str, ...]
) -> None:
    page = browse(server, width=width, dark=dark)
    for tab in tabs:
        page.click(f"#tab-{tab}")
        if tab == "generate":
            page.get_by_label("Maximum tokens").first.fill("10")
        if tab == "masking":
            page.get_by_label("Objective").select_option("masked-nsp")
        run(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


@pytest.mark.nightly
@pytest.mark.parametrize("tab", [tab for tab in TABS if tab != "predict"])
def test_samples_run(server: str, browse: Callable[..., Page], tab: str, tmp_path: Path) -> None:
    """The code of each tab runs as it is pasted into a shell or a file."""
    page = browse(server, tab)
    if tab == "generate":
        page.get_by_label("Maximum tokens").first.fill("5")
    (tmp_path / "firth").write_text(f'#!/bin/sh\nexec {sys.executable} -m firth "$@"\n')
    (tmp_path / "firth").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    commands = [
        ["sh", "-ec", sample(page, tab, "shell")],
        [sys.executable, "-c", sample(page, tab, "python")],
    ]
    if shutil.which("curl"):
        commands.append(["sh", "-ec", sample(page, tab, "curl").replace("curl ", "curl -f ", 1)])
    for number, command in enumerate(commands):
        folder = tmp_path / str(number)  # each may write the same file
        folder.mkdir()
        done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
