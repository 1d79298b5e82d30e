"""The tables of a shard store."""

from typing import Final

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (name TEXT PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shard (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    place INTEGER NOT NULL,
    begin INTEGER NOT NULL,
    end INTEGER,
    file TEXT,
    state TEXT NOT NULL DEFAULT 'TODO',
    owner TEXT,
    generation INTEGER,
    claimed INTEGER NOT NULL DEFAULT 0,
    cursor INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    reached INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    done_in INTEGER,
    UNIQUE (epoch, number)
);
CREATE INDEX IF NOT EXISTS shard_todo ON shard (epoch, place) WHERE state = 'TODO';
CREATE INDEX IF NOT EXISTS shard_doing ON shard (owner) WHERE state = 'DOING';
CREATE INDEX IF NOT EXISTS shard_uncommitted ON shard (owner) WHERE state = 'DONE' AND done_in IS NULL;
CREATE INDEX IF NOT EXISTS shard_begun ON shard (id) WHERE done_in IS NULL AND cursor > begin;
CREATE INDEX IF NOT EXISTS shard_quarantined ON shard (epoch) WHERE state = 'QUARANTINED';
CREATE TABLE IF NOT EXISTS checkpoint (
    seq INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL, positions TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS begun (
    seq INTEGER NOT NULL, shard INTEGER NOT NULL, cursor INTEGER NOT NULL, PRIMARY KEY (seq, shard)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (seq INTEGER PRIMARY KEY, length INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS quarantine (
    number INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, tries INTEGER NOT NULL,
    worker TEXT NOT NULL, reason TEXT NOT NULL
);
"""
"""`cursor` is the current position, `committed` that of the last checkpoint, `reached` the farthest of any try. `place`
orders an epoch's shards, `claimed` orders a worker's shards, `done_in` is the checkpoint that has it as DONE. `begun`
has each checkpoint's position in shards that were not DONE, `counted` the length of the file of rows at each
checkpoint; its row 0 has the present length.
"""
