-- Servers that share this database and reach each other. A server changes its beat while it lives.
CREATE TABLE peers (
    instance TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    beat BIGINT NOT NULL
);

-- Which server has a conversation: its programs and its sessions are there.
CREATE TABLE conversation_places (
    owner TEXT NOT NULL,
    conversation TEXT NOT NULL,
    instance TEXT NOT NULL,
    -- Differs each time that it is taken.
    stamp BIGINT NOT NULL,
    PRIMARY KEY (owner, conversation)
);
