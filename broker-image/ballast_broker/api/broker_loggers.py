"""This process's loggers as configs: levels by Kafka's names, changeable at run time until restart."""

from __future__ import annotations

import logging
from typing import Any

from ballast_broker.controller.commands.configs import DELETE, OPERATION_NAMES, SET
from ballast_wire.errors import ApiError, ErrorCode

ROOT = "root"
TRACE = 5
LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}


def levels() -> dict[str, str]:
    """Each logger's effective level."""
    known = logging.root.manager.loggerDict
    loggers = {name: known[name] for name in sorted(known)}
    named = {ROOT: logging.root} | {name: each for name, each in loggers.items() if isinstance(each, logging.Logger)}
    return {name: _level_name(each.getEffectiveLevel()) for name, each in named.items()}


def _level_name(level: int) -> str:
    return next((name for name, value in sorted(LEVELS.items(), key=lambda each: each[1]) if level <= value), "FATAL")


def check(changes: list[Any]) -> None:
    """Validate all changes before any is applied."""
    known = levels()
    for each in changes:
        if each.config_operation in OPERATION_NAMES:
            text = f"{OPERATION_NAMES[each.config_operation]} operation is not allowed for the BROKER_LOGGER resource"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        if each.config_operation not in (SET, DELETE):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {each.config_operation}")
        if each.name not in known:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {each.name} does not exist!")
        if each.config_operation == DELETE and each.name == ROOT:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
        if each.config_operation == SET and each.value not in LEVELS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {each.name} to {each.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(LEVELS)}",
            )


def change(changes: list[Any]) -> None:
    """Apply validated changes. Without its own level a logger inherits one."""
    for each in changes:
        logger = logging.root if each.name == ROOT else logging.getLogger(each.name)
        logger.setLevel(LEVELS[each.value] if each.config_operation == SET else logging.NOTSET)
