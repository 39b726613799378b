"""Names of the hub where the hub cannot be reached."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants

from eval.errors import UserError
from teachers.loaded_part import loaded_part

PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def _no_address(*_):
    raise socket.gaierror(-2, "Name or service not known")


def _seen():
    return constants.HF_HUB_OFFLINE


def test_a_hub_without_address_is_not_asked_again_and_again(online, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    assert loaded_part("someone/model", "configuration", _seen)


def test_a_hub_that_has_an_address_is_asked(online, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, _: asked.append(host))
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example:8080/all")
    assert not loaded_part("someone/model", "configuration", _seen)
    assert asked == ["hub.example"]


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_knows_addresses(online, monkeypatch, name):
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    monkeypatch.setenv(name, "http://proxy.example:3128")
    assert not loaded_part("someone/model", "configuration", _seen)


def test_a_folder_needs_no_hub(online, monkeypatch, tmp_path):
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    assert not loaded_part(str(tmp_path), "configuration", _seen)


def test_a_misspelt_folder_is_said_at_once(online, monkeypatch, tmp_path):
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "teacher").mkdir(parents=True)

    def load():
        raise OSError("no connection")

    with pytest.raises(UserError, match=r"model 'runs/teecher': no such folder, and as a hub name .*'runs/teacher'\?"):
        loaded_part("runs/teecher", "weights", load)
