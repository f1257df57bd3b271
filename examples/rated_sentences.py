"""Make labelled rows of sentences that 20 people each have rated, for `mis-server calibrate` and `mis-bench evaluate`.

The sentences come with the sources of vaderSentiment (MIT licence): films and tweets, from C. J. Hutto and E. Gilbert,
"VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text", ICWSM 2014. A sentence is positive
or negative by the sign of its mean rating, from -4 to 4; those within half a point of 0 are left out. They are asked
about in two wordings: with the three examples of `rank_reviews.py`, and as a question to be answered by yes or no.
Rows called `bare` are the sentences alone, to be asked in all wordings of `wordings.json`.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    python examples/rated_sentences.py vaderSentiment-3.3.2.tar.gz --output rated
"""

import argparse
import hashlib
import html
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

from review_prompt import AFTER_ITEM, LABELS, QUERY

SOURCES = {"films": "movieReviewSnippets_GroundTruth.txt", "tweets": "tweets_GroundTruth.txt"}
ROWS = {"fit": 300, "test": 1500}
WORDINGS = {
    "examples": (QUERY, AFTER_ITEM, LABELS),
    "yes-no": ("Text: ", "\nQuestion: Is the text positive? Answer yes or no.\nAnswer:", (" yes", " no")),
}
BARE = {"bare": ("", "", LABELS)}
LEAST_MEAN = 0.5


def main() -> None:
    """Write a file of rows to fit to and one of others, for films and for tweets, in both wordings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="The source distribution of vaderSentiment.")
    parser.add_argument("--output", type=Path, default=Path("rated"), help="Folder of the rows.")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    wordings = {
        name: {"query": query, "item": f"{{{{ item }}}}{after}", "labels": labels}
        for name, (query, after, labels) in WORDINGS.items()
    }
    (options.output / "wordings.json").write_text(json.dumps(wordings, indent=1) + "\n")
    for source, name in SOURCES.items():
        sentences = list(dict(_sentences(options.archive, name)).items())
        # By a digest of the text: no order of the file, and the same rows everywhere.
        sentences.sort(key=lambda each: hashlib.sha256(each[0].encode()).hexdigest())
        for part, count in ROWS.items():
            chosen, sentences = sentences[:count], sentences[count:]
            for wording, (query, after, labels) in (WORDINGS | BARE).items():
                rows = [
                    {"query": query, "item": text + after, "labels": labels, "label": int(mean < 0), "slice": source}
                    for text, mean in chosen
                ]
                path = options.output / f"{source}-{wording}-{part}.jsonl"
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
                print(f"{path}: {len(rows)} rows")


def _sentences(archive: Path, name: str) -> Iterator[tuple[str, float]]:
    """Yield sentences and their mean ratings."""
    with tarfile.open(archive) as outer:
        inner = next(each for each in outer.getmembers() if each.name.endswith("hutto_ICWSM_2014.tar.gz"))
        packed = outer.extractfile(inner)
        assert packed is not None, "it is a file"
        with tarfile.open(fileobj=io.BytesIO(packed.read())) as files:
            file = files.extractfile(f"hutto_ICWSM_2014/{name}")
            assert file is not None, "it is a file, too"
            for line in file.read().decode("utf-8", "replace").splitlines():
                _, mean, text = line.split("\t", 2)
                if abs(float(mean)) >= LEAST_MEAN:
                    yield html.unescape(text).strip(), float(mean)


if __name__ == "__main__":
    main()
