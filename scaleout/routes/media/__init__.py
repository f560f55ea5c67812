"""Fetching the media that requests name. Knows addresses, sizes and times; nothing of what is in a file."""

from scaleout.routes.media.fetch import MediaFetcher
from scaleout.routes.media.loading import mount_media, resolve_media, with_media

__all__ = ["MediaFetcher", "mount_media", "resolve_media", "with_media"]
