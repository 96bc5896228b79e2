"""Result backends that Celery does not have: their schemes may stand in ``result_backend`` once this is imported.

The package's entry points say the same, to processes that only read results and import nothing of ours.
"""

from celery.app.backends import BACKEND_ALIASES

for _kind in ("redis", "rediss", "valkey", "valkeys"):
    BACKEND_ALIASES.setdefault(f"{_kind}-cluster", "celery_affinity.backends.cluster:ClusterBackend")
for _kind in ("valkey", "valkeys"):
    BACKEND_ALIASES.setdefault(_kind, "celery_affinity.backends.valkey:ValkeyBackend")
