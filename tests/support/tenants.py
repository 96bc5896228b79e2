"""Rules of tenants' jobs, and quotas, for tests of server functions."""

PDF = "pdf"


def of(tenant):
    """Return the rules of a job of *tenant*."""
    return f"key=tenant%3A{tenant} quota=settings"


def quotas(fleet, text):
    fleet.scheduler.configure({"tenants": text})
