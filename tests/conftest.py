"""What every test shares: the path to shared test modules (`from parity import variants`), `--update-golden`,
`--draws` (how many specs a drawn test draws), and, without a GPU, Triton's interpreter, which is chosen when the first
test of a process imports Triton. JAX runs on the CPU, without the compiler's slower passes (tests compile much and run
little), as four devices.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ("sampling",)
_POISONED = ("hopper_model", "sequences")
os.environ["JAX_PLATFORMS"] = "cpu"
_FLAGS = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=4"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew, do not compare")
    parser.addoption("--draws", type=int, default=30, metavar="N", help="how many a drawn test draws (default: 30)")


def pytest_configure(config: pytest.Config) -> None:
    """Drawn tests that name no number of their own take `--draws`: hypothesis has it before they are collected. No test
    fails because the machine is slow."""
    settings.register_profile(
        "draws",
        max_examples=config.getoption("--draws"),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("draws")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def pytest_collection_finish() -> None:
    """What importing and collecting made lives as long as the process: the collector need not look at it again, nor as
    often as it does by itself at what tracing and solvers leave behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="module", autouse=True)
def poisoned(request: pytest.FixtureRequest) -> Iterator[None]:
    """For kernels on sequences, and on the model of a chip: what is allocated holds NaN, and the largest ints, until it
    is written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or request.path.parent.name in _POISONED, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
