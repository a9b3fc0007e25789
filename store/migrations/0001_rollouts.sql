-- "DRES": tells this database from any other SQLite file.
PRAGMA application_id = 1146242387;

-- Where this data directory is named: one row.
CREATE TABLE installation (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    id TEXT NOT NULL,
    created_unix_ms INTEGER NOT NULL
) STRICT;

-- What lists show and filter by. The documents are beside it, so that a list never reads them.
CREATE TABLE rollouts (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'finished', 'interrupted')),
    task_id TEXT,
    title TEXT NOT NULL,
    sample INTEGER NOT NULL,
    agent TEXT NOT NULL,
    agent_version TEXT NOT NULL,
    backend TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    started_unix_ms INTEGER NOT NULL,
    finished_unix_ms INTEGER,
    wall_ms INTEGER,
    ended TEXT,
    reward REAL,
    fault_code TEXT,
    fault_owner TEXT,
    calls INTEGER NOT NULL DEFAULT 0,
    trainable_calls INTEGER NOT NULL DEFAULT 0,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    trainable_tokens INTEGER NOT NULL DEFAULT 0,
    prefix_breaks INTEGER NOT NULL DEFAULT 0,
    level TEXT
) STRICT;

CREATE INDEX rollouts_by_start ON rollouts (started_unix_ms, number);
CREATE INDEX rollouts_by_owner ON rollouts (owner) WHERE state = 'running';

-- The start and the outcome of a rollout: JSON, packed.
CREATE TABLE documents (
    rollout INTEGER NOT NULL REFERENCES rollouts (number) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('start', 'outcome')),
    body BLOB NOT NULL,
    PRIMARY KEY (rollout, kind)
) STRICT;

-- Model calls in the order of recording: what is small as packed JSON, tokens in their own packed form.
CREATE TABLE calls (
    rollout INTEGER NOT NULL REFERENCES rollouts (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    call_index INTEGER NOT NULL,
    id TEXT NOT NULL,
    document BLOB NOT NULL,
    tokens BLOB NOT NULL,
    PRIMARY KEY (rollout, position),
    UNIQUE (rollout, call_index)
) STRICT;

-- Messages, tools, other parts of requests, replies: each once a rollout, packed.
CREATE TABLE contents (
    rollout INTEGER NOT NULL REFERENCES rollouts (number) ON DELETE CASCADE,
    hash BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (rollout, hash)
) STRICT;
