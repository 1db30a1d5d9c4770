"""Shared by the tests of shards."""

from support.shard_folders import disarmed, tmp_path

__all__ = ["disarmed", "tmp_path"]
