"""Result backends that Celery lacks. Importing this package registers their schemes for ``result_backend``.

Entry points register the same schemes for processes that only read results without importing this package.
"""

from celery.app.backends import BACKEND_ALIASES

for _kind in ("redis", "rediss", "valkey", "valkeys"):
    BACKEND_ALIASES.setdefault(f"{_kind}-cluster", "celery_affinity.backends.cluster:ClusterBackend")
for _kind in ("valkey", "valkeys"):
    BACKEND_ALIASES.setdefault(_kind, "celery_affinity.backends.valkey:ValkeyBackend")
