-- Tool servers that operators made on the server; others are settings.
CREATE TABLE tool_servers (
    name TEXT PRIMARY KEY,
    -- JSON, as in the settings.
    definition TEXT NOT NULL,
    -- What stands for {secret} in its headers.
    secret TEXT NOT NULL,
    changed_ms BIGINT NOT NULL
);

-- Questions whether a call of a tool may be made.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    -- SHA-256 of the tool's definition.
    definition TEXT NOT NULL,
    -- JSON in one form; what was shown and what is sent.
    arguments TEXT NOT NULL,
    asked_ms BIGINT NOT NULL,
    -- once, session, always or no.
    answer TEXT,
    answered_ms BIGINT,
    answered_by TEXT,
    -- Of a question: until when it waits. Of an answer: until when it holds.
    expires_ms BIGINT NOT NULL,
    -- An answer that holds for one call was used.
    used_ms BIGINT
);

CREATE INDEX approvals_by_owner ON approvals (owner, asked_ms);
CREATE INDEX approvals_by_tool ON approvals (owner, server, tool);
