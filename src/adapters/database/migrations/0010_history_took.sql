-- The slowest runs of all are read without the others.
CREATE INDEX history_took ON history ((ended_ms - begun_ms), id);
