-- What happened, the newest of it.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
    tag TEXT, tenant TEXT, detail TEXT
) STRICT;
