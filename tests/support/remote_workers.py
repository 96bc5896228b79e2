"""HTTP workers simulated by a test, with the requests that a program in any language would send."""


class RemoteWorker:
    """A worker that joins through *ask*, a function that sends a request (method, path, options of httpx).

    *more*: other fields of its join request.
    """

    def __init__(self, ask, *types, slots=1, name="node", **more):
        self.ask = ask
        joined = ask("POST", "/api/workers", json={"name": name, "types": list(types), "slots": slots, **more})
        assert joined.status_code == 201, joined.text
        self.joined = joined.json()
        self.id = self.joined["id"]
        self.headers = {"Worker-Secret": self.joined["secret"]}

    def request(self, method, path, **options):
        return self.ask(method, path, headers=self.headers, **options)

    def poll(self, wait=0, **params):
        """Return the reply to a poll, or None if it has no content."""
        reply = self.request("GET", f"/api/workers/{self.id}/jobs", params={"wait": wait, **params})
        assert reply.status_code in (200, 204), reply.text
        return reply.json() if reply.status_code == 200 else None

    def jobs(self, wait=0, **params):
        reply = self.poll(wait, **params)
        return [] if reply is None else reply["jobs"]

    def job(self, wait=10):
        """Wait for a single job; return it."""
        (job,) = self.jobs(wait)
        return job

    def beat(self, *jobs):
        running = [[each["id"], each["fence"]] for each in jobs]
        return self.request("POST", f"/api/workers/{self.id}/heartbeat", json={"running": running})

    def start(self, job):
        return self.request("POST", f"/api/jobs/{job['id']}/start", json={"fence": job["fence"]})

    def end(self, job, state="done", **more):
        return self.request("POST", f"/api/jobs/{job['id']}/end", json={"fence": job["fence"], "state": state, **more})

    def run(self, wait=10, **end):
        """Run the next job; return the reply to its end."""
        job = self.job(wait)
        assert self.start(job).status_code == 200
        return self.end(job, **end)

    def leave(self):
        return self.request("DELETE", f"/api/workers/{self.id}")
