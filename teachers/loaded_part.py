"""A part of a model, from its folder or the model hub, or a plain sentence about why it could not be read."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from eval.errors import UserError, is_out_of_memory
from eval.files.paths import near_path

logger = logging.getLogger(__name__)

T = TypeVar("T")


def loaded_part(source: str, part: str, load: Callable[[], T]) -> T:
    """Return what ``load`` gives of a model.

    Args:
        source: Its folder or its name on the hub.
        part: What is loaded, in a sentence.
        load: Loads it.

    Raises:
        UserError: If it could not be read.
    """
    on_hub = not Path(source).exists()
    if on_hub:
        switch_off_unreachable_hub()
    try:
        return load()
    except UserError:
        raise
    except Exception as error:  # libraries raise a dozen kinds for a damaged or missing file
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        if on_hub:
            raise UserError(
                f"model {source!r}: no such folder, and as a hub name its {part} could not be read "
                f"({reason}){near_path(source)}"
            ) from error
        raise UserError(f"{source}: the {part} could not be read ({reason}); is the folder complete?") from error


def switch_off_unreachable_hub() -> None:
    """Read no more than the hub's cache, for the rest of this process, if the hub's host has no address here.

    huggingface_hub asks six times for every file, most of a minute in all, before it looks into its cache. Where a
    proxy is set, it is the proxy that knows addresses, so nothing is changed.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies().keys() & {"http", "https", "all"}:
        return
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        logger.info("%s has no address here, so only models of the hub's cache can be loaded", host)
        constants.HF_HUB_OFFLINE = True
