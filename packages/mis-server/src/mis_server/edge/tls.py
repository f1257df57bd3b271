"""TLS files. They are read before anything else is loaded, so that errors are reported at once, by option."""

import ssl
from pathlib import Path

from mis_core.errors import ConfigError
from mis_server.settings import ServerConfig


def tls_context(settings: ServerConfig) -> ssl.SSLContext | None:
    """Return the TLS context; None: plain HTTP.

    Raises:
        ConfigError: a file or the password cannot be used; names the option.
    """
    certificate, key = settings.ssl_certfile, settings.ssl_keyfile
    if certificate is None or key is None:
        return None
    _check_certificates(certificate, "ssl_certfile")
    _check_readable(key, "ssl_keyfile")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, certificate, key, settings.ssl_keyfile_password)
    if settings.ssl_ca_certs is not None:
        _check_certificates(settings.ssl_ca_certs, "ssl_ca_certs")
        context.load_verify_locations(settings.ssl_ca_certs)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(path: str, option: str) -> None:
    try:
        Path(path).open("rb").close()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", option) from None


def _check_certificates(path: str, option: str) -> None:
    _check_readable(path, option)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"{path} has no certificate in PEM form.", option) from None


def _load(context: ssl.SSLContext, certificate: str, key: str, password: str | None) -> None:
    is_encrypted = False

    def asked() -> str:  # otherwise, OpenSSL would ask at the terminal
        nonlocal is_encrypted
        is_encrypted = True
        return password or ""

    try:
        context.load_cert_chain(certificate, key, asked)
    except (ssl.SSLError, ValueError) as error:  # ValueError: a password of more than 1,023 bytes
        reason = getattr(error, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key} is not the private key of {certificate}.", "ssl_keyfile") from None
        if is_encrypted:
            message = f"{key} is encrypted; give its password." if password is None else f"wrong password for {key}."
            raise ConfigError(message, "ssl_keyfile_password") from None
        if "TOO_" in reason:  # EE_KEY_TOO_SMALL, CA_MD_TOO_WEAK
            weak = reason.lower().replace("_", " ")
            raise ConfigError(f"{certificate} is too weak for OpenSSL: {weak}.", "ssl_certfile") from None
        raise ConfigError(f"{key} has no private key in PEM form.", "ssl_keyfile") from None
