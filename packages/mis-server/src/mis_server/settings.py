"""Server options, declared like the engine's: the command line and the environment come from these fields."""

from dataclasses import dataclass

from mis_core.config import EngineConfig, option
from mis_core.errors import ConfigError

_AT_LEAST_ONE = (
    "max_items_per_request",
    "max_labels_per_request",
    "max_request_tokens",
    "max_body_bytes",
    "max_queued_requests",
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything the front process needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    engine: EngineConfig
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(30000, "Port to listen on; 0 takes a free one.")
    served_model_name: str | None = option(None, "Name of the model in requests and replies; default: MODEL as given.")
    api_key: str | None = option(
        None, "Bearer token that every route but /health, /ready and /metrics asks for; default: none."
    )
    max_items_per_request: int = option(20_000, "Most items of a request.")
    max_labels_per_request: int = option(1024, "Most labels of an item.")
    max_request_tokens: int = option(2_000_000, "Most tokens of a request: the query once and every item.")
    max_body_bytes: int = option(64 * 1024 * 1024, "Largest request body, in bytes.")
    max_queued_requests: int = option(1024, "Most requests at a time; further ones are answered with 429.")
    shutdown_timeout: int = option(30, "Seconds that running requests get to finish after SIGTERM.")

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.", name)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}.", "port")
        if self.shutdown_timeout < 0:
            raise ConfigError(
                f"shutdown_timeout must not be negative, but is {self.shutdown_timeout}.", "shutdown_timeout"
            )
        for name in ("host", "api_key", "served_model_name"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty; leave it out for the default.", name)

    @property
    def model_name(self) -> str:
        """Name of the model in requests and replies."""
        return self.served_model_name or self.engine.model
