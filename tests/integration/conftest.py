"""Fixtures that all integration tests may ask for."""

from tests.integration.engine_fixtures import tiny_adapters, tiny_engine, tiny_model

__all__ = ["tiny_adapters", "tiny_engine", "tiny_model"]
