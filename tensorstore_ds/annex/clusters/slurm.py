"""A planned conversion as jobs of Slurm: an array of tasks, and a job that commits when all of them are done."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tensorstore_ds.annex.clusters.planned import Plan
from tensorstore_ds.errors import ConversionError, OptionError

_SCRIPT = """#!/bin/bash
# Converts the parts of a planned store, one in each task of this array. Tasks that are done already end at once, so
# the same script may be submitted again. Lines that begin with ##SBATCH are yours to fill in: remove one #.
#SBATCH --job-name={job}
#SBATCH --array=0-{last}
#SBATCH --cpus-per-task=4
#SBATCH --requeue
#SBATCH --output={job}-%A_%a.log
##SBATCH --partition=
##SBATCH --account=
##SBATCH --time=04:00:00
##SBATCH --mem-per-cpu=2G
# At most 100 tasks at a time, for a file system that is slow:
##SBATCH --array=0-{last}%100

# When all tasks are done, the store is to be committed:
#   sbatch --dependency=afterok:JOBID --kill-on-invalid-dep=yes --job-name={job}-commit --wrap={commit}

set -euo pipefail
scratch="${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}"  # a disk of the node, where the site has one
# Not Slurm's own choice, which may be memory, and no folder that only the machine that submits has:
if [ "$scratch" = /tmp ] || [ ! -d "$scratch" ]; then scratch=; fi
exec {program} convert {out} --task "$SLURM_ARRAY_TASK_ID" ${{scratch:+--scratch "$scratch"}}
"""


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """Ids of the jobs that `submit_slurm` submitted.

    Attributes:
        array: id of the job array that converts.
        commit: id of the job that commits.
    """

    array: int
    commit: int


def slurm_script(planned: Plan) -> str:
    """Return a script for ``sbatch`` that converts a `plan`, as a job array with one job per task.

    Every node must have this Python at the same path.

    >>> planned = tsds.clusters.plan("photos", "out.tsds", tasks=2)
    >>> print(tsds.clusters.slurm_script(planned).splitlines()[0])
    #!/bin/bash
    """
    return _SCRIPT.format(
        job=_job_name(planned.path),
        last=planned.tasks - 1,
        commit=shlex.quote(_commit(planned)),
        program=_program(),
        out=shlex.quote(str(planned.path.absolute())),
    )


def submit_slurm(planned: Plan) -> SlurmJobs:
    """Submit `slurm_script` and a job that commits the store after it. Logs are written to the current folder.

    Raises:
        OptionError: ``sbatch`` does not exist on this machine.
        ConversionError: Slurm rejects a job. The error contains its message.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise OptionError("sbatch was not found on this machine. Print the script, and submit it where Slurm is.")
    job = _job_name(planned.path)
    correct = "Print the script, correct it, and submit it yourself."
    array = _submitted([sbatch, "--parsable"], slurm_script(planned), correct)
    options = [
        f"--dependency=afterok:{array}",
        "--kill-on-invalid-dep=yes",
        "--requeue",
        f"--job-name={job}-commit",
        f"--output={job}-commit-%j.log",
    ]
    then = f"Job {array} converts the shards. When it has ended, run: {_commit(planned)}"
    commit = _submitted([sbatch, "--parsable", *options], f"#!/bin/bash\nexec {_commit(planned)}\n", then)
    return SlurmJobs(array, commit)


def _submitted(command: list[str], script: str, advice: str) -> int:
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    found = re.match(r"(\d+)", done.stdout)
    if done.returncode or found is None:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing was said"]
        raise ConversionError(f"sbatch: {said[-1].removeprefix('sbatch: ').rstrip('.')}. {advice}")
    return int(found[1])


def _commit(planned: Plan) -> str:
    return f"{_program()} commit {shlex.quote(str(planned.path.absolute()))}"


def _program() -> str:
    return f"{shlex.quote(sys.executable)} -m tsds_cli"


def _job_name(out: Path) -> str:
    return "tsds-" + (re.sub(r"[^A-Za-z0-9._-]+", "-", out.name.removesuffix(".tsds"))[:40] or "store")
