"""Optional packages → the extra that brings them.

Enters: an import that failed because a package is not installed. Leaves: a MissingExtraError that
names the extra to install; an import that failed for another reason is left as it was.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tocsin.errors import MissingExtraError

_EXTRAS = {
    "pyspark": "spark",
    "pandas": "spark",
    "fsspec": "spark",
    "httptools": "broker",
    "httpx": "broker",
    "orjson": "broker",
    "starlette": "broker",
    "uvicorn": "broker",
    "uvloop": "broker",
    "websockets": "broker",
    "opentelemetry": "telemetry",
}


def load(module: str, name: str, what: str) -> Any:
    """Return `name` of `module`; raise MissingExtraError where a package of an extra is absent."""
    try:
        return getattr(import_module(module), name)
    except MissingExtraError as error:  # of the module itself: say what the user asked for
        raise MissingExtraError(what, error.package, error.extra) from None
    except ModuleNotFoundError as error:
        raise explain_missing(error, what) from None


def explain_missing(error: ModuleNotFoundError, what: str) -> ImportError:
    """Return the error that names the extra, or the same error where no extra has the package."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    return error if extra is None else MissingExtraError(what, package, extra)
