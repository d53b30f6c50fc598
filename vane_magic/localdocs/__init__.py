"""An engine over local documents that speaks Vane's API, for a machine without Vane and for tests."""

from vane_magic.localdocs.service import Service, serve_forever

__all__ = ["Service", "serve_forever"]
