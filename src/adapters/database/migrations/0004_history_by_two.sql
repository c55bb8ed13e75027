-- An owner and one more filter: by either alone a page would read every line of a busy owner, or every line of a common
-- language, end or conversation id, to find that there are few of both.
CREATE INDEX history_owner_conversation ON history (owner, conversation, begun_ms, id);
CREATE INDEX history_owner_language ON history (owner, language, begun_ms, id);
CREATE INDEX history_owner_ended ON history (owner, ended, begun_ms, id);
