-- Policies for the network access of programs that operators made on the server; others are settings.
CREATE TABLE network_policies (
    name TEXT PRIMARY KEY,
    -- JSON, as in the settings.
    definition TEXT NOT NULL,
    changed_ms BIGINT NOT NULL
);
