CREATE TABLE sign_in_clients (
    id TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    redirects TEXT NOT NULL,
    secret TEXT,
    created_ms BIGINT NOT NULL,
    confirmed_ms BIGINT
);
CREATE INDEX sign_in_clients_created ON sign_in_clients (created_ms);
CREATE TABLE sign_in_codes (
    digest TEXT PRIMARY KEY,
    connection TEXT NOT NULL,
    client TEXT NOT NULL,
    redirect TEXT NOT NULL,
    challenge TEXT NOT NULL,
    expires_ms BIGINT NOT NULL,
    used_ms BIGINT
);
CREATE TABLE sign_in_refresh (
    digest TEXT PRIMARY KEY,
    connection TEXT NOT NULL,
    client TEXT NOT NULL,
    expires_ms BIGINT NOT NULL,
    retired_ms BIGINT
);
CREATE INDEX sign_in_refresh_connection ON sign_in_refresh (connection);
CREATE TABLE sign_in_access (
    digest TEXT PRIMARY KEY,
    connection TEXT NOT NULL,
    client TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);
CREATE INDEX sign_in_access_created ON sign_in_access (created_ms);
