"""Start a server on a tiny checkpoint, score a few items with the official `openai` client, and stop.

The weights are random: the numbers show that the path works, not what a trained model would say.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from mis_testing import tiny_checkpoint
from mis_testing.server import running_server

QUERY = "A customer writes: my parcel has not arrived. Which reply helps most?"
ITEMS = [
    " I am sorry. Here is the tracking number, and a new parcel leaves today.",
    " Thank you for your order!",
    " Parcels are heavy.",
    " Please contact the carrier.",
    "",
]
LABELS = [" yes", " no"]


def main() -> None:
    """Run the demonstration."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mis-demo-") as folder:
        model = tiny_checkpoint(Path(folder) / "tiny-random")
        label_token_ids = [first_token_id(model, label) for label in LABELS]
        with console.status("Starting a server on a tiny checkpoint ..."), running_server(model) as server:
            reply, elapsed_ms = ask(server.base_url, label_token_ids)
    console.print(table_of(reply["scores"]))
    console.print(f"{len(ITEMS)} items scored in {elapsed_ms:.0f} ms, over HTTP.")
    console.print("The weights of this checkpoint are random: the scores are exact, and mean nothing.")


def ask(base_url: str, label_token_ids: list[int]) -> tuple[dict[str, Any], float]:
    """Return the server's reply and how long it took, in milliseconds."""
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": label_token_ids, "apply_softmax": True}
    with OpenAI(base_url=f"{base_url}/v1", api_key="none") as client:
        began = time.perf_counter()
        reply = client.post("/score", body=body, cast_to=object)
        elapsed_ms = (time.perf_counter() - began) * 1e3
    assert isinstance(reply, dict)
    return reply, elapsed_ms


def first_token_id(model: Path, label: str) -> int:
    """Return the first token of a label; the tiny vocabulary may need several for a word."""
    return Tokenizer.from_file(str(model / "tokenizer.json")).encode(label, add_special_tokens=False).ids[0]


def table_of(scores: list[list[float]]) -> Table:
    """Return items and their scores, best first."""
    table = Table(title=QUERY, title_justify="left", caption_justify="left")
    table.add_column("item")
    for label in LABELS:
        table.add_column(f"p({label.strip()})", justify="right")
    for item, row in sorted(zip(ITEMS, scores, strict=True), key=lambda pair: -pair[1][0]):
        table.add_row(item.strip() or "(empty)", *(f"{score:.4f}" for score in row))
    return table


if __name__ == "__main__":
    main()
