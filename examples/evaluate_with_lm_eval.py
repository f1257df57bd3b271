"""Run lm-evaluation-harness against a server, and against transformers on the same checkpoint, and compare.

Three tasks of made-up texts: multiple choice, log-likelihood, rolling perplexity. Prompts go to the server as token
ids, then as texts. Weights are random: equal numbers show that the server is right, not that the model is.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from mis_testing import tiny_checkpoint
from mis_testing.server import running_server

WORDS = ("cats", "dogs", "rain", "yes", "no", "answer", "query", "document", "quick", "lazy", "the", "a", "of", "and")
TASKS: dict[str, dict[str, Any]] = {
    "made_up_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "made_up_loglikelihood": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{' ' + choices[answer]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "made_up_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{page}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
    },
}
DOCUMENTS = 12
CONTEXT = 1024  # more tokens than any text has: the two would cut longer ones into different windows
TOLERANCE = 1e-4  # of a token's log-probability


def main() -> None:
    """Run both, and fail unless they agree."""
    with tempfile.TemporaryDirectory(prefix="mis-lm-eval-") as folder:
        model, tasks = tiny_checkpoint(Path(folder, "tiny-random"), dtype="float32"), Path(folder, "tasks")
        write_tasks(tasks)
        arguments = f"pretrained={model},dtype=float32,max_length={CONTEXT}"
        expected = evaluate("hf", arguments, tasks, Path(folder, "hf"))
        with running_server(model, "--dtype", "float32", "--served-model-name", "tiny") as server:
            for tokenized in (True, False):
                arguments = (
                    f"model=tiny,base_url={server.base_url}/v1/completions,tokenizer={model},"
                    f"tokenizer_backend=huggingface,tokenized_requests={tokenized},num_concurrent=4,max_length={CONTEXT}"
                )
                found = evaluate("local-completions", arguments, tasks, Path(folder, f"server-{tokenized}"))
                worst = compare(found, expected, model)
                print(f"{'ids' if tokenized else 'texts'}: at most {worst:.1e} apart in a token's log-probability")
    for task, metrics in found["results"].items():
        print(task, {name: value for name, value in metrics.items() if isinstance(value, float)})


def write_tasks(folder: Path) -> None:
    """Write what lm_eval reads: a file of documents, and a task of each kind."""
    chance = random.Random(5)
    folder.mkdir()

    def sentence(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    documents = [
        {
            "question": f"Question: {sentence(chance.randint(3, 40))}?\nAnswer:",
            "choices": [sentence(chance.randint(1, 4)) for _ in range(4)],
            "answer": chance.randrange(4),
            "page": "\n".join(sentence(12) for _ in range(chance.randint(1, 12))),
        }
        for _ in range(DOCUMENTS)
    ]
    (folder / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents), "utf-8")
    files = {"data_files": {"test": str(folder / "documents.jsonl")}}
    for name, task in TASKS.items():
        whole = {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(whole), "utf-8")  # JSON is YAML


def evaluate(model: str, arguments: str, tasks: Path, output: Path) -> dict[str, Any]:
    """Run the harness; return its results, with the samples of each task."""
    program = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--batch_size", "4"]
    chosen = ["--tasks", ",".join(TASKS), "--include_path", str(tasks), "--output_path", str(output), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks.parent), "NO_PROXY": "*"}
    subprocess.run(
        [*program, *chosen], check=True, env=os.environ | offline, stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    (results,) = output.glob("**/results_*.json")
    samples = {task: list(lines(output, task)) for task in TASKS}
    return {"results": json.loads(results.read_text("utf-8"))["results"], "samples": samples}


def lines(output: Path, task: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of a task in the order of its documents."""
    (path,) = output.glob(f"**/samples_{task}_*.jsonl")
    yield from sorted(map(json.loads, path.read_text("utf-8").splitlines()), key=lambda sample: sample["doc_id"])


def compare(found: dict[str, Any], expected: dict[str, Any], model: Path) -> float:
    """Fail unless metrics are equal and log-probabilities close; return the largest difference of a token's."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    worst = 0.0
    for task in TASKS:
        for ours, theirs in zip(found["samples"][task], expected["samples"][task], strict=True):
            for text, own, other in zip(texts(theirs), answers(ours), answers(theirs), strict=True):
                difference = abs(own[0] - other[0]) / len(tokenizer.encode(text))
                check(difference <= TOLERANCE, f"{task}: {own[0]}, and {other[0]} with transformers, for {text!r}")
                worst = max(worst, difference)
                check(own[1:] == other[1:], f"{task}: one is greedy, the other is not: {text!r}")
        for metric, value in expected["results"][task].items():
            own = found["results"][task][metric]
            is_close = own == value or (isinstance(value, float) and abs(own - value) <= 1e-3 * abs(value))
            is_exact = own == value or "perplexity" in metric
            check(is_close and is_exact, f"{task}: {metric} is {own}, and {value} with transformers")
    return worst


def texts(sample: dict[str, Any]) -> list[str]:
    """Return the texts whose log-probabilities a sample has: what is scored, without its context."""
    return [each["arg_1"] if "arg_1" in each else each["arg_0"] for each in sample["arguments"].values()]


def answers(sample: dict[str, Any]) -> list[list[Any]]:
    """Return the log-probability of each of them, and whether it is the greedy one."""
    given = [each[0] for each in sample["resps"]]
    return [[float(each)] if not isinstance(each, list) else [float(each[0]), str(each[1])] for each in given]


def check(holds: bool, message: str) -> None:
    """End with a message unless something holds."""
    if not holds:
        sys.exit(message)


if __name__ == "__main__":
    main()
