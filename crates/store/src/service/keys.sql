-- Answers that are given again to whoever asks with the same key. A key without a size has no answer yet.
CREATE TABLE idempotency (
    owner TEXT NOT NULL, key TEXT NOT NULL, request TEXT NOT NULL, status INTEGER, content_type TEXT, body BLOB,
    created_at INTEGER NOT NULL, size INTEGER, PRIMARY KEY (owner, key)
) STRICT;
CREATE INDEX idempotency_by_age ON idempotency (created_at, size);
