-- Sessions that are open, or were when their server ended and whose callers have not been told.
CREATE TABLE open_sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    language TEXT NOT NULL,
    instance TEXT NOT NULL,
    -- When the process of the server started.
    started_ms BIGINT NOT NULL,
    opened_ms BIGINT NOT NULL
);
CREATE INDEX open_sessions_place ON open_sessions (owner, conversation, language);
CREATE INDEX open_sessions_instance ON open_sessions (instance, opened_ms);
