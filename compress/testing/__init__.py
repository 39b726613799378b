"""For packages that add to the toolkit: tiny encoders and tasks, and the checks that every technique must pass.

>>> from compress.testing import check_technique
>>> check_technique(Shrink)  # doctest: +SKIP
['found_by_its_name', 'says_what_it_does', ...]
"""

from compress.testing.battery import check_technique
from compress.testing.tiny import tiny_task, tiny_taskmodel

__all__ = ["check_technique", "tiny_task", "tiny_taskmodel"]
