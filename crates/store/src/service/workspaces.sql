-- Sandboxes with a name.
CREATE TABLE workspaces (
    name TEXT NOT NULL, tenant TEXT NOT NULL, id TEXT NOT NULL, snapshot_tag TEXT NOT NULL, sandbox TEXT NOT NULL,
    created_at INTEGER NOT NULL, last_active INTEGER NOT NULL, PRIMARY KEY (tenant, name)
) STRICT;
