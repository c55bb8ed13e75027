-- A line for each run and cell. `ended` is NULL while it runs. The id begins with the moment of `begun_ms`.
CREATE TABLE history (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    token TEXT,
    is_cell BIGINT NOT NULL,
    language TEXT NOT NULL,
    image TEXT NOT NULL,
    program_sha256 TEXT NOT NULL,
    source TEXT,
    instance TEXT NOT NULL,
    begun_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    ended TEXT,
    exit_code BIGINT,
    signal BIGINT,
    oom_killed BIGINT,
    failure TEXT,
    sentence TEXT,
    wall_ms BIGINT,
    cpu_ms BIGINT,
    memory_peak_bytes BIGINT,
    stdout_bytes BIGINT,
    stderr_bytes BIGINT,
    files_changed BIGINT,
    files TEXT
);
CREATE INDEX history_begun ON history (begun_ms, id);
CREATE INDEX history_owner ON history (owner, begun_ms, id);
CREATE INDEX history_conversation ON history (conversation, begun_ms, id);
CREATE INDEX history_language ON history (language, begun_ms, id);
CREATE INDEX history_ended ON history (ended, begun_ms, id);

-- Sums of the lines that have an end, except those that a server lost; they stay when lines are removed.
CREATE TABLE usage_days (
    owner TEXT NOT NULL,
    day BIGINT NOT NULL,
    language TEXT NOT NULL,
    runs BIGINT NOT NULL,
    cells BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    wall_ms BIGINT NOT NULL,
    cpu_ms BIGINT NOT NULL,
    output_bytes BIGINT NOT NULL,
    PRIMARY KEY (owner, day, language)
);

-- A server changes its beat while it lives.
CREATE TABLE servers (
    instance TEXT PRIMARY KEY,
    beat BIGINT NOT NULL
);

CREATE TABLE idempotency_keys (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    run TEXT NOT NULL,
    conversation TEXT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (owner, name)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_ms);
