"""Engine options: defaults, ranges, and unknown names."""

import pytest

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError

pytestmark = pytest.mark.quick


def test_defaults_need_only_a_model() -> None:
    config = EngineConfig.of("some/model", {})
    assert (config.model, config.dtype, config.context_length) == ("some/model", "auto", None)


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"dtype": "float8"}, "dtype", "one of auto, bfloat16, float32"),
        ({"quantization": "int4"}, "quantization", "one of none, int8, not 'int4'"),
        ({"context_length": 0}, "context_length", "at least 1"),
        ({"chunked_prefill_size": 100}, "chunked_prefill_size", "multiple of 256"),
        ({"context_lenght": 5}, "context_lenght", "Did you mean 'context_length'"),
        ({"qqq": 5}, "qqq", "Known options: model, dtype"),
    ],
)
def test_bad_options_are_named(options: dict, option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        EngineConfig.of("m", options)
    assert caught.value.option == option
