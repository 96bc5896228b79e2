"""The pipeline on a cluster of six nodes. The primary that stores the jobs is killed in the middle of the run."""
