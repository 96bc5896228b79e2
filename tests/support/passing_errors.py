"""Error replies of servers: transient errors, refused writes, invalid logins and lasting errors."""

PASSING = (
    "ASK 3999 127.0.0.1:6381",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "EXECABORT Transaction discarded because of: LOADING Redis is loading the dataset in memory",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MOVED 3999 127.0.0.1:6381",
    "READONLY You can't write against a read only replica.",
    "READONLY You can't write against a read only replica. script: 5b4f, on @user_script:6.",
    "REDIRECT 127.0.0.1:6381",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "ERR max number of clients + cluster connections reached",
    "ERR Script attempted to access a non local key in a cluster node script: 5b4f, on @user_script:6.",
    "ERR Attempted to access a non local key in a cluster node script: on @user_script:6.",
    "ERR Script attempted to access a slot not served script: 5b4f, on @user_script:6.",
    "ERR Script attempted to execute a command while the cluster is down script: 5b4f, on @user_script:6.",
    "ERR Can not execute a write command 'hset' while the cluster is down and readonly script: on @user_script:6.",
    "ERR Unable to execute command 'hget' in script because undeclared keys were accessed during rehashing of the slot",
)

REFUSES_WRITES = (
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS Not enough good replicas to write.",
    "OOM command not allowed when used memory > 'maxmemory'.",
)

#: Errors of an invalid login.
LOGIN = (
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
)

#: Lasting errors, until a program, a setting or data change.
STAYING = (
    "BUSYGROUP Consumer Group name already exists",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "ERR Script attempted to access keys that do not hash to the same slot script: 5b4f, on @user_script:6.",
    "ERR This Redis command is not allowed from script script: 5b4f, on @user_script:6.",
    "ERR Unknown Redis command called from script script: 5b4f, on @user_script:6.",
    "ERR Write commands are not allowed from read-only scripts. script: 5b4f, on @user_script:6.",
    "ERR unknown command 'BRPOP'",
    "EXECABORT Transaction discarded because of previous errors.",
    "NOPERM User worker has no permissions to run the 'brpop' command",
    "NOSCRIPT No matching script. Please use EVAL.",
)
