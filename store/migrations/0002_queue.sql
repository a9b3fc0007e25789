-- What a rollout was asked for with. Of those from before there was a queue: alone, and when they started.
ALTER TABLE rollouts ADD COLUMN group_id TEXT;
ALTER TABLE rollouts ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollouts ADD COLUMN created_unix_ms INTEGER NOT NULL DEFAULT 0;
UPDATE rollouts SET created_unix_ms = started_unix_ms;

-- Lists are in the order of ids, which is that of asking. The first index holds everything that lists filter by, so that
-- a filter which few rollouts pass reads no rows but theirs; the others lead to what is rare among many.
DROP INDEX rollouts_by_start;
CREATE INDEX rollouts_by_filter ON rollouts
    (id, state, ended, fault_owner, reward, agent, endpoint, backend, model, created_unix_ms, task_id, title);
CREATE INDEX rollouts_by_state ON rollouts (state, id);
CREATE INDEX rollouts_by_task ON rollouts (task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX rollouts_by_group ON rollouts (group_id, id) WHERE group_id IS NOT NULL;

-- What rollouts are made from: opaque, packed, each once, for as long as one in the queue is made from it.
CREATE TABLE specs (
    number INTEGER NOT NULL PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    body BLOB NOT NULL
) STRICT;

-- Rollouts from their submission until they are finished. One that has a row in `rollouts` too does not wait any more,
-- and is here so that it can begin again where its owner dies over it.
CREATE TABLE queue (
    id TEXT NOT NULL PRIMARY KEY,
    owner TEXT NOT NULL,
    group_id TEXT,
    sample INTEGER NOT NULL,
    task_id TEXT,
    title TEXT NOT NULL,
    agent TEXT NOT NULL,
    backend TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_unix_ms INTEGER NOT NULL,
    interruptions INTEGER NOT NULL DEFAULT 0,
    spec INTEGER NOT NULL REFERENCES specs (number)
) STRICT;

CREATE INDEX queue_by_owner ON queue (owner);
CREATE INDEX queue_by_spec ON queue (spec);

CREATE TRIGGER queue_forgets_specs AFTER DELETE ON queue
WHEN NOT EXISTS (SELECT 1 FROM queue WHERE spec = OLD.spec)
BEGIN
    DELETE FROM specs WHERE number = OLD.spec;
END;

-- What was answered to requests that may come again. The rollouts are a JSON list of ids.
CREATE TABLE idempotency (
    key TEXT NOT NULL PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    rollouts TEXT NOT NULL,
    created_unix_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX idempotency_by_age ON idempotency (created_unix_ms);

-- The events of a rollout that is over: JSON, one a line, packed.
CREATE TABLE event_logs (
    rollout INTEGER NOT NULL PRIMARY KEY REFERENCES rollouts (number) ON DELETE CASCADE,
    body BLOB NOT NULL
) STRICT;
