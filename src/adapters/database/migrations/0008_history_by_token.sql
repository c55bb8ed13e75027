-- What a token has used within a day, for its limits.
CREATE INDEX history_token ON history (token, ended_ms);
