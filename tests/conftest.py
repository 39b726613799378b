"""Set before torch is imported: no hub, one thread (tiny models are slower with more), no forks of tokenizers."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
