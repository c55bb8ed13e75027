CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    may TEXT NOT NULL,
    parent TEXT,
    created_ms BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    expires_ms BIGINT,
    used_ms BIGINT,
    revoked_ms BIGINT
);
CREATE INDEX tokens_changed ON tokens (changed_ms);
CREATE INDEX tokens_parent ON tokens (parent);
