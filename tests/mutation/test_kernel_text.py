"""Lines of kernels around the functions that the prover executes: an edit of each is seen where the kernel runs.

The prover takes values of the plan and functions of the runtime. What a template prints around them, it does not read:
here each such line that computes an int is edited, until a run gives another result than the definition, a fault, or no
end.
"""

from __future__ import annotations

from random import Random

import pytest
import torch

from mutation.kernel_text import Line, index_lines
from mutation.running import (
    Subject,
    hopper,
    hopper_sequences,
    mistake,
    portable,
    portable_sequences,
)

SUBJECTS = {
    subject.name: subject
    for subject in (
        portable("causal"),
        portable_sequences("causal", "packed"),
        portable_sequences("causal", "lengths"),
        hopper("causal"),
        hopper("documents"),
        hopper_sequences("causal", "packed"),
    )
}
UNSEEN: dict[str, str] = {}
"""Lines of which no edit changes a result, and why."""
SAMPLE = 3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Each text runs in a process that is forked from this one, where threads would be lost."""
    torch.set_num_threads(1)


def lines(subject: Subject) -> list[Line]:
    return [line for line in index_lines(subject.source) if subject.reaching(line.where)]


def is_seen(subject: Subject, line: Line, seed: int = 0) -> bool:
    edits = list(line.edits)
    Random(f"{seed} {line}").shuffle(edits)
    return any(mistake(run, edit.text) for edit in edits for run in subject.reaching(line.where))


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_runs_launch_their_kernels(name: str) -> None:
    subject = SUBJECTS[name]
    for run in subject.runs:
        assert not mistake(run, subject.source)
        for kernel in run.kernels:
            head, found, rest = subject.source.partition(f"def {kernel}(")
            assert found, kernel
            signature, _, body = rest.partition('\n    """')
            docstring, _, body = body.partition('"""\n')
            text = f'{head}{found}{signature}\n    """{docstring}"""\n    not_reached\n{body}'
            assert mistake(run, text), f"{kernel} is not launched"


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_sample_of_lines(name: str) -> None:
    subject = SUBJECTS[name]
    every = [line for line in lines(subject) if str(line) not in UNSEEN]
    assert len(every) > 20
    missed = [str(line) for line in Random(0).sample(every, SAMPLE) if not is_seen(subject, line)]
    assert not missed, "no edit of these lines is seen:\n" + "\n".join(missed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_all_lines(name: str) -> None:
    subject = SUBJECTS[name]
    missed = {str(line) for line in lines(subject) if not is_seen(subject, line)}
    assert missed <= UNSEEN.keys(), "no edit of these lines is seen:\n" + "\n".join(sorted(missed - UNSEEN.keys()))
