-- Tokens: the hash of the secret alone.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL, scope TEXT NOT NULL, tags TEXT NOT NULL, tenant TEXT, note TEXT,
    created_at INTEGER NOT NULL, expires_at INTEGER, revoked_at INTEGER
) STRICT;
CREATE TABLE tenants (name TEXT PRIMARY KEY, quota TEXT NOT NULL) STRICT;
-- Whose a tag is. It is claimed before its snapshot is begun, and free when that is gone.
CREATE TABLE claims (tag TEXT PRIMARY KEY, tenant TEXT NOT NULL) STRICT;
CREATE TRIGGER claims_end AFTER DELETE ON snapshots BEGIN
    DELETE FROM claims WHERE tag = OLD.tag
        AND NOT EXISTS (SELECT 1 FROM snapshots WHERE tag = OLD.tag);
END;
-- Where the audit log stood when it was last safe on the disk.
CREATE TABLE audit_head (
    only INTEGER PRIMARY KEY CHECK (only = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL
) STRICT;
