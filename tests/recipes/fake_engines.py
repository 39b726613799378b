"""Engines for tests of ``benchmarks.inference``: a worker finds them here by their name."""

import os
import sys
import time

import numpy as np

from benchmarks.engines.engine import Engine
from benchmarks.engines.environment import Environment


class Fake(Engine):
    """It answers with sums of the token ids, and writes down when; it prints where answers are expected."""

    name = "torch, eager"
    packages = ("numpy",)
    sign = 1.0

    def load(self, files, place, threads):
        sys.stdout.write(f"with {threads} threads\n")

        def run(inputs):
            with (files.folder / "calls.txt").open("a") as calls:
                calls.write(f"{self.name}\n")
            time.sleep(0.002)
            sums = (inputs["input_ids"] * inputs["attention_mask"]).sum(1) - 50
            return self.sign * np.stack([-sums, sums], axis=1).astype(np.float32)

        return run


class Same(Fake):
    name = "CTranslate2, int8"


class Ours(Fake):
    name = "ours, int8"

    def prepare(self, files, place):
        (place / "model.bin").write_bytes(b"x" * 1500)


class Wrong(Fake):
    name = "ours, wrong"
    sign = -1.0


class NotThere(Fake):
    name = "NNCF, cannot be installed"
    environment = Environment("not-there", ("./no-such-package-1.0-py3-none-any.whl",))


class NoSense(Fake):
    name = "OpenVINO, no sense here"

    def absent(self):
        return "this processor has no such products"


class Unprepared(Fake):
    name = "optimum, not prepared"

    def prepare(self, files, place):
        raise RuntimeError("no such operator\nand a long trace")


class Dying(Fake):
    name = "ONNX Runtime, dies"

    def load(self, files, place, threads):
        os._exit(7)


class DyingLater(Fake):
    name = "OpenVINO, dies at its first stream"

    def answer(self, run, batches):
        if len(batches) > 2:
            os._exit(9)
        return super().answer(run, batches)


class Hanging(Fake):
    name = "torch, hangs"

    def load(self, files, place, threads):
        time.sleep(600)
