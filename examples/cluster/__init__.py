"""The pipeline on a cluster of six nodes, whose primary with the jobs is killed in the middle."""
