"""Server options, declared like the engine's: the command line and the environment come from these fields."""

from dataclasses import dataclass

from mis_core.config import EngineConfig, option
from mis_core.errors import ConfigError

_AT_LEAST_ONE = (
    "max_items_per_request",
    "max_labels_per_request",
    "max_request_tokens",
    "max_text_characters",
    "max_body_bytes",
    "max_queued_requests",
    "max_queued_tokens",
    "body_timeout",
    "request_timeout",
)
LOG_FORMATS = ("human", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything the front process needs to know before it starts.

    Raises:
        ConfigError: a value is outside its range; names the option.
    """

    engine: EngineConfig
    host: str = option("127.0.0.1", "Address to listen on.", group="Address")
    port: int = option(30000, "Port to listen on; 0 takes a free one.", group="Address")
    served_model_name: str | None = option(
        None, "Name of the model in requests and replies; default: MODEL as given.", group="Address"
    )
    api_key: str | None = option(
        None,
        "Bearer token that every route but /health, /ready and /metrics asks for; default: none.",
        group="Security",
    )
    admin_api_key: str | None = option(
        None,
        "Bearer token of /flush_cache, /start_profile and /stop_profile; default: the API key opens them too.",
        group="Security",
    )
    ssl_certfile: str | None = option(None, "Certificate file for HTTPS; default: plain HTTP.", group="Security")
    ssl_keyfile: str | None = option(None, "Key file of that certificate; default: none.", group="Security")
    ssl_keyfile_password: str | None = option(None, "Password of the key file; default: none.", group="Security")
    ssl_ca_certs: str | None = option(
        None,
        "Certificates of authorities, one of which must have signed the client's; default: clients show none.",
        group="Security",
    )
    allowed_hosts: str | None = option(
        None,
        "Names, separated by commas, by which a proxy on the same machine may call a server without a key on a "
        "loopback address; default: localhost only.",
        group="Security",
    )
    cors_allowed_origins: str | None = option(
        None,
        "Origins, separated by commas, whose pages browsers let call this server; default: none.",
        group="Security",
    )
    max_items_per_request: int = option(20_000, "Most items of a request.", group="Limits")
    max_labels_per_request: int = option(1024, "Most labels of an item.", group="Limits")
    max_request_tokens: int = option(
        2_000_000, "Most tokens of a request: the query once and every item.", group="Limits"
    )
    max_text_characters: int = option(
        4_194_304,
        "Most characters that are tokenised for a request; more than its texts have where query and items cannot be "
        "tokenised apart.",
        group="Limits",
    )
    max_body_bytes: int = option(64 * 1024 * 1024, "Largest request body, in bytes.", group="Limits")
    max_queued_requests: int = option(
        1024, "Most requests at a time; further ones are answered with 429.", group="Limits"
    )
    max_queued_tokens: int = option(
        8_000_000, "Most tokens of all requests at a time; further ones: 429.", group="Limits"
    )
    request_timeout: int = option(
        600,
        "Seconds until a request is answered with 504; a client may ask for fewer by x-request-timeout.",
        group="Limits",
    )
    body_timeout: int = option(60, "Seconds that a client may take to send a request's body.", group="Limits")
    shutdown_timeout: int = option(30, "Seconds that running requests get to finish after SIGTERM.", group="Limits")
    profile_dir: str = option("profiles", "Folder that /start_profile writes to.", group="Logs and profiles")
    log_format: str = option(
        "human", "Form of the log on standard error.", choices=LOG_FORMATS, group="Logs and profiles"
    )
    log_level: str = option("info", "Least important lines of the log.", choices=LOG_LEVELS, group="Logs and profiles")
    disable_access_log: bool = option(False, "Do not log each request.", group="Logs and profiles")

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
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            missing = "ssl_certfile" if self.ssl_certfile is None else "ssl_keyfile"
            raise ConfigError(f"{missing} is missing; ssl_certfile and ssl_keyfile go together.", missing)
        for name in ("ssl_ca_certs", "ssl_keyfile_password"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ConfigError(f"{name} is of use with ssl_certfile and ssl_keyfile only.", name)
        for name in ("api_key", "admin_api_key"):
            key = getattr(self, name)
            if key is not None:  # a secret that was written with `echo` ends in a newline
                object.__setattr__(self, name, key.strip())
                if any(map(str.isspace, key.strip())):
                    raise ConfigError(f"{name} holds white space, which no client can send; make another key.", name)
        for name in ("host", "api_key", "admin_api_key", "served_model_name"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty; leave it out for the default.", name)

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins whose pages may call this server from a browser."""
        return tuple(map(str.strip, (self.cors_allowed_origins or "").split(","))) if self.cors_allowed_origins else ()

    @property
    def model_name(self) -> str:
        """Name of the model in requests and replies."""
        return self.served_model_name or self.engine.model
