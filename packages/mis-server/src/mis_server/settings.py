"""Server options, declared like the engine's: flags and environment variables are generated from these fields."""

from dataclasses import dataclass
from pathlib import Path

from mis_core.checkpoints.gguf_parts import model_stem
from mis_core.config import EngineConfig, option
from mis_core.errors import ConfigError
from mis_core.tasks.limits import Limits

_AT_LEAST_ONE = (
    "max_items_per_request",
    "max_labels_per_request",
    "max_request_tokens",
    "max_text_characters",
    "max_body_bytes",
    "max_queued_requests",
    "max_queued_tokens",
    "max_sequences_per_request",
    "max_queued_sequences",
    "body_timeout",
    "request_timeout",
)
_LIMITS = Limits(context_length=0, vocab_size=0)  # for its defaults
LOG_FORMATS = ("human", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything that the front process needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    engine: EngineConfig
    host: str = option("127.0.0.1", "Address to listen on.", group="Address")
    port: int = option(30000, "Port to listen on. 0 picks a free port.", group="Address")
    served_model_name: str | None = option(
        None,
        "Model name in requests and replies. Default: MODEL as given, or the name of a GGUF file without its suffix.",
        group="Address",
    )
    model_alias: tuple[str, ...] = option(
        (), "Another name of the model in requests. Repeatable. Default: none.", group="Address"
    )
    api_key: str | None = option(
        None,
        "Bearer token required by every route except /health, /ready, /metrics and /playground. Default: none.",
        group="Security",
    )
    admin_api_key: str | None = option(
        None,
        "Bearer token required by /flush_cache, /start_profile and /stop_profile. Default: the API key.",
        group="Security",
    )
    ssl_certfile: str | None = option(None, "TLS certificate file in PEM form. Default: plain HTTP.", group="Security")
    ssl_keyfile: str | None = option(None, "Private key file of the certificate. Default: none.", group="Security")
    ssl_keyfile_password: str | None = option(None, "Password of the key file. Default: none.", group="Security")
    ssl_ca_certs: str | None = option(
        None,
        "File of CA certificates that must have signed the clients' certificates. Default: clients need no "
        "certificate.",
        group="Security",
    )
    allowed_hosts: str | None = option(
        None,
        "Host names, besides localhost, that requests may use. They are checked if the server has no API key and "
        "listens on a loopback address, for example behind a proxy. Comma-separated. Default: none.",
        group="Security",
    )
    cors_allowed_origins: str | None = option(
        None,
        "Origins of web pages that may call this server. Comma-separated. Default: none.",
        group="Security",
    )
    playground: bool = option(
        False,
        "Serve the page /playground on every address, not only on loopback. The page needs no key; its requests do.",
        group="Security",
    )
    max_items_per_request: int = option(
        _LIMITS.max_items, "Maximum items per request.", "--max-multi-item-count", group="Limits"
    )
    max_labels_per_request: int = option(_LIMITS.max_labels, "Maximum labels per item.", group="Limits")
    max_request_tokens: int = option(
        _LIMITS.max_request_tokens,
        "Maximum tokens per request: the query, counted once, plus every item.",
        group="Limits",
    )
    max_text_characters: int = option(
        _LIMITS.max_text_characters,
        "Maximum characters tokenised per request. Part of the query counts once per item if query and items cannot "
        "be tokenised separately.",
        group="Limits",
    )
    max_sequences_per_request: int = option(
        _LIMITS.max_sequences,
        "Maximum generated answers per request: prompts times n or best_of.",
        group="Limits",
    )
    max_body_bytes: int = option(
        64 * 1024 * 1024, "Maximum size of a request body, in bytes after decompression.", group="Limits"
    )
    max_body_bytes_under_way: int | None = option(
        None,
        "Maximum size of all request bodies under way, in bytes after decompression. A body may take at most half of "
        "the bytes that are still free; a larger one gets 429. Default: a tenth of the memory that the control group "
        "allows, but at least twice --max-body-bytes.",
        group="Limits",
    )
    max_queued_requests: int = option(1024, "Maximum requests under way. Further requests get 429.", group="Limits")
    max_queued_tokens: int = option(
        8_000_000,
        "Maximum tokens of all requests under way, including tokens to generate. A request may take at most half of "
        "the tokens that are still free; a larger one gets 429.",
        group="Limits",
    )
    max_queued_sequences: int = option(
        16_384,
        "Maximum generated answers of all requests under way. A request may take at most half of the answers that are "
        "still free; a larger one gets 429.",
        group="Limits",
    )
    request_timeout: int = option(
        600,
        "Deadline of a request, in seconds. A request that misses it gets 504. Clients may set an earlier deadline "
        "with x-request-timeout.",
        group="Limits",
    )
    body_timeout: int = option(60, "Seconds within which a request's body must arrive.", group="Limits")
    shutdown_timeout: int = option(
        30, "Seconds that the server waits for requests under way after SIGTERM.", group="Limits"
    )
    profile_dir: str = option("profiles", "Folder in which /start_profile writes profiles.", group="Logs and profiles")
    log_format: str = option("human", "Log format on standard error.", choices=LOG_FORMATS, group="Logs and profiles")
    log_level: str = option("info", "Minimum level of log lines.", choices=LOG_LEVELS, group="Logs and profiles")
    disable_access_log: bool = option(False, "Do not log requests.", group="Logs and profiles")

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.", name)
        if self.max_body_bytes_under_way is not None and self.max_body_bytes_under_way < 2 * self.max_body_bytes:
            raise ConfigError(
                f"max_body_bytes_under_way must be at least twice max_body_bytes, {2 * self.max_body_bytes}, not "
                f"{self.max_body_bytes_under_way}; or set a smaller max_body_bytes.",
                "max_body_bytes_under_way",
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}.", "port")
        if self.shutdown_timeout < 0:
            raise ConfigError(
                f"shutdown_timeout must not be negative, but is {self.shutdown_timeout}.", "shutdown_timeout"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            missing = "ssl_certfile" if self.ssl_certfile is None else "ssl_keyfile"
            raise ConfigError(f"{missing} is missing; ssl_certfile and ssl_keyfile must be given together.", missing)
        for name in ("ssl_ca_certs", "ssl_keyfile_password"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ConfigError(f"{name} needs ssl_certfile and ssl_keyfile.", name)
        for name in ("api_key", "admin_api_key"):
            key = getattr(self, name)
            if key is not None:  # a file written with `echo` ends in a newline
                object.__setattr__(self, name, key.strip())
                if any(map(str.isspace, key.strip())):
                    raise ConfigError(f"{name} contains white space, which no client can send; use another key.", name)
        for name in ("host", "api_key", "admin_api_key", "served_model_name"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty; omit it for the default.", name)
        if "" in self.model_alias:
            raise ConfigError("model_alias must not be empty.", "model_alias")

    @property
    def limits(self) -> dict[str, int]:
        """What one request may ask for: fields of `Limits`."""
        return {
            "max_items": self.max_items_per_request,
            "max_labels": self.max_labels_per_request,
            "max_request_tokens": self.max_request_tokens,
            "max_text_characters": self.max_text_characters,
            "max_sequences": self.max_sequences_per_request,
        }

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of web pages that may call this server."""
        return tuple(map(str.strip, (self.cors_allowed_origins or "").split(","))) if self.cors_allowed_origins else ()

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model that requests may use; replies have the first."""
        return (self.model_name, *self.model_alias)

    @property
    def model_name(self) -> str:
        """Model name in requests and replies."""
        if self.served_model_name is not None:
            return self.served_model_name
        model = self.engine.model
        return model_stem(Path(model)) if model.endswith(".gguf") else model
