"""What the log looks like: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from scaleout.codec import dumps
from scaleout.config import ModeConfig
from scaleout.core import Json


class JsonLines(logging.Formatter):
    """A record as a JSON object: `time`, `level`, `logger`, `message`, `process`; `error` with a stack; and what a request's line adds."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Json] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= getattr(record, "request", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return dumps(line).decode()


def start_logging(config: ModeConfig) -> None:
    """Log to the standard error stream, as the configuration says."""
    who = " %(process)d" if config.workers > 1 else ""
    handler = logging.StreamHandler()
    text = logging.Formatter(f"%(asctime)s{who} %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if config.log_format == "json" else text)
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
