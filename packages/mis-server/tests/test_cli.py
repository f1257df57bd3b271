"""Flags and environment variables come from the config fields; what they set arrives."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mis_server
from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, ModelError
from mis_server.cli import main
from mis_server.settings import ServerConfig


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env=env, prog_name="mis-server")


def test_version() -> None:
    assert run("--version").output == f"mis-server {mis_server.__version__}\n"


def test_help_shows_every_option_with_its_variable_and_default() -> None:
    text = " ".join(run("serve", "--help").output.split())
    for field in (*dataclasses.fields(EngineConfig), *dataclasses.fields(ServerConfig)):
        if field.name in ("model", "engine"):
            continue
        assert "--" + field.name.replace("_", "-") in text
        assert f"MIS_{field.name.upper()}" in text
        for alias in field.metadata["aliases"]:
            assert alias in text
        if field.default is None or field.default == ():
            assert "Default:" in field.metadata["help"], f"help of {field.name} must say what happens by default"
        elif field.default is True:
            assert "default: (on)" in text
        elif field.default is not False:
            assert f"default: {field.default}" in text


def test_no_option_is_declared_twice() -> None:
    names = [f.name for config in (EngineConfig, ServerConfig) for f in dataclasses.fields(config)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("arguments", [["m"], ["--model", "m"], ["--model-path", "m"]])
def test_the_model_may_be_given_three_ways(served: list[ServerConfig], arguments: list[str]) -> None:
    assert run("serve", *arguments).exit_code == 0
    assert served[0].engine == EngineConfig(model="m")
    assert served[0] == ServerConfig(engine=EngineConfig(model="m"))


def test_a_flag_with_several_values_may_be_repeated(served: list[ServerConfig], tmp_path: Path) -> None:
    run("serve", "m", "--model-alias", "a", "--model-alias", "b/c")
    run("serve", "m", MIS_MODEL_ALIAS="a b/c")
    (tmp_path / "mis.toml").write_text('model_alias = ["a", "b/c"]\n')
    run("serve", "m", "--config", str(tmp_path / "mis.toml"))
    assert [each.model_names for each in served] == [("m", "a", "b/c")] * 3
    assert run("serve", "m", "--model-alias", "").exit_code == 1


def test_flags_of_both_dialects_arrive(served: list[ServerConfig]) -> None:
    run("serve", "m", "--context-length", "64", "--max-num-batched-tokens=512", "--port", "1", "--skip-warmup")
    run("serve", "m", "--max-model-len", "64", "--chunked-prefill-size=512", "--port", "1", "--skip-warmup")
    assert served[0] == served[1]
    engine = EngineConfig(model="m", context_length=64, chunked_prefill_size=512, skip_warmup=True)
    assert served[0] == ServerConfig(engine=engine, port=1)


def test_variables_arrive_and_flags_win(served: list[ServerConfig]) -> None:
    env = {"MIS_MODEL": "m", "MIS_PORT": "7", "MIS_API_KEY": "secret", "MIS_SKIP_WARMUP": "1"}
    assert run("serve", "--port", "8", **env).exit_code == 0
    assert (served[0].port, served[0].api_key, served[0].engine.skip_warmup) == (8, "secret", True)
    run("serve", "other", **env)
    assert served[1].engine.model == "other"


@pytest.mark.parametrize("name", ["MIS_API_KEY", "MIS_HOST"])
def test_an_empty_variable_does_not_open_the_server(served: list[ServerConfig], name: str) -> None:
    result = run("serve", "m", **{name: ""})
    assert result.exit_code == 1
    assert "must not be empty" in result.stderr
    assert served == []


def test_an_empty_variable_that_is_no_text_is_unset(served: list[ServerConfig]) -> None:
    assert run("serve", "m", MIS_PORT="", MIS_SKIP_WARMUP="").exit_code == 0
    assert served[0].port == 30000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "MODEL is missing"),
        (["serve", "m", "--prot", "1"], "--port"),
        (["serve", "m", "--dtype", "int3"], "'int3' is not one of"),
        (["serve", "m", "--port", "99999"], "Error: --port: port must be from 0 to 65535"),
        (["serve", "m", "--context-length", "0"], "Error: --context-length: context_length must be at least 1"),
    ],
)
def test_bad_flags_are_refused_by_name(served: list[ServerConfig], arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert served == []


@pytest.mark.parametrize("error", [ModelError("model.norm.weight is missing."), EngineUnavailable("Out of memory.")])
def test_a_failed_start_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def serve(settings: Any) -> None:
        raise error

    monkeypatch.setattr("mis_server.serving.serve", serve)
    result = run("serve", "m")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {error.args[0]}\n"
