"""Every command that a page shows gets past its command line, and every option that it names exists."""

from pathlib import Path

import pytest

from documented_commands import ROOT, commands, faults
from documented_options import OF_OTHER_PROGRAMS, mentions

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_pages_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    wrong = [f"{' '.join(command)}: {fault}" for command in commands(page) for fault in faults(command)]
    assert wrong == []


def test_there_are_commands_to_check() -> None:
    programs = {command[0] for path in PAGES for command in commands(path.read_text(encoding="utf-8"))}
    assert {"mis-bench", "mis-server", "nox", "gcloud", "pip", "python"} <= programs


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("mis-bench nothing", "no command 'nothing'"),
        ("mis-bench workload --nothing", "No such option"),
        ("mis-bench profile --model x", "Missing option '--scenario'"),
        ("mis-bench profile --scenario nothing", "is not one of"),
        ("mis-bench estimate --dp zero", "is not a valid integer"),
        ("mis-bench workload one two", "unexpected extra argument"),
        ("mis-bench run --target nothing", "no target nothing"),
        ("mis-bench run --target base=engines,dtype=float32", "no target base=engines"),
        ("mis-bench compare --target engine,nothing=1 --target llama.cpp", "no option nothing=1"),
        ("mis-bench run --option nothing=1", "no option nothing=1"),
        ("mis-server serve m --nothing 1", "No such option"),
        ("mis-server serve m --dtype int4", "is not one of"),
        ("nox -s nothing", "no session nothing"),
        ("nox demo", "sessions follow -s"),
        (".venv/bin/nox -s tests_cpu tests_nothing", "no session tests_nothing"),
        ("python packages/nothing.py", "there is no packages/nothing.py"),
        ("python packages/mis-server/benchmarks/soak.py --nothing", "has no flag --nothing"),
        ("python -m mis_kernels.nothing", "no module mis_kernels.nothing"),
        ("python -m mis_core.aot --nothing", "has no flag --nothing"),
        ("python3.11 -m mis_bench nothing", "no command 'nothing'"),
        ("deploy/dense-baseline/nothing.sh", "there is no deploy/dense-baseline/nothing.sh"),
        ("RESULTS=x deploy/dense-baseline/matrix.sh --nothing", "No such option"),
        ("deploy/tpu/first-hour.sh --zone z --nothing", "has no flag --nothing"),
        ("pip install ./packages/mis-nothing", "no package packages/mis-nothing"),
        ("pip install 'mis-core[nothing]'", "no extra 'nothing'"),
        ("python -m pip install ./packages/mis-bench[nothing]", "no extra 'nothing'"),
        ("gcloud compute tpus tpu-vm start x --zone=z", "not a subcommand"),
        ("gcloud compute tpus tpu-vm delete x", "--zone is missing"),
        ("gcloud compute tpus tpu-vm delete x --zone z", "write --zone=VALUE"),
        ("gcloud compute tpus tpu-vm create x --zone=z --accelerator=v6e-1", "has no flag --accelerator"),
        ("cd x && sudo A=1 frobnicate", "frobnicate is not a program"),
    ],
)
@pytest.mark.parametrize("form", ["```bash\n{}\n```\n", "1. A list.\n\n    ```bash\n    {}\n    ```\n"])
def test_a_wrong_command_is_found(command: str, fault: str, form: str) -> None:
    found = [each for given in commands(form.format(command)) for each in faults(given)]
    assert len(found) == 1
    assert fault in found[0]


def test_a_wrong_command_within_a_sentence_is_found() -> None:
    page = "Call `mis-bench nothing --at-all` or `nox -s demo`."
    assert [bool(faults(command)) for command in commands(page)] == [True, False]


def test_commands_are_told_apart() -> None:
    page = """```bash
export A=b                 # a comment; with && signs
FOO=1 nox -s demo > out.txt && mis-bench workload \\
    probe-5-2-3
curl http://x -d '{"query":
  "of two lines"}' | python -c "import sys; sys.exit(0)"
```
"""
    assert list(commands(page)) == [
        ["export", "A=b"],
        ["nox", "-s", "demo"],
        ["mis-bench", "workload", "probe-5-2-3"],
        ["curl", "http://x", "-d", '{"query":\n  "of two lines"}'],
        ["python", "-c", "import sys; sys.exit(0)"],
    ]


@pytest.mark.parametrize(
    "command",
    [
        "mis-server score path/to/model --query q --items items.jsonl --labels ' yes' ' no'",
        "mis-server serve path/to/model --config my.toml",
        "mis-bench profile --scenario single --target mis=http://127.0.0.1:1 --profile-dir no/such/folder",
        "nox -R -s lint -- --fix",
        "python -m mis_kernels.aot --topology v6e:1x1 --quick",
        "gcloud compute tpus tpu-vm scp --recurse x:results . --zone=z",
        "URL=http://x deploy/dense-baseline/matrix.sh --all",
        "deploy/tpu/first-hour.sh --project ours --queue",
    ],
)
def test_right_commands_pass(command: str) -> None:
    page = f"```bash\n{command}\n```\n"
    assert [each for given in commands(page) for each in faults(given)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_pages_name_exist(path: Path) -> None:
    assert [each.fault for each in mentions(path.read_text(encoding="utf-8")) if each.fault] == []


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("Take `--nothing`.", "--nothing is no option of "),
        ("Take --nothing.", "--nothing is no option of "),
        ("Take `--nothing 3` or `--seconds 3`.", "--nothing is no option of "),
        ("Take `stress --rate`.", "--rate is no option of stress"),
        ("Take `soak.py --rate 3`.", "--rate is no option of soak.py"),
        ("## Stress\n\nTake `--rate` or `--seconds`.", "--rate is no option of stress"),
        ("## Stress\n\nText.\n\n## Gates\n\n`mis-bench run --rate 3` takes `--zipf`.", "--zipf is no option of "),
        ("```bash\nmis-bench stress --seconds 3\n```\n\nTake `--rate`.", "--rate is no option of "),
    ],
)
def test_a_wrong_option_in_a_sentence_is_found(page: str, fault: str) -> None:
    (found,) = [each.fault for each in mentions(page) if each.fault]
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "page",
    [
        "Take `--seconds 3`, `stress --seconds` and `sweep --rates 1,2`; `-- --stay` is a session's.",
        "## Stress\n\nTake `--seconds`.\n\n## More\n\nTake `--rate`.",
        "```bash\nmis-bench stress --seconds 3\n```\n\nTake `--scenario`, and `--dtype` of the server.",
        "`vllm serve --nothing`, `mis-bench nothing --nothing` and py-spy's `--subprocesses` are for others to check.",
        "```python\nprint('--nothing')\n```\n\n| a | --- |\n|---|---|\n",
    ],
)
def test_right_options_pass(page: str) -> None:
    assert [each.fault for each in mentions(page) if each.fault] == []


def test_options_of_other_programs_are_named_somewhere() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [option for option in OF_OTHER_PROGRAMS if option not in pages] == []
