// A worker in Node by the example's module, which writes the ledger: node node.mjs PORT
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import { work } from "../../../../examples/http_worker/worker.mjs";

let runs = 0;
function note(kind, token, facts) {
    const at = (Number(process.hrtime.bigint()) / 1e9).toFixed(6); // CLOCK_MONOTONIC, as Python's
    const told = Object.entries(facts).map(([name, value]) => ` ${name}=${value}`);
    appendFileSync(process.env.LEDGER, `${kind} ${at} ${process.pid} ${encodeURIComponent(token)}${told.join("")}\n`);
}
async function run(token, seconds, job, result) {
    const run = `${process.pid}.${++runs}`;
    note("start", token, { run, worker: process.pid, by: "node", deliveries: job.deliveries });
    await sleep(1000 * seconds);
    note("end", token, { run });
    return result;
}

const room = "tests.whole.chaos.over_http.app";
await work({
    url: `http://127.0.0.1:${process.argv[2]}`,
    token: "",
    types: ["page"],
    slots: 2,
    tasks: {
        [`${room}.part`]: ([token, number, seconds], kwargs, job) => run(token, seconds, job, number),
        [`${room}.total`]: ([numbers, token], kwargs, job) => run(token, 0, job, numbers.reduce((a, b) => a + b, 0)),
    },
});
