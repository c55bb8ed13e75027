-- The most CPU time that a run can have used whose CPU time is not known, for the limits of its token.
ALTER TABLE history ADD COLUMN cpu_max_ms BIGINT;
