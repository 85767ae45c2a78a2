"""Many runs on a SLURM cluster: one scheduler here, one worker per job.

On the login node, in tmux, with the same environment as the jobs and a workspace that they all see:

    pip install -e '.[cluster]' dask-jobqueue
    export QNNKIT_HOME=/shared/you/qnnkit
    python docs/slurm.py docs/batch.yaml

Ctrl-C stops the runs cleanly; the same command resumes them. A job that SLURM ends loses the steps since its
last checkpoint: another job resumes its run.
"""

import sys

import dask
from dask_jobqueue import SLURMCluster

from qnnkit import batch

CORES = 4  # of each job; as many threads as one run may use

if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 100})  # jobs that end before a run does
    cluster = SLURMCluster(
        queue="gpu",
        cores=1,  # runs at a time in a job: each is a process of its own
        processes=1,
        job_cpu=CORES,
        memory="16GB",
        walltime="08:00:00",
        job_extra_directives=["--gres=gpu:1"],
        interface=None,  # the network that the nodes share, such as "ib0"; who reaches it may run code
    )
    cluster.scale(jobs=8)  # not adapt(): a batch hands out as many runs as there are workers
    cluster.wait_for_workers(1)  # however long SLURM's queue is
    for run in batch.run_batch(sys.argv[1], scheduler=cluster):
        print(run.id, run.state, run.error or "")
    cluster.close()
